"""Bar 8: the leader crashes at each of five points of a placement, and a standby repairs what is left behind."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.faults.bars.bar import Bar, Figure, Round, at_least, at_most, failures
from tests.faults.bars.crashing_scheduler import POINTS
from tests.faults.bars.open_loop import OpenLoop
from tests.faults.bars.rig import COLD, Rig, python, running_rig
from tests.waiting import Stopwatch, next_look

PER_SECOND = 5.0
FAKE = {"step_s": 0.02, "load_s": 1.0}
REPAIRED_S_MAX = 15.0
CRASHED_S_MAX = 60.0
CRASHES, STANDS_BY = "scheduler-0", "scheduler-1"


async def _run(directory: Path, numbers: Sequence[int], size: int) -> AsyncIterator[Round]:
    async with running_rig(directory, schedulers=2, fake=FAKE, unready=(STANDS_BY,)) as rig:
        trapped = replace(rig.services[CRASHES], module=python("tests.faults.bars.crashing_scheduler"))
        async with OpenLoop(rig.gateways, PER_SECOND) as load:
            for number in numbers:
                point = POINTS[3 * number % len(POINTS)]  # a sample has early and late ones
                rig.services[CRASHES] = trapped
                await asyncio.to_thread(_replace_leader, rig, point)
                await rig.leads(CRASHES)
                await _standby(rig)
                asking = asyncio.create_task(rig.control_until(load=True, deadline_s=150))
                crashed_s = await _crash(rig)
                status = await asyncio.to_thread(rig.running[CRASHES].poll)
                await rig.serves(1, model=COLD)
                repaired_s = time.monotonic() - crashed_s
                await asking
                counts = [len(await asyncio.to_thread(rig.runners, COLD)) for _ in range(3)]
                await rig.control_until(load=False, deadline_s=60)
                yield {
                    "fault": f"crash of the leader, point {point}",
                    "proven": status == -signal.SIGKILL,
                    "figures": {"repaired_s": repaired_s, "runners": max(counts), "point": point},
                    "load": load.take(),
                }
            await load.stop()
            yield {"load": load.take()}


def _replace_leader(rig: Rig, point: str) -> None:
    """Make the scheduler with the trap the only one, so that it leads."""
    for name in (STANDS_BY, CRASHES):
        if name in rig.running:
            rig.kill(name, signal.SIGTERM)  # gives up its lease
    rig.start(CRASHES, CRASH_AT=point, CRASH_MODEL=f"{COLD}:latest")


async def _standby(rig: Rig) -> None:
    ready = _count(rig)
    rig.start(STANDS_BY)
    await rig.logged(STANDS_BY, "scheduler.ready", ready + 1)


def _count(rig: Rig) -> int:
    log = rig.directory / f"{STANDS_BY}.log"
    return len(rig.events(STANDS_BY, "scheduler.ready")) if log.exists() else 0


async def _crash(rig: Rig) -> float:
    """Return the time of the crash; the judge misses it if there was none within a minute."""
    watch = Stopwatch()
    while rig.running[CRASHES].poll() is None and not watch.is_past(CRASHED_S_MAX):
        await next_look()
    return time.monotonic()


def _judge(rounds: list[Round]) -> list[Figure]:
    figures: list[dict[str, Any]] = [one["figures"] for one in rounds if "figures" in one]
    return [
        at_most("exactly one runner again", [one["repaired_s"] for one in figures], REPAIRED_S_MAX, "s"),
        at_most("runners of the placement", [one["runners"] for one in figures], 1),
        at_least("points", len({one["point"] for one in figures}), min(len(POINTS), len(figures))),
        *failures(rounds, "requests of the warm model"),
    ]


CRASH_POINTS = Bar(
    number=8,
    key="mid_placement",
    title="the leader crashes at five points of a placement",
    full=200,
    sample=2,
    unit="crashes",
    minutes=13,
    clusters=5,
    run=_run,
    judge=_judge,
)
