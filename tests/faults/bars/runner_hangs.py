"""Bar 2: SIGSTOP of one of two runners, under load and without any."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tests.faults.bars.bar import Bar, Figure, Round, at_least, at_most, failures
from tests.faults.bars.open_loop import OpenLoop, total
from tests.faults.bars.rig import Rig, running_rig
from tests.faults.faults import Stopped, process_state, verify
from tests.waiting import next_look

REPLICAS = 2
PER_SECOND = 8.0
FAKE = {"step_s": 0.02}
TOKENS = 48  # a second, so that some streams are at the runner when it stops
BEFORE_S = 3.0
# Hung runners count as crashes: so long apart, no three are within a minute.
APART_S = 31.0
DIVERTED_S_MAX = 3.0
REPLACED_S_MAX = 10.0
RESUMED_S_MAX = 30.0
ENDED_S_MAX = 40.0


async def _run(directory: Path, numbers: Sequence[int], size: int) -> AsyncIterator[Round]:
    async with running_rig(directory, replicas=REPLICAS, fake=FAKE) as rig:
        load = OpenLoop(rig.gateways, PER_SECOND, tokens=TOKENS)
        await load.measure()
        for number in numbers:
            begun_s = time.monotonic()
            found = await _hang(rig, load, is_busy=number % 2 == 0)
            await load.stop()
            yield {**found, "load": load.take()}
            if len(numbers) > 2:
                await asyncio.sleep(max(0.0, APART_S - (time.monotonic() - begun_s)))


async def _hang(rig: Rig, load: OpenLoop, *, is_busy: bool) -> Round:
    before = sorted(await asyncio.to_thread(rig.serving))
    if is_busy:
        load.start()
        await asyncio.sleep(BEFORE_S)
    fault = Stopped(before[0])
    fault.inject()
    stopped_unix_s = time.time()
    try:
        await asyncio.to_thread(verify, fault)
        load.late_from_s = time.perf_counter() + DIVERTED_S_MAX
        if not is_busy:
            load.start()
        end_s = time.monotonic() + ENDED_S_MAX
        while process_state(fault.pid) not in ("", "Z") and time.monotonic() < end_s:
            await next_look()
        spawned_s = await rig.logged_after("host-a", "runner.spawned", stopped_unix_s) - stopped_unix_s
        await rig.serves(REPLICAS, without=frozenset({fault.pid}))
    finally:
        fault.heal()
    return {
        "fault": f"SIGSTOP runner {fault.pid}, {'busy' if is_busy else 'idle'}",
        "proven": True,
        "figures": {"replaced_s": spawned_s, "stopped": len(set(before[1:]) - await asyncio.to_thread(rig.serving))},
    }


def _judge(rounds: list[Round]) -> list[Figure]:
    load = total([one["load"] for one in rounds])
    figures = [one["figures"] for one in rounds]
    late_s = [ms / 1000 for ms in load["late_ms"]]
    return [
        *failures(rounds, "requests"),
        at_most(f"answers asked for later than {DIVERTED_S_MAX:g} s after", late_s, DIVERTED_S_MAX, "s"),
        at_most("replacement begun", [one["replaced_s"] for one in figures], REPLACED_S_MAX, "s"),
        at_most("longest pause in a stream", [ms / 1000 for ms in load["gap_ms"]], RESUMED_S_MAX, "s"),
        at_least("streams that were resumed", load["resumes"], 1),
        at_most("other runners stopped", [one["stopped"] for one in figures], 0),
    ]


RUNNER_HANGS = Bar(
    number=2,
    key="runner_hang",
    title="one of two runners is stopped by SIGSTOP, busy and idle in turn",
    full=40,
    sample=2,
    unit="stops",
    minutes=7,
    clusters=4,
    run=_run,
    judge=_judge,
)
