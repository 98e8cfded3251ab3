"""Attacks on the wires between processes, and with numbers that no process can mean (trust 1 and 2)."""

import asyncio
import contextlib
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Iterable

import grpc
import httpx
from grpc import aio

from common.trust.authority import Authority
from common.trust.roles import parse_role
from protos import discovery_pb2, host_pb2, runner_pb2, store_pb2
from tests.attack.calls import Caller, exchange, open_stream
from tests.attack.stage import QUESTION, ROOT, Attack, Outcome, Stage
from tests.integration.host.test_poisoned_fences import HIGHEST, POISON
from tests.waiting import next_look

REGISTER = "/puna.v1.Discovery/Register"
CANARY = "canary-prompt-5309"
ATTACKER_PORT = 7703
# What a certificate of another node, or of the gateway, is for; all else is refused.
NODE_MAY = frozenset({"WatchInventory", "StatBlob", "ReadBlob", "ReadManifest", "ReadState"})
GATEWAY_MAY = frozenset(
    {
        *("Pull", "Create", "Copy", "Delete", "PutBlob", "ReadHeader", "StatBlob", "ReadBlob", "ReadManifest"),
        *("Generate", "Multiplex", "Probation", "Embed", "Rerank", "Tokenize", "Detokenize", "WatchLoad", "GetInfo"),
        *("InjectFault", "ForgetStates"),
    }
)
FAR_FUTURE_MS = 2**63


def _methods(*modules: object) -> list[str]:
    """List the methods of all services of these protos, as gRPC writes them."""
    services = [one for module in modules for one in module.DESCRIPTOR.services_by_name.values()]  # type: ignore[attr-defined]
    return [f"/{service.full_name}/{method.name}" for service in services for method in service.methods]


async def _let_in(stage: Stage, caller: Caller | None, may: Iterable[str] = ()) -> Outcome:
    """Call every method of every service that listens on the network; damage is each that is let in beyond `may`.

    What `may` be called shows that the calls arrive: one that is refused makes the others worth nothing.
    """
    runner = await stage.runner()
    places = {stage.discovery: _methods(discovery_pb2), runner.address: _methods(runner_pb2)}
    places |= dict.fromkeys(stage.hosts, _methods(host_pb2, store_pb2))
    passed: list[str] = []
    tried = 0
    for address, methods in places.items():
        for method in methods:
            if method == REGISTER and may:
                continue  # a node registers itself; the attacks below are others'
            answer = await exchange(address, method, b"", caller, within_s=5)
            if method.rpartition("/")[2] in may:
                assert not answer.refused, f"{method}: {answer.text}"
                continue
            tried += 1
            if not answer.refused:
                passed.append(f"{method.rpartition('.')[2]}: {answer.code.name} {answer.text}".rstrip())
    return Outcome(bool(passed), "; ".join([f"{len(passed)} of {tried} calls let in", *passed[:4]]))


async def call_without_certificate(stage: Stage) -> Outcome:
    """Plaintext to each service from a neighbour."""
    return await _let_in(stage, None)


async def call_with_strangers_certificate(stage: Stage) -> Outcome:
    """A certificate for `scheduler` of another authority."""
    stage.caller("node/c")
    strangers = Authority(stage.directory / "strangers")
    if not strangers.exists:
        strangers.create()
    issued = strangers.issue(parse_role("scheduler"))
    return await _let_in(stage, Caller.of(issued, authorities=stage.trust / "node/c/ca.crt"))


async def call_with_expired_certificate(stage: Stage) -> Outcome:
    """A certificate of this cluster that has expired."""
    return await _let_in(stage, stage.caller("node/d", ago_s=7200.0, life_s=3600.0))


async def call_as_another_node(stage: Stage) -> Outcome:
    """The certificate of a node, for what is not a node's to call."""
    return await _let_in(stage, stage.caller("node/c"), NODE_MAY)


async def call_as_gateway(stage: Stage) -> Outcome:
    """The certificate of a gateway, for what is not a gateway's to call."""
    return await _let_in(stage, stage.caller("gateway"), GATEWAY_MAY)


async def look_for_control_plane(stage: Stage) -> Outcome:
    """Connect to scheduler and Redis over the network."""
    open_ports = stage.first.listening_ports(loopback=False)
    found = sorted(open_ports & {6379, 7602})
    return Outcome(bool(found), f"of Redis and scheduler listen: {found or 'none'}")


def report_of(stage: Stage, node_id: str) -> discovery_pb2.HostReport:
    """Return a report that lacks nothing, of a host that is newer than the real one."""
    now_ms = int(time.time() * 1000) + 60_000
    report = discovery_pb2.HostReport(node_id=node_id, incarnation="evil", started_at_unix_ms=now_ms)
    report.facts.address = f"{stage.address}:{ATTACKER_PORT}"
    report.facts.engine_build = "evil"
    for section in (report.devices, report.models, report.runners):
        section.SetInParent()
    return report


def _replaced(caller_role: str) -> Callable[[Stage], Awaitable[Outcome]]:
    async def act(stage: Stage) -> Outcome:
        if caller_role:
            stage.caller(caller_role)
        victim = stage.victim
        before = (await stage.node(victim)).incarnation
        report = report_of(stage, victim)
        caller = stage.caller(caller_role) if caller_role else None
        channel, call, first = await open_stream(stage.discovery, REGISTER, report.SerializeToString(), caller)
        try:
            after = next((node for node in (await stage.inventory()).nodes if node.id == victim), None)
            replaced = bool(first) or (after is not None and after.incarnation != before)
            return Outcome(replaced, f"node {victim} is the attacker's" if replaced else f"refused: {await _why(call)}")
        finally:
            await channel.close()

    return act


async def _why(call: "aio.StreamStreamCall[bytes, bytes]") -> str:
    return f"{(await call.code()).name} {(await call.details() or '')[:120]}"


async def read_prompts(stage: Stage) -> Outcome:
    """Register a host of the attacker's own that has the model, and delete it from the others."""
    await stage.runner()
    own = stage.directory / "x"
    shutil.copytree(ROOT / "models", own / "models")
    environment = stage.attacker_environment() | {
        "PUNA_NODE_ID": "x",
        "PUNA_HOME": str(own),
        "PUNA_NODE_LISTEN": f"{stage.address}:{ATTACKER_PORT}",
        "PUNA_RUNNER_LISTEN": f"{stage.address}:0",
        "PUNA_DISCOVERY_ADDRESS": stage.discovery,
    }
    with (own / "log").open("wb") as log:
        command = [sys.executable, "-m", "runner", "host"]
        host = await asyncio.create_subprocess_exec(*command, cwd=stage.tree, env=environment, stdout=log, stderr=log)
    try:
        with contextlib.suppress(AssertionError):
            await stage.node("x")
        async with stage.client() as client:
            await client.post("/api/generate", json={"model": "demo", "keep_alive": 0})
            delete = store_pb2.DeleteRequest(name="demo:latest").SerializeToString()
            for address in stage.hosts:
                await exchange(address, "/puna.v1.ModelStore/Delete", delete, None)
            for _ in range(40):
                if {node.id for node in (await stage.inventory()).nodes if node.models} <= {"x"}:
                    break
                await next_look(0.1)
            with contextlib.suppress(httpx.HTTPError):
                await client.post("/api/chat", json=QUESTION | {"messages": [{"role": "user", "content": CANARY}]})
        served = any("request.done" in path.read_text() for path in (own / "logs").glob("runner-*"))
        emptied = not any(node.models for node in (await stage.inventory()).nodes if node.id != "x")
        seen = "the attacker's runner got the prompt" if served else "no prompt came to the attacker"
        return Outcome(served or emptied, f"{seen}; models of the nodes were {'deleted' if emptied else 'not deleted'}")
    finally:
        if host.returncode is None:
            host.terminate()
        await asyncio.wait_for(host.wait(), 60)
        shutil.rmtree(own)


async def read_metrics(stage: Stage) -> Outcome:
    """Read metrics pages of hosts and runners from a neighbour."""
    pages = []
    for node in (await stage.inventory()).nodes:
        for address in (node.metrics_address, *(runner.metrics_address for runner in node.runners)):
            host, _, port = address.rpartition(":")
            if host and not host.startswith("127.") and await _is_page(host, int(port)):
                pages.append(address.rpartition(":")[2])
    return Outcome(bool(pages), f"{len(pages)} pages are readable without a key")


async def _is_page(host: str, port: int) -> bool:
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), 3)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        status = await asyncio.wait_for(reader.readline(), 5)
        writer.close()
        return b" 200 " in status
    return False


def _stop_with(role: str) -> Callable[[Stage], Awaitable[Outcome]]:
    async def act(stage: Stage) -> Outcome:
        caller = stage.caller(role) if role else None
        sent = [
            await exchange(address, "/puna.v1.Host/Stop", POISON.SerializeToString(), caller) for address in stage.hosts
        ]
        obeyed = await stage.answers(60)
        with contextlib.suppress(httpx.TimeoutException):
            async with stage.client() as client:
                await client.post("/api/generate", json={"model": "demo", "keep_alive": 0}, timeout=20)
        obeyed = obeyed and await stage.answers(60)
        taken = any(answer.code is grpc.StatusCode.OK for answer in sent)
        seen = f"{sent[0].code.name} {sent[0].text[:80]}; the model loads again after an unload: {obeyed}"
        return Outcome(taken or not obeyed, seen)

    return act


async def start_in_the_future(stage: Stage) -> Outcome:
    """Register with a start time that no later process can be newer than; then that process registers."""
    report, caller = report_of(stage, "c"), stage.insider("node/c")
    now_ms, report.started_at_unix_ms = report.started_at_unix_ms - 60_000, FAR_FUTURE_MS
    channel, call, first = await open_stream(stage.discovery, REGISTER, report.SerializeToString(), caller)
    try:
        claimed = "taken" if first else f"refused: {await _why(call)}"
        report.incarnation, report.started_at_unix_ms = "honest", now_ms
        honest = await exchange(stage.discovery, REGISTER, report.SerializeToString(), caller)
        return Outcome(not honest.first, f"the claim is {claimed}; the host that starts later: {honest.code.name}")
    finally:
        await channel.close()


ATTACKS = (
    Attack(name="call each method in plaintext", row="1", input="empty messages", act=call_without_certificate),
    Attack(
        name="call each method with a certificate of another authority",
        row="1", input="certificate `scheduler`", act=call_with_strangers_certificate,
    ),
    Attack(
        name="call each method with an expired certificate",
        row="1", input="certificate `node/d`, an hour over", act=call_with_expired_certificate,
    ),
    Attack(
        name="call methods of other roles as a node", row="1", input="certificate `node/c`", act=call_as_another_node
    ),
    Attack(
        name="call methods of other roles as a gateway", row="1", input="certificate `gateway`", act=call_as_gateway
    ),
    Attack(
        name="reach scheduler and Redis", row="1", input="TCP", act=look_for_control_plane,
        before="both listened on Unix sockets",
    ),
    Attack(name="read metrics pages", row="1", input="GET /metrics", act=read_metrics),
    Attack(
        name="register as another node without a certificate",
        row="1", input="HostReport of b", act=_replaced(""), breaks=True,
    ),
    Attack(
        name="register as another node with a certificate",
        row="1", input="HostReport of b by node/c", act=_replaced("node/c"), breaks=True,
    ),
    Attack(
        name="read prompts with a node of the attacker's own",
        row="1", input="a host without a certificate, Delete elsewhere", act=read_prompts, breaks=True,
    ),
    Attack(name="start time in the future", row="2", input=str(FAR_FUTURE_MS), act=start_in_the_future),
    Attack(
        name="highest fence from the network", row="2", input=f"Stop, fence {HIGHEST}", act=_stop_with(""), breaks=True
    ),
    Attack(
        name="highest fence from a scheduler",
        row="2", input=f"Stop, fence {HIGHEST}", act=_stop_with("scheduler"), breaks=True,
    ),
)  # fmt: skip
