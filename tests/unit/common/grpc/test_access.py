"""Every method of every service, called with every kind of certificate: exactly the cells of the table pass."""

import importlib
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor import ServiceDescriptor
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from common.grpc.client import open_channel
from common.grpc.server import bind_server
from common.trust.access import TABLE
from common.trust.identity import IdentitySource
from common.trust.revocations import Revocations
from common.trust.roles import Role
from protos import authority_pb2, discovery_pb2, host_pb2, inference_pb2, runner_pb2, scheduler_pb2, store_pb2
from tests.attack.calls import LOST_STATUS, TRIES_MAX
from tests.trust import Cluster, acting_as

SERVERS = ("node/a", "runner/a/p")
GATEWAY, SCHEDULER, OPERATOR = {"gateway"}, {"scheduler"}, {"operator"}
NODES, RUNNERS = {"node/a", "node/b"}, {"runner/a/p", "runner/b/p"}
EVERY_ROLE = {"gateway", "scheduler", "discovery", "operator", "metrics", *NODES, *RUNNERS}
# Written by hand, so that a change of the table has to be made twice.
EXPECTED: dict[str, set[str]] = {
    "puna.v1.Discovery": SCHEDULER | NODES | OPERATOR,
    "puna.v1.Discovery/Register": NODES,
    "puna.v1.Discovery/Revoke": SCHEDULER,
    "puna.v1.Scheduler": GATEWAY,
    "puna.v1.Scheduler/WatchRoutes": GATEWAY | OPERATOR,
    "puna.v1.Scheduler/ListNodes": GATEWAY | OPERATOR,
    "puna.v1.Scheduler/ListConstraints": GATEWAY | OPERATOR,
    "puna.v1.Scheduler/Explain": GATEWAY | OPERATOR,
    "puna.v1.Host": SCHEDULER,
    "puna.v1.Host/InjectFault": GATEWAY,
    "puna.v1.Host/ForgetStates": GATEWAY,
    "puna.v1.Host/ReadState": NODES,
    "puna.v1.ModelStore": GATEWAY,
    "puna.v1.ModelStore/StatBlob": GATEWAY | NODES,
    "puna.v1.ModelStore/ReadBlob": GATEWAY | NODES,
    "puna.v1.ModelStore/ReadManifest": GATEWAY | NODES,
    "puna.v1.Runner": GATEWAY,
    "puna.v1.Runner/GetInfo": GATEWAY | SCHEDULER,
    "puna.v1.Runner/UseThreads": set(),
    "puna.v1.Runner/UseIdentity": set(),
    "puna.v1.Authority": NODES,
    "puna.v1.Authority/Join": set(),
    "puna.v1.Inference": set(),
    "grpc.health.v1.Health": EVERY_ROLE,
    "grpc.reflection.v1alpha.ServerReflection": OPERATOR,
}
# Of the server that is a runner, its own node and no other may call these, too.
OF_HOST = {f"/puna.v1.Runner/{method}" for method in ("GetInfo", "WatchLoad", "UseThreads", "UseIdentity")}
CONTRACTS = (authority_pb2, discovery_pb2, host_pb2, inference_pb2, runner_pb2, scheduler_pb2, store_pb2)
SERVICES: list[ServiceDescriptor] = [
    service
    for contract in (*CONTRACTS, health_pb2, reflection_pb2)
    for service in contract.DESCRIPTOR.services_by_name.values()
]
METHODS = {f"/{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods}
STRANGERS = ("no certificate", "another cluster", "expired", "not yet valid")
REFUSALS = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
CALL_TIMEOUT_S = 30.0


def expected_callers(method: str, server: str) -> set[str]:
    service, _, name = method.removeprefix("/").partition("/")
    host = {"node/a"} if server == "runner/a/p" and method in OF_HOST else set()
    return EXPECTED.get(f"{service}/{name}", EXPECTED[service]) | host


def identity_of(role: str, cluster: Cluster) -> IdentitySource:
    kind, _, holder = role.partition("/")
    return cluster.runner_identity(*holder.split("/")) if kind == "runner" else cluster.identity(role)


def test_every_method_of_every_service_has_a_row() -> None:
    files = {path.stem for path in Path(importlib.import_module("protos").__path__[0]).glob("*.proto")}
    assert files - {Path(contract.DESCRIPTOR.name).stem for contract in CONTRACTS} == {"cluster", "probe"}
    assert TABLE.keys() == METHODS.keys()


def register_all(server: aio.Server) -> None:
    """Add every service of the protos; their methods answer UNIMPLEMENTED to those who may call them."""
    for contract in CONTRACTS:
        module = importlib.import_module(f"{contract.__name__}_grpc")
        for name in contract.DESCRIPTOR.services_by_name:
            getattr(module, f"add_{name}Servicer_to_server")(getattr(module, f"{name}Servicer")(), server)


@pytest.fixture
def server() -> str:
    return "node/a"


@pytest.fixture
async def address(server: str, tmp_path: Path) -> AsyncIterator[str]:
    with acting_as(identity_of(server, Cluster(tmp_path / "own"))):
        bound = bind_server("127.0.0.1:0", register=register_all, services=["puna.v1.Host"])
    await bound.start()
    try:
        yield bound.address
    finally:
        await bound.stop(0)


async def callers_let_in(method: str, channels: dict[str, aio.Channel]) -> set[str]:
    return {caller for caller, channel in channels.items() if await code_of(method, channel) not in REFUSALS}


async def code_of(method: str, channel: aio.Channel) -> grpc.StatusCode:
    """Call with an empty request; the first answer is an answer. A call whose status was lost is made again."""
    for _ in range(TRIES_MAX):
        code, text = await _call_once(method, channel)
        if text != LOST_STATUS:
            break
    return code


async def _call_once(method: str, channel: aio.Channel) -> tuple[grpc.StatusCode, str]:
    row = METHODS[method]
    kind = f"{'stream' if row.client_streaming else 'unary'}_{'stream' if row.server_streaming else 'unary'}"
    request = iter([b""]) if row.client_streaming else b""
    call = getattr(channel, kind)(method)(request, timeout=CALL_TIMEOUT_S)
    try:
        await (call.read() if row.server_streaming else call)
    except aio.AioRpcError as error:
        return error.code(), error.details() or ""
    finally:
        call.cancel()
    return grpc.StatusCode.OK, ""


@pytest.mark.parametrize("server", SERVERS)
async def test_exactly_the_roles_of_the_table_are_let_in(server: str, address: str, tmp_path: Path) -> None:
    own = Cluster(tmp_path / "own")
    assert {caller.partition("/")[0] for caller in EVERY_ROLE} == set(Role)
    async with AsyncExitStack() as stack:
        channels: dict[str, aio.Channel] = {}
        for caller in EVERY_ROLE:
            with acting_as(identity_of(caller, own)):
                channels[caller] = await stack.enter_async_context(open_channel(address, server))
        let_in = {method: await callers_let_in(method, channels) for method in METHODS}
    assert let_in == {method: expected_callers(method, server) for method in METHODS}


def strangers_credentials(kind: str, directory: Path) -> tuple[bytes | None, bytes | None]:
    """Return key and chain of a client that must not get in, whatever role it claims."""
    if kind == "no certificate":
        return None, None
    if kind == "another cluster":
        pair = Cluster(directory / "other").identity("scheduler").material().pair
    else:
        ahead_s = -7200.0 if kind == "expired" else 7200.0
        pair = Cluster(directory / "own", clock_ahead_s=ahead_s).identity("scheduler").material().pair
    return pair.key, pair.certificate


@pytest.mark.parametrize("kind", STRANGERS)
async def test_strangers_call_no_method(kind: str, address: str, tmp_path: Path) -> None:
    key, chain = strangers_credentials(kind, tmp_path)
    credentials = grpc.ssl_channel_credentials((tmp_path / "own" / "ca" / "ca.crt").read_bytes(), key, chain)
    options = [("grpc.ssl_target_name_override", "node.puna.internal")]
    async with aio.secure_channel(address, credentials, options=options) as channel:
        let_in = {method for method in METHODS if await code_of(method, channel) not in REFUSALS}
    assert let_in == set()


async def test_a_removed_node_calls_no_method_and_another_one_those_of_the_table(tmp_path: Path) -> None:
    own, revocations = Cluster(tmp_path / "own"), Revocations()
    with acting_as(own.identity("node/a")):
        bound = bind_server("127.0.0.1:0", register=register_all, services=["puna.v1.Host"], revocations=revocations)
    await bound.start()
    try:
        async with AsyncExitStack() as stack:
            channels: dict[str, aio.Channel] = {}
            for caller in ("node/b", "node/c"):
                with acting_as(own.identity(caller)):
                    channels[caller] = await stack.enter_async_context(open_channel(bound.address, "node/a"))
            before_ms = round(time.time() * 1000) + 1
            revocations.merge([discovery_pb2.Revocation(node_id="b", issued_before_unix_ms=before_ms)])
            let_in = {method: await callers_let_in(method, channels) for method in METHODS}
    finally:
        await bound.stop(0)
    expected = {method: {"node/c"} if "node/b" in expected_callers(method, "node/a") else set() for method in METHODS}
    assert let_in == expected


async def test_plaintext_is_refused(address: str) -> None:
    async with aio.insecure_channel(address) as channel:
        assert await code_of("/grpc.health.v1.Health/Check", channel) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("peer", ["node/b", "scheduler", "runner/a/p", ""])
async def test_a_client_does_not_speak_to_another_role_or_node(peer: str, address: str, tmp_path: Path) -> None:
    with acting_as(Cluster(tmp_path / "own").identity("gateway")):
        channel = open_channel(address, peer)
    async with channel:
        assert await code_of("/grpc.health.v1.Health/Check", channel) is grpc.StatusCode.UNAVAILABLE


async def test_a_client_does_not_speak_to_another_cluster(address: str, tmp_path: Path) -> None:
    with acting_as(Cluster(tmp_path / "other").identity("gateway")):
        channel = open_channel(address, "node")
    async with channel:
        assert await code_of("/grpc.health.v1.Health/Check", channel) is grpc.StatusCode.UNAVAILABLE
