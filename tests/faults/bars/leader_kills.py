"""Bar 4: the leading scheduler is killed again and again; the clock of one of the two is minutes or an hour off."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tests.faults.bars.bar import Bar, Figure, Round, at_least, at_most, failures
from tests.faults.bars.open_loop import OpenLoop
from tests.faults.bars.rig import COLD, MODEL, Rig, running_rig, stamp
from tests.faults.skewed_clock import skewed_clock

PER_SECOND = 5.0
FAKE = {"step_s": 0.02}
SKEWS_S = (-3600, 300, -300, 3600)
SKEWED = "scheduler-1"
COMMAND_S_MAX = 7.0
REPLICAS = 2


async def _run(directory: Path, numbers: Sequence[int], size: int) -> AsyncIterator[Round]:
    skew_s = SKEWS_S[0]

    def start(rig: Rig, name: str, number: int) -> None:
        nonlocal skew_s
        if name == SKEWED:
            skew_s = SKEWS_S[number % len(SKEWS_S)]
        rig.start(name, **(skewed_clock(directory, skew_s=skew_s) if name == SKEWED else {}))

    async with running_rig(directory, replicas=REPLICAS, schedulers=2, fake=FAKE, unready=(SKEWED,)) as rig:
        start(rig, SKEWED, 0)
        await rig.logged(SKEWED, "scheduler.ready", 1)
        runners = await asyncio.to_thread(rig.serving)
        async with OpenLoop(rig.gateways, PER_SECOND) as load:
            for number in numbers:
                leader = await rig.leads("scheduler-0", SKEWED)
                killed_unix_s = time.time()
                is_dead = await asyncio.to_thread(rig.kill, leader)
                await rig.control_until(load=number % 2 == 0, deadline_s=60)
                # An unload is answered before its command arrives: the host says when it obeyed.
                command_s = await rig.logged_after("host-a", "fence.raised", killed_unix_s) - killed_unix_s
                ready = len(rig.events(leader, "scheduler.ready"))
                start(rig, leader, number)
                await rig.logged(leader, "scheduler.ready", ready + 1)
                seen_s = stamp(rig.events(leader, "scheduler.ready")[-1]) - time.time()
                found = [await asyncio.to_thread(rig.runners, model) for model in (MODEL, COLD)]
                yield {
                    "fault": f"SIGKILL {leader}, the leader",
                    "proven": is_dead and (leader != SKEWED or abs(seen_s - skew_s) < 60),
                    "figures": {
                        "first_command_s": command_s,
                        "duplicates": max(0, len(found[0]) - REPLICAS) + max(0, len(found[1]) - 1),
                        "restarted": len(runners - set(found[0])),
                        "was_skewed": leader == SKEWED,
                    },
                    "load": load.take(),
                }
            await load.stop()
            yield {"load": load.take()}


def _judge(rounds: list[Round]) -> list[Figure]:
    figures = [one["figures"] for one in rounds if "figures" in one]
    return [
        at_most(
            "first command of the new leader, p99",
            [one["first_command_s"] for one in figures],
            COMMAND_S_MAX,
            "s",
            share=0.99,
        ),
        *failures(rounds, "requests"),
        at_most("duplicate runners", [one["duplicates"] for one in figures], 0),
        at_most("runners that were restarted", [one["restarted"] for one in figures], 0),
        at_least(
            "kills of the leader with a wrong clock", sum(one["was_skewed"] for one in figures), len(figures) // 3
        ),
    ]


LEADER_KILLS = Bar(
    number=4,
    key="leader_kill",
    title="the leader is killed, the clock of one scheduler is wrong by ± 300 s and ± 1 h",
    full=200,
    sample=1,
    unit="kills",
    minutes=12,
    clusters=4,
    run=_run,
    judge=_judge,
    needs=lambda: "" if shutil.which("cc") and os.name == "posix" else "needs a C compiler for the wrong clock",
)
