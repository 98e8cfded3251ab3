"""A real discovery with an authority, and machines that join it, well and badly."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cli.cluster.enrolment import explain_silence, join_address, join_cluster, keep_certificate
from cli.errors import CommandFailed
from common.audit.chain import check_chain
from common.errors import PermissionDenied
from common.grpc.client import ask, open_channel
from common.network import is_taken
from common.rate_limits import FAILURES_PER_MINUTE
from common.trust.authority import Authority
from common.trust.certificates import make_authority
from common.trust.identity import Identity
from common.trust.roles import parse_role
from common.trust.tokens import JoinTokens, Token
from protos import authority_pb2, authority_pb2_grpc, discovery_pb2, discovery_pb2_grpc
from tests.integration.cli.place import run_puna
from tests.integration.host.node import Service, start_discovery
from tests.ports import free_port
from tests.trust import acting_as
from tests.waiting import until

DISCOVERY = parse_role("discovery")
DEADLINE_S = 60.0
HEALTH = health_pb2.HealthCheckRequest()


class First:
    """The machine with the authority. `address`: that of its discovery."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.authority.create()
        self.tokens = JoinTokens(self.authority)
        self.address = ""
        self.process: Service

    def files(self) -> dict[str, bytes]:
        return files_in(self.authority.directory)


def files_in(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.glob("**/*") if path.is_file()}


def free_address() -> str:
    """Return an address where both of discovery's ports are free."""
    while is_taken(join_address(address := f"127.0.0.1:{free_port()}")):
        pass
    return address


@pytest.fixture
async def first(tmp_path: Path) -> AsyncIterator[First]:
    made = First(tmp_path / "first")
    made.address = free_address()
    environment = {
        "PUNA_TRUST": str(made.authority.issue(DISCOVERY)),
        "PUNA_AUTHORITY": str(made.authority.directory),
        "PUNA_JOIN_LISTEN": join_address(made.address),
        "PUNA_AUDIT_LOG": str(tmp_path / "audit"),
    }
    made.process = await start_discovery(tmp_path / "home", made.address, **environment)
    try:
        await made.process.event("discovery.ready")
        yield made
    finally:
        assert await made.process.end() == 0


async def refusal(first: First, token: Token, trust: Path, node_id: str = "alpha") -> str:
    """Join and fail: nothing is written on either side, and the error is one line."""
    before = first.files()
    with pytest.raises(CommandFailed) as caught:
        await join_cluster(first.address, token, trust, node_id=node_id)
    assert first.files() == before
    assert files_in(trust) == {}
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_a_machine_joins_and_renews_over_the_network(first: First, tmp_path: Path) -> None:
    directory = await join_cluster(first.address, first.tokens.create(), tmp_path / "trust", node_id="alpha")
    assert directory == tmp_path / "trust" / "node" / "alpha"
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    key = (directory / "tls.key").read_bytes()
    assert all(key not in content for content in first.files().values())
    identity = Identity(directory)
    with acting_as(identity):
        channel = open_channel(first.address, "discovery")
    async with channel:
        stub = authority_pb2_grpc.AuthorityStub(channel)
        with pytest.raises(PermissionDenied):
            await ask(stub.Join, authority_pb2.JoinRequest(), timeout_s=DEADLINE_S)
        known = await ask(stub.GetAuthorities, authority_pb2.GetAuthoritiesRequest(), timeout_s=DEADLINE_S)
        assert known.authorities == identity.material().authorities


async def test_the_command_for_hosts_that_up_does_not_run_joins_once_and_keeps_the_certificate(
    first: First, tmp_path: Path
) -> None:
    trust = tmp_path / "trust"
    directory, token = trust / "node" / "alpha", str(first.tokens.create())

    async def join(*words: str) -> tuple[list[str], str]:
        command = ("trust", "join", first.address, "--dir", str(trust), *words)
        done = await asyncio.to_thread(run_puna, *command, PUNA_NODE_ID="alpha")
        return done.stdout.splitlines(), done.stderr

    assert "add it with --token" in (await join())[1]
    assert (await join("--token", token))[0] == ["joined the cluster as node alpha", str(directory)]
    certificate = Identity(directory).material().pair.certificate
    assert await join() == ([str(directory)], "")
    acts = audited(tmp_path / "trust" / "audit.jsonl")  # of the machine that joined
    assert acts == [("trust.join", "alpha", "allowed"), ("trust.join", "alpha", "done")]
    assert (await join("--token", token))[0] == [str(directory)]  # it is used up
    assert Identity(directory).material().pair.certificate == certificate
    lines = (tmp_path / "audit").read_bytes().splitlines()
    assert audited(tmp_path / "audit") == [("node.admit", "alpha", "allowed"), ("node.admit", "alpha", "done")]
    assert {(one["token"], one["address"]) for one in map(json.loads, lines)} == {(token.split(".")[2], "127.0.0.1")}
    assert check_chain(lines) == 2
    assert token.split(".")[3] not in (tmp_path / "audit").read_text()


def audited(log: Path) -> list[tuple[str, str, str]]:
    entries = map(json.loads, log.read_text().splitlines())
    return [(one["act"], one["object"], one.get("decision") or one["status"]) for one in entries]


async def test_a_machine_whose_line_cannot_be_written_is_not_let_in(first: First, tmp_path: Path) -> None:
    log, token = tmp_path / "audit", first.tokens.create()
    log.unlink()
    log.mkdir()
    assert "the audit log of discovery cannot be written: nothing was changed" in await refusal(
        first, token, tmp_path / "trust"
    )
    log.rmdir()
    await join_cluster(first.address, token, tmp_path / "trust", node_id="alpha")


@pytest.fixture
def past_half(tmp_path: Path, first: First) -> Iterator[Path]:
    """The directory of a machine whose certificate is due."""
    early = Authority(first.authority.directory, wall_unix_s=lambda: time.time() - 13 * 3600)
    source = early.issue(parse_role("node/beta"))
    target = tmp_path / "trust" / "node" / "beta"
    target.parent.mkdir(parents=True)
    source.rename(target)
    with acting_as(Identity(target)):
        yield target


@asynccontextmanager
async def keeping(first: First, directory: Path) -> AsyncIterator[list[str]]:
    """Run what `puna up --join` runs; the lines that it says."""
    said: list[str] = []
    task = asyncio.create_task(keep_certificate(first.address, directory, said.append))
    try:
        yield said
    finally:
        task.cancel()


async def test_a_certificate_past_half_of_its_life_is_replaced_and_its_calls_go_on(
    first: First, past_half: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.trust.identity.LOOK_S", 0.0)
    before = Identity(past_half).material()
    async with open_channel(first.address, "discovery") as channel:
        health = health_pb2_grpc.HealthStub(channel).Watch(HEALTH)  # type: ignore[attr-defined]  # the stub lacks it
        await health.read()
        async with keeping(first, past_half) as said:
            await until(
                lambda: Identity(past_half).material().pair.key != before.pair.key,
                deadline_s=DEADLINE_S,
                what="it is renewed",
            )
        assert not health.done()
        health.cancel()
    after = Identity(past_half).material().facts
    assert after.name == before.facts.name
    assert after.valid_to_unix_s > time.time() + 20 * 3600
    assert said == []
    assert audited(tmp_path / "audit") == [("node.renew", "beta", "allowed"), ("node.renew", "beta", "done")]


async def test_another_authority_reaches_a_machine_that_joined(
    first: First, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.cluster.enrolment._LOOK_INTERVAL_S", 0.05)
    directory = await join_cluster(first.address, first.tokens.create(), tmp_path / "trust", node_id="alpha")
    with acting_as(Identity(directory)):
        async with keeping(first, directory):
            first.authority.rotate()
            both = first.authority.authorities()
            await until(lambda: (directory / "ca.crt").read_bytes() == both, what="it knows both")
            first.authority.issue(DISCOVERY)  # the machine meets it, and knows it
            async with open_channel(first.address, "discovery") as channel:
                await health_pb2_grpc.HealthStub(channel).Check(HEALTH, timeout=DEADLINE_S)  # type: ignore[attr-defined]  # as above


async def test_a_renewal_that_fails_is_said_when_it_is_late_and_is_tried_until_it_succeeds(
    first: First, past_half: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.cluster.enrolment._LOOK_INTERVAL_S", 0.05)
    monkeypatch.setattr("common.trust.identity.LOOK_S", 0.0)
    authority_key = first.authority.directory / "ca" / "ca.key"
    authority_key.chmod(0o644)
    async with open_channel(first.address, "discovery") as channel, keeping(first, past_half) as said:
        health = health_pb2_grpc.HealthStub(channel).Watch(HEALTH)  # type: ignore[attr-defined]  # the stub lacks it
        await health.read()
        await first.process.event("authority.unusable")
        assert said == []
        late = Authority(first.authority.directory, wall_unix_s=lambda: time.time() - 19 * 3600)
        authority_key.chmod(0o600)
        for path in late.issue(parse_role("node/beta")).iterdir():
            path.rename(past_half / path.name)
        authority_key.chmod(0o644)
        await until(lambda: bool(said), what="it is said")
        assert not health.done()  # the connection works on with what it has

        before = (past_half / "tls.crt").read_bytes()
        authority_key.chmod(0o600)
        await until(lambda: (past_half / "tls.crt").read_bytes() != before, deadline_s=DEADLINE_S, what="it is renewed")
        assert not health.done()
        health.cancel()
    assert "is not renewed: the authority of the cluster cannot be used; see the log of discovery" in said[0]
    assert not Identity(past_half).material().facts.is_late(time.time())


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda token: Token(token.fingerprint, token.id, "a" * 32), "the token is unknown or was revoked"),
        (lambda token: Token("0" * 64, token.id, token.secret), "the token is not for the cluster at"),
    ],
)
async def test_a_bad_token_is_said_on_both_machines(first: First, tmp_path: Path, spoil: Any, text: str) -> None:
    said = await refusal(first, spoil(first.tokens.create()), tmp_path / "trust")
    assert text in said
    assert "`puna tokens create`" in said
    logged = await first.process.event("join.refused")
    assert logged["address"] == "127.0.0.1"
    assert "token" in logged["text"]


async def _used(first: First, trust: Path) -> Token:
    token = first.tokens.create()
    await join_cluster(first.address, token, trust, node_id="beta")
    return token


async def _expired(first: First, _: Path) -> Token:
    return JoinTokens(first.authority, wall_unix_s=lambda: time.time() - 2 * 3600).create()


async def _revoked(first: First, _: Path) -> Token:
    token = first.tokens.create()
    assert first.tokens.revoke(token.id)
    return token


async def _of_another_node(first: First, _: Path) -> Token:
    return first.tokens.create(node="gamma")


async def _of_a_node_that_exists(first: First, trust: Path) -> Token:
    await join_cluster(first.address, first.tokens.create(), trust, node_id="alpha")
    return first.tokens.create(node="alpha")


async def _without_key(first: First, _: Path) -> Token:
    token = first.tokens.create()
    (first.authority.directory / "ca" / "ca.key").unlink()
    return token


async def _without_authority(first: First, _: Path) -> Token:
    token = first.tokens.create()
    (first.authority.directory / "ca" / "ca.crt").unlink()
    return token


async def _readable_key(first: First, _: Path) -> Token:
    token = first.tokens.create()
    (first.authority.directory / "ca" / "ca.key").chmod(0o644)
    return token


def _damaged(name: str, content: bytes) -> Any:
    async def damage(first: First, _: Path) -> Token:
        token = first.tokens.create()
        (first.authority.directory / "ca" / name).write_bytes(content)
        return token

    return damage


_UNUSABLE = "the authority of the cluster cannot be used; see the log of discovery"


@pytest.mark.parametrize(
    ("prepare", "text", "event", "logged"),
    [
        (_used, "the token was used, by node beta; `puna tokens create`", "join.refused", "was used, by node beta"),
        (_expired, "the token has expired; `puna tokens create`", "join.refused", "the token has expired"),
        (_revoked, "the token is unknown or was revoked; `puna tokens create`", "join.refused", "was revoked"),
        (_of_another_node, "the token is for node gamma; set PUNA_NODE_ID=gamma", "join.refused", "is for node gamma"),
        (
            _of_a_node_that_exists,
            "there is a node alpha already; set another PUNA_NODE_ID on this machine",
            "join.refused",
            "there is a node alpha already",
        ),
        (_without_key, _UNUSABLE, "authority.unusable", "ca.key is gone; bring it back, or remove"),
        (_without_authority, _UNUSABLE, "authority.unusable", "ca.crt is gone; bring it back, or remove"),
        (_readable_key, _UNUSABLE, "authority.unusable", "ca.key"),
        (_damaged("ca.key", b""), _UNUSABLE, "authority.unusable", "no private key in PEM"),
        (_damaged("ca.key", b"\xff" * 500), _UNUSABLE, "authority.unusable", "no private key in PEM"),
        (
            _damaged("ca.crt", b"-----BEGIN CERTIFICATE-----\nMII"),
            _UNUSABLE,
            "authority.unusable",
            "no certificate in PEM",
        ),
        (
            _damaged("ca.key", make_authority(0.0).key),
            _UNUSABLE,
            "authority.unusable",
            "belongs to another certificate",
        ),
    ],
)
async def test_what_keeps_a_machine_out_is_one_line_on_both_machines_and_changes_nothing(
    first: First, tmp_path: Path, prepare: Any, text: str, event: str, logged: str
) -> None:
    token = await prepare(first, tmp_path / "another")
    assert text in await refusal(first, token, tmp_path / "trust")
    said = (await first.process.event(event))["text"]
    assert logged in said
    assert "\n" not in said


async def test_an_address_that_fails_often_has_to_wait_and_the_log_is_not_filled(first: First, tmp_path: Path) -> None:
    bad = Token(first.tokens.create().fingerprint, "0" * 10, "a" * 32)
    for _ in range(FAILURES_PER_MINUTE):
        await refusal(first, bad, tmp_path / "trust")
    assert "too many failed attempts" in await refusal(first, bad, tmp_path / "trust")
    logged = [one for one in first.process.events if one.get("event") == "join.refused"]
    assert len(logged) == FAILURES_PER_MINUTE


@pytest.mark.parametrize(("off_s", "side"), [(-90_000, "behind"), (90_000, "ahead of")])
async def test_a_clock_that_is_a_day_off_is_said_on_both_machines(
    first: First, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off_s: float, side: str
) -> None:
    monkeypatch.setattr("cli.cluster.enrolment.time", SimpleNamespace(time=lambda: time.time() + off_s))
    assert "set the clock" in await refusal(first, first.tokens.create(), tmp_path / "trust")
    logged = await first.process.event("join.refused")
    assert f" s {side} that of this machine, " in logged["text"]
    assert logged["address"] == "127.0.0.1"


async def test_a_machine_that_joined_and_whose_clock_is_wrong_now_is_named_too(
    first: First, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = await join_cluster(first.address, first.tokens.create(), tmp_path / "trust", node_id="alpha")
    monkeypatch.setattr("cli.cluster.enrolment.time", SimpleNamespace(time=lambda: time.time() - 90_000))
    assert "set the clock" in await explain_silence(first.address, directory)
    assert "behind that of this machine" in (await first.process.event("join.refused"))["text"]


async def test_a_certificate_of_another_cluster_is_said_on_both_machines(first: First, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    other.create()
    directory = other.issue(parse_role("node/alpha"))
    said = await explain_silence(first.address, directory)
    assert f"{first.address} is of another cluster than the certificate in {directory}" in said
    assert "another cluster" in (await first.process.event("join.refused"))["text"]


class Impostor(authority_pb2_grpc.AuthorityServicer):
    """A server with a certificate of its own that shows the authority of the cluster, which is no secret."""

    def __init__(self, authorities: bytes) -> None:
        self.authorities = authorities
        self.heard: list[authority_pb2.JoinRequest] = []

    async def GetAuthorities(  # noqa: N802  # the contract names it
        self, request: Any, context: Any
    ) -> authority_pb2.Authorities:
        return authority_pb2.Authorities(authorities=self.authorities)

    async def Join(  # noqa: N802  # the contract names it
        self, request: authority_pb2.JoinRequest, context: Any
    ) -> authority_pb2.IssuedCertificate:
        self.heard.append(request)
        return authority_pb2.IssuedCertificate()

    async def Renew(  # noqa: N802  # the contract names it
        self, request: authority_pb2.RenewRequest, context: Any
    ) -> authority_pb2.IssuedCertificate:
        return authority_pb2.IssuedCertificate()


async def test_an_impostor_hears_no_secret(first: First, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    other.create()
    pair = Identity(other.issue(DISCOVERY)).material().pair
    impostor, server = Impostor(first.authority.authorities()), aio.server()
    authority_pb2_grpc.add_AuthorityServicer_to_server(impostor, server)
    address = free_address()
    server.add_secure_port(join_address(address), grpc.ssl_server_credentials([(pair.key, pair.certificate)]))
    await server.start()
    try:
        with pytest.raises(CommandFailed, match="the token is not for the cluster at"):
            await join_cluster(address, first.tokens.create(), tmp_path / "trust", node_id="alpha")
    finally:
        await server.stop(0)
    assert impostor.heard == []


async def test_strangers_reach_nothing_else_and_send_little(first: First) -> None:
    options = [("grpc.ssl_target_name_override", "discovery.puna.internal")]
    credentials = grpc.ssl_channel_credentials(first.authority.authorities())
    async with aio.secure_channel(join_address(first.address), credentials, options=options) as channel:
        watch = discovery_pb2_grpc.DiscoveryStub(channel).WatchInventory(discovery_pb2.WatchInventoryRequest())
        assert await watch.code() is grpc.StatusCode.UNIMPLEMENTED
        stub = authority_pb2_grpc.AuthorityStub(channel)
        assert await stub.Renew(authority_pb2.RenewRequest()).code() is grpc.StatusCode.UNAUTHENTICATED
        large = authority_pb2.JoinRequest(request=b"x" * 100_000)
        assert await stub.Join(large).code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_without_an_authority_there_is_no_listener_for_machines_that_join(tmp_path: Path) -> None:
    process = await start_discovery(tmp_path, PUNA_JOIN_LISTEN="127.0.0.1:0")
    assert await process.process.wait() == 1
    assert await process.end() == 1
    assert process.plain == [
        "puna discovery: PUNA_JOIN_LISTEN needs PUNA_AUTHORITY and PUNA_TRUST; `puna up --address` sets all three"
    ]
