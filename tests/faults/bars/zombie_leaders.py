"""Bar 5: a leader is stopped, woken, and goes on commanding beside the one that leads by now.

Both are forced: neither clock nor store ends their terms, and only hosts can refuse the old one.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from common.errors import PunaError
from scheduler.client import SchedulerClient
from tests.faults.bars.bar import Bar, Figure, Round, at_least, at_most, failures
from tests.faults.bars.forced_scheduler import REFUSED
from tests.faults.bars.open_loop import OpenLoop
from tests.faults.bars.rig import COLD, MODEL, Rig, python, running_rig
from tests.faults.faults import Stopped, verify
from tests.waiting import Stopwatch, next_look

PER_SECOND = 5.0
FAKE = {"step_s": 0.02}
OLD, NEW = "scheduler-0", "scheduler-1"
STOPPED_S = 20.0
SAMPLE_STOPPED_S = 8.0  # longer than a lease
CONTEST_S = 60.0  # once; in other rounds as long as a refusal takes
REFUSED_S_MAX = 20.0
COMMAND_EVERY_S = 0.5
COMMAND_S_MAX = 5.0


async def _run(directory: Path, numbers: Sequence[int], size: int) -> AsyncIterator[Round]:
    async with running_rig(directory, schedulers=2, fake=FAKE, unready=(NEW,)) as rig:
        for name in (OLD, NEW):
            rig.services[name] = replace(rig.services[name], module=python("tests.faults.bars.forced_scheduler"))
        async with OpenLoop(rig.gateways, PER_SECOND) as load:
            for number in numbers:
                stopped_s = STOPPED_S if size > 1 else SAMPLE_STOPPED_S
                found = await _stop_and_wake(rig, stopped_s, CONTEST_S if number == size - 1 and size > 1 else 0.0)
                yield {**found, "load": load.take()}
            await load.stop()
            yield {"load": load.take()}


async def _stop_and_wake(rig: Rig, stop_s: float, contest_s: float) -> Round:
    await asyncio.to_thread(_begin, rig)
    await rig.leads(OLD)
    ready = len(rig.events(NEW, "scheduler.ready")) if NEW in rig.running else 0
    rig.start(NEW)
    await rig.logged(NEW, "scheduler.ready", ready + 1)
    await rig.control_until(load=True, deadline_s=60)
    refused = len(rig.events(OLD, REFUSED))
    fault = Stopped(rig.running[OLD].pid)
    fault.inject()
    try:
        await asyncio.to_thread(verify, fault)
        stopped_s = time.monotonic()
        await rig.leads(NEW)
        # A command of the new leader: from now on the host knows the higher fence.
        for load in (False, True):
            await rig.control_until(load=load, deadline_s=60)
        await rig.serves(1, model=COLD)
        await asyncio.sleep(max(0.0, stop_s - (time.monotonic() - stopped_s)))
        before = await asyncio.to_thread(rig.serving), await asyncio.to_thread(rig.serving, COLD)
    finally:
        fault.heal()
    counts, over_promised = await _command(rig, refused, contest_s)
    after = await asyncio.to_thread(rig.serving), await asyncio.to_thread(rig.serving, COLD)
    return {
        "fault": f"SIGSTOP of the leader for {stop_s:g} s, then two leaders",
        "proven": True,
        "figures": {
            "refusals": len(rig.events(OLD, REFUSED)) - refused,
            "stopped": sum(len(then - now) for then, now in zip(before, after, strict=True)),
            "runners": max(counts, default=0),
            "over_promised": over_promised,
        },
    }


def _begin(rig: Rig) -> None:
    """Make the old leader lead: the only scheduler, which has not led yet."""
    for name in (NEW, OLD):
        if name in rig.running:
            rig.kill(name, signal.SIGTERM)
    rig.start(OLD)


async def _command(rig: Rig, refused: int, contest_s: float) -> tuple[list[int], int]:
    """Ask the old leader to unload until it was refused and the contest is over.

    Returns the numbers of runners that were seen, and how often a device was promised too much.
    """
    counts, over_promised = [], 0
    watch, turn = Stopwatch(), 0
    async with SchedulerClient(rig.address(OLD)) as old:
        while watch.wall_s < contest_s or (
            len(rig.events(OLD, REFUSED)) == refused and not watch.is_past(REFUSED_S_MAX)
        ):
            with suppress(PunaError, TimeoutError):
                async with asyncio.timeout(COMMAND_S_MAX):
                    await old.unload_model((COLD, MODEL)[turn % 2])
            counts.append(len(await asyncio.to_thread(rig.runners)))
            counts.append(len(await asyncio.to_thread(rig.runners, COLD)))
            over_promised += await asyncio.to_thread(rig.over_promised)
            turn += 1
            await next_look(COMMAND_EVERY_S)
    return counts, over_promised


def _judge(rounds: list[Round]) -> list[Figure]:
    figures = [one["figures"] for one in rounds if "figures" in one]
    return [
        at_most("runners that a stale command stopped", [one["stopped"] for one in figures], 0),
        at_least("stale commands refused by the host, fewest", min((one["refusals"] for one in figures), default=0), 1),
        at_most("runners of a placement", [one["runners"] for one in figures], 1),
        at_most("devices promised more than they have", [one["over_promised"] for one in figures], 0),
        *failures(rounds, "requests"),
    ]


ZOMBIE_LEADERS = Bar(
    number=5,
    key="zombie_leader",
    title="the leader is stopped for 20 s and woken, and commands beside the next one",
    full=200,
    sample=1,
    unit="stops",
    minutes=25,
    clusters=6,
    run=_run,
    judge=_judge,
)
