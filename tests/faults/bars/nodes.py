"""Bar 14: a host is killed and started again; a node stands still, or its cable is pulled and nothing is reset."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

from tests.faults.bars.bar import Bar, Figure, Round, at_most, failures
from tests.faults.bars.cuts import STREAM_S_MAX, Cut, cannot_cut, machine_each
from tests.faults.bars.open_loop import OpenLoop, total
from tests.faults.bars.rig import Rig, running_rig
from tests.faults.faults import Stopped, verify

PER_SECOND = 5.0
FAKE = {"step_s": 0.02}
NODES = ("a", "b")
REPLICAS = 2
BEFORE_S = 2.0
AWAY_S = 2.0
ADOPTED_S_MAX = 3.0
DECIDED_S_MAX = 8.0
SERVICES = ("redis", "discovery", "scheduler-0", "gateway-0", *(f"host-{node}" for node in NODES))


async def _run(directory: Path, numbers: Sequence[int], size: int) -> AsyncIterator[Round]:
    faults = (_restart, _vanish, _cut)
    for number in numbers:  # each in a cluster of its own: a lost node leaves both replicas on the other
        fault, own = faults[number % len(faults)], directory / str(number)
        with machine_each(SERVICES) as places:
            async with running_rig(own, replicas=REPLICAS, nodes=NODES, fake=FAKE, places=places.__getitem__) as rig:
                await rig.serves(REPLICAS)
                async with OpenLoop(rig.gateways, PER_SECOND) as load:
                    await asyncio.sleep(BEFORE_S)
                    found = await fault(rig)
                    await asyncio.sleep(BEFORE_S)
                    await load.stop()
                    yield {**found, "load": load.take()}


def _fullest(rig: Rig) -> tuple[str, list[int]]:
    """Return the node with most runners, and their process ids."""
    runners = {one["id"]: [runner["pid"] for runner in one.get("runners", ())] for one in rig.nodes()}
    return max(runners.items(), key=lambda one: len(one[1]))


async def _restart(rig: Rig) -> Round:
    """Kill the host of a node, start it after a while."""
    before = await asyncio.to_thread(rig.serving)
    host = f"host-{(await asyncio.to_thread(_fullest, rig))[0]}"
    has_ended = await asyncio.to_thread(rig.kill, host)
    await asyncio.sleep(AWAY_S)
    started_unix_s = time.time()
    rig.start(host)
    adopted_s = await rig.logged_after(host, "runner.adopted", started_unix_s) - started_unix_s
    await rig.serves(REPLICAS)
    stopped = len(before - await asyncio.to_thread(rig.serving))
    return {
        "fault": f"SIGKILL {host}, started again",
        "proven": has_ended,
        "figures": {"adopted_s": adopted_s, "stopped": stopped},
    }


async def _vanish(rig: Rig) -> Round:
    """Stop every process of a node: peers see what they see of a machine that is switched off."""
    node, runners = await asyncio.to_thread(_fullest, rig)
    (other,) = set(NODES) - {node}
    pids = [rig.running[f"host-{node}"].pid, *runners]
    faults = [Stopped(pid) for pid in pids]
    others = await asyncio.to_thread(rig.serving) - set(pids)
    for fault in faults:
        fault.inject()
    stopped_unix_s = time.time()
    try:
        for fault in faults:
            await asyncio.to_thread(verify, fault)
        decided_s = await rig.logged_after(f"host-{other}", "runner.spawned", stopped_unix_s) - stopped_unix_s
        await rig.serves(REPLICAS, without=frozenset(pids))
        stopped = len(others - await asyncio.to_thread(rig.serving))
    finally:
        for fault in faults:  # the machine does not come back
            with suppress(ProcessLookupError):
                os.kill(fault.pid, signal.SIGKILL)
            fault.heal()
    return {
        "fault": f"node {node} stands still",
        "proven": bool(runners),  # each process was seen to stand still
        "figures": {"decided_s": decided_s, "stopped": stopped},
    }


async def _cut(rig: Rig) -> Round:
    """Pull the cable of a node; it is put back once there are enough replicas elsewhere."""
    node, runners = await asyncio.to_thread(_fullest, rig)
    (other,) = set(NODES) - {node}
    others = await asyncio.to_thread(rig.serving) - set(runners)
    cut = Cut.of_machine(rig.services[f"host-{node}"].place)
    cut.inject()
    cut_unix_s = time.time()
    try:
        decided_s = await rig.logged_after(f"host-{other}", "runner.spawned", cut_unix_s) - cut_unix_s
        await rig.serves(REPLICAS, without=frozenset(runners))
        packets = cut.packets()
    finally:
        cut.heal()
    stopped = len(others - await asyncio.to_thread(rig.serving))
    return {
        "fault": f"the cable of node {node} is pulled",
        "proven": packets > 0 and bool(runners),
        "figures": {"decided_s": decided_s, "stopped": stopped},
    }


def _judge(rounds: list[Round]) -> list[Figure]:
    figures = [one["figures"] for one in rounds]
    adopted = [one["adopted_s"] for one in figures if "adopted_s" in one]
    decided = [one["decided_s"] for one in figures if "decided_s" in one]
    load = total([one["load"] for one in rounds if "load" in one])
    return [
        *failures(rounds, "requests"),
        at_most("longest answer", [ms / 1000 for ms in load["whole_ms"]], STREAM_S_MAX, "s"),
        at_most("runners adopted after the start of the host", adopted, ADOPTED_S_MAX, "s"),
        at_most("replica of a lost node begun elsewhere", decided, DECIDED_S_MAX, "s"),
        at_most("other runners stopped", [one["stopped"] for one in figures], 0),
    ]


NODE_FAULTS = Bar(
    number=14,
    key="node",
    title="a host is killed and started again, a node is lost, a node's cable is pulled",
    full=21,
    sample=3,
    unit="faults",
    minutes=5,
    clusters=2,
    run=_run,
    judge=_judge,
    needs=cannot_cut,
)
