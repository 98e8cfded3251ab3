"""Attacks of machines that are no members of the cluster, or are members no longer, and of members that lie."""

import math
import shutil
import time

import httpx

from cli.cluster.enrolment import join_address, join_cluster
from cli.errors import CommandFailed
from common.grpc.ranges import find_out_of_range
from common.rate_limits import FAILURES_PER_MINUTE
from common.startup_error import StartupError
from common.trust.authority import Authority
from common.trust.identity import Identity
from common.trust.roles import parse_role
from common.trust.tokens import JoinTokens, Token
from tests.attack.calls import Caller, exchange, open_stream
from tests.attack.stage import Attack, NoSurface, Outcome, Stage
from tests.attack.wires import REGISTER, report_of
from tests.integration.discovery.test_joining import free_address
from tests.integration.host.node import start_discovery
from tests.waiting import Stopwatch, next_look

REFUSED_WITHIN_S = 2.0
# What a node may call of discovery and of another host.
_OF_NODES = ("/puna.v1.Discovery/WatchInventory", REGISTER)
_OF_HOSTS = ("/puna.v1.ModelStore/StatBlob", "/puna.v1.ModelStore/ReadManifest")
_IDS = ("../scheduler", "a/b", "scheduler/../x", "x" * 300)
_ENDLESS_S, _ENDLESS_BYTES = 2**62, 2**64 - 1


async def join_badly(stage: Stage) -> Outcome:
    """Join with tokens that are wrong, used, expired, revoked, foreign, for another id or a taken one, and by guesses.

    A discovery of its own with an authority: the machines of the stage have certificates that were issued before.
    """
    if not stage.has_certificates:
        raise NoSurface("there are no tokens")
    for name in ("joined", "foreign", "joining", "home-j"):
        shutil.rmtree(stage.directory / name, ignore_errors=True)
    authority, other = Authority(stage.directory / "joined"), Authority(stage.directory / "foreign")
    for one in (authority, other):
        one.create()
    tokens, address = JoinTokens(authority), free_address()
    environment = {
        "PUNA_TRUST": str(authority.issue(parse_role("discovery"))),
        "PUNA_AUTHORITY": str(authority.directory),
        "PUNA_JOIN_LISTEN": join_address(address),
    }
    discovery = await start_discovery(stage.directory / "home-j", address, **environment)
    trust = stage.directory / "joining"

    async def joins(token: Token, node_id: str) -> str:
        """Return the role that the cluster gave, or the refusal after a dash."""
        try:
            return str(Identity(await join_cluster(address, token, trust, node_id=node_id)).material().facts.name)
        except (CommandFailed, StartupError) as error:
            return f"- {error}"

    try:
        await discovery.event("discovery.ready")
        used = tokens.create()
        assert await joins(used, "beta") == "node/beta"
        good, revoked = tokens.create(), tokens.create()
        tokens.revoke(revoked.id)
        foreign = JoinTokens(other).create()
        bad = {
            "wrong": (Token(good.fingerprint, good.id, "a" * 32), "n1"),
            "used": (used, "n2"),
            "expired": (JoinTokens(authority, wall_unix_s=lambda: time.time() - 7200).create(), "n3"),
            "revoked": (revoked, "n4"),
            "foreign": (Token(good.fingerprint, foreign.id, foreign.secret), "n5"),
            "for another id": (tokens.create(node="gamma"), "n6"),
            "for a taken id": (tokens.create(), "beta"),
            **{f"for the id {node_id[:20]!r}": (tokens.create(), node_id) for node_id in _IDS},
        }
        let_in = [kind for kind, (token, node_id) in bad.items() if not (await joins(token, node_id)).startswith("-")]
        for _ in range(FAILURES_PER_MINUTE):
            said = await joins(Token(good.fingerprint, good.id, "b" * 32), "n7")
        if "too many failed attempts" not in said:
            let_in.append(f"guesses: {said[:80]}")
    finally:
        await discovery.end()
    return Outcome(bool(let_in), f"{len(let_in)} of {len(bad) + 1} let in" + "".join(f"; {one}" for one in let_in[:4]))


async def come_back(stage: Stage) -> Outcome:
    """A node that was removed from the cluster calls and registers with the certificate that it had."""
    stolen = stage.caller("node/f")
    channel, _, first = await open_stream(stage.discovery, REGISTER, report_of(stage, "f").SerializeToString(), stolen)
    await channel.close()
    assert first, "the node was refused before it was removed"
    async with stage.client() as client:
        removed = await client.post("/puna/v1/nodes/f/remove", params={"absent": "true"}, json={})
    removed.raise_for_status()
    watch, let_in = Stopwatch(), await _let_in(stage, stolen)
    while let_in and not watch.is_past(REFUSED_WITHIN_S):
        await next_look(0.1)
        let_in = await _let_in(stage, stolen)
    authority, again = Authority(stage.trust), stolen
    for _ in range(50):  # an honest machine comes back, with a new certificate
        again = Caller.of(authority.issue(parse_role("node/f")))
        if len(await _let_in(stage, again)) == len(_OF_NODES) + len(_OF_HOSTS):
            break
        await next_look(0.1)
    else:
        raise AssertionError("a new certificate is refused, too")
    let_in += await _let_in(stage, stolen)
    return Outcome(
        bool(let_in), f"refused after {watch.wall_s:.1f} s at most; let in: {', '.join(let_in) or 'nothing'}"
    )


async def _let_in(stage: Stage, caller: Caller) -> list[str]:
    """Return the methods that a node may call and that this one is let in to."""
    report = report_of(stage, "f").SerializeToString()
    calls = [(stage.discovery, method) for method in _OF_NODES] + [(stage.hosts[0], method) for method in _OF_HOSTS]
    let_in = []
    for address, method in calls:
        request = report if method == REGISTER else b""
        answer = await exchange(address, method, request, caller, within_s=5)
        if not answer.refused:
            let_in.append(f"{method}: {answer.code.name} {answer.text}".rstrip())
    return let_in


async def report_absurd_numbers(stage: Stage) -> Outcome:
    """Register a node of the attacker's own whose numbers nothing can have; pages, lists and other users go on."""
    report = report_of(stage, "g")
    report.facts.models_free_bytes = report.facts.models_total_bytes = _ENDLESS_BYTES
    device = report.devices.devices.add(id="CPU:g", name="CPU", total_bytes=_ENDLESS_BYTES, free_bytes=_ENDLESS_BYTES)
    device.vitals.utilization = math.nan
    device.vitals.last_xid_at_unix_s = _ENDLESS_S
    report.models.models.add(
        name="absurd:latest", size_bytes=_ENDLESS_BYTES, modified_at_unix_s=_ENDLESS_S, total_size_bytes=_ENDLESS_BYTES
    )
    channel, _, _ = await open_stream(stage.discovery, REGISTER, report.SerializeToString(), stage.insider("node/g"))
    broken = []
    try:
        for _ in range(10):
            inventory = await stage.inventory()
            if any(node.id == "g" for node in inventory.nodes):
                break
            await next_look(0.1)
        broken += [f"inventory: {found}"] if (found := find_out_of_range(inventory)) is not None else []
        async with stage.client() as client:
            for path in ("/api/tags", "/v1/models", "/puna/v1/nodes", "/puna/v1/placements"):
                broken += [f"{path}: {said}"] if (said := await _page(client, path)) != "200" else []
        if not await stage.answers(20):
            broken.append("the demo model answers no more")
    finally:
        await channel.close()
    return Outcome(bool(broken), "; ".join(broken[:3]) or "its numbers are in no list, and every page answers")


async def _page(client: httpx.AsyncClient, path: str) -> str:
    """Return the status of a page, or what is wrong with its JSON."""
    answer = await client.get(path)
    if answer.status_code == httpx.codes.OK and any(word in answer.text for word in ("NaN", "Infinity", "absurd")):
        return "an absurd number is in it"
    return str(answer.status_code)


ATTACKS = (
    Attack(
        name="join with a token that is not good",
        row="1", input="wrong, used, expired, revoked, foreign; for other ids, paths; guesses", act=join_badly,
    ),
    Attack(
        name="removed node that comes back", row="1", input="the certificate `node/f` that it had", act=come_back,
        breaks=True,
    ),
    Attack(
        name="numbers out of range", row="2", input="2^64-1 bytes, dates after the year 9999, NaN, reported by node g",
        act=report_absurd_numbers, breaks=True,
    ),
)  # fmt: skip
