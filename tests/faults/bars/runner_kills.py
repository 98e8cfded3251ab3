"""Bars 1 and 3: `kill -9` of a warm replica of three while 800 requests arrive in an open loop.

A replica is the process of the engine, a child of the host, which lives on.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.faults.bars.bar import Bar, Figure, Round, at_least, at_most, failures
from tests.faults.bars.open_loop import OpenLoop, total
from tests.faults.bars.rig import running_rig
from tests.faults.faults import Killed, verify

REPLICAS = 3
PER_SECOND = 10.0
BETWEEN_KILLS = 400  # requests, 40 s: three kills within a minute would be a crash loop
FAKE = {"step_s": 0.02}
TOKENS = 48  # a second, so that some streams are at the runner when it dies
GAP_S_MAX = 1.0  # beyond the evaluation of the prompt, which takes one step of the fake engine
BEYOND_LOAD_S_MAX = 2.0
NOTICED_S_MAX = 1.0
SENT_S_MAX = 2.0


async def _run(directory: Path, numbers: Sequence[int], size: int) -> AsyncIterator[Round]:
    async with running_rig(directory, replicas=REPLICAS, fake=FAKE) as rig:
        begun_s = time.monotonic()
        await rig.control_until(load=True, deadline_s=60)
        load_s = time.monotonic() - begun_s
        async with OpenLoop(rig.gateways, PER_SECOND, tokens=TOKENS) as load:
            for number in numbers:
                before = sorted(await asyncio.to_thread(rig.serving))
                await asyncio.sleep(min(size, BETWEEN_KILLS) / 2 / PER_SECOND)
                victim = before[number % len(before)]
                fault = Killed(victim)
                begun_s, killed_unix_s = time.monotonic(), time.time()
                fault.inject()
                await asyncio.to_thread(verify, fault)
                await asyncio.sleep(SENT_S_MAX)
                sent = await rig.retries()
                noticed_s = await rig.logged_after("host-a", "runner.ended", killed_unix_s) - killed_unix_s
                await rig.serves(REPLICAS, without=frozenset({victim}))
                back_s = time.monotonic() - begun_s
                await asyncio.sleep(min(size, BETWEEN_KILLS) / 2 / PER_SECOND)
                later = await rig.retries() - sent
                yield {
                    "fault": f"SIGKILL runner {victim}",
                    "proven": True,
                    "figures": {
                        "capacity_back_s": back_s,
                        "load_s": load_s,
                        "noticed_s": noticed_s,
                        "sent_later": later,
                    },
                    "load": load.take(),
                }
            await load.stop()
            yield {"load": load.take()}


def _judge(rounds: list[Round]) -> list[Figure]:
    load = total([one["load"] for one in rounds])
    figures = [one["figures"] for one in rounds if "figures" in one]
    back = [one["capacity_back_s"] - one["load_s"] for one in figures]
    return [
        *failures(rounds, "requests"),
        at_most("longest pause in a stream, p99", load["gap_ms"], 1000 * GAP_S_MAX, "ms", share=0.99),
        at_most("capacity back, beyond the time of a load", back, BEYOND_LOAD_S_MAX, "s"),
        at_least("streams that were resumed", load["resumes"], 1),
    ]


def _judge_child(rounds: list[Round]) -> list[Figure]:
    figures = [one["figures"] for one in rounds if "figures" in one]
    return [
        *failures(rounds, "requests"),
        at_most("its host notices", [one["noticed_s"] for one in figures], NOTICED_S_MAX, "s"),
        at_most(f"requests sent to it after {SENT_S_MAX:g} s", [one["sent_later"] for one in figures], 0),
    ]


RUNNER_KILLS = Bar(
    number=1,
    key="runner_kill",
    title="a warm replica of three is killed under an open-loop load",
    full=800,
    sample=60,
    unit="requests",
    minutes=3,
    per_round=BETWEEN_KILLS,
    run=_run,
    judge=_judge,
)

CHILD_DIES = replace(
    RUNNER_KILLS,
    number=3,
    key="child_only",
    title="the engine's process dies, its host lives",
    full=400,
    minutes=2,
    judge=_judge_child,
)
