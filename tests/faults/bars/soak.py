"""Bar 20: hours under load with a fault a minute; memory and descriptors of every process stay flat.

Faults hit the second node, its runners and the standby, or only stop a process for a while, so that one process of
each kind lives through all of them. The slope test: of each minute after the warm-up, of the run and of a process, the
least resident memory and the least number of descriptors count; the slope of a process is the median of the slopes
between all pairs of its minutes (Theil and Sen). Only minutes count in which the process had as many children as in
most: a host has descriptors for each runner. A process is judged if its minutes span half of that time.
"""

import asyncio
import os
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import combinations
from pathlib import Path

from tests.faults.bars.bar import Bar, Figure, Round, at_least, at_most
from tests.faults.bars.open_loop import OpenLoop, total
from tests.faults.bars.rig import Rig, running_rig
from tests.faults.bars.suites import judge_tests, run_tests
from tests.faults.faults import Killed, Stopped, verify
from tests.waiting import next_look

PER_SECOND = 4.0
FAKE = {"step_s": 0.02}
NODES = ("a", "b")
REPLICAS = 2
FULL_S = 7200
MINUTE_S = 60.0
SAMPLED_EVERY_S = 5.0
WARM_UP_SHARE = 0.2  # of the whole time
WARM_UP_S = 120.0  # of a process
STANDS_S = 5.0
SLOPE_MIB_MAX = 1.0  # an hour
# What a process may grow in a run that is too short for a slope of a MiB an hour: whole arenas of its allocator.
GROWTH_MIB_MAX = 8.0
AVAILABLE_MIN = 99.5
EXPLICIT = ("error ", "status ")
_MIB = 2**20

# By process: a minute's time, least bytes, least descriptors, children; CHANGED if their number did.
Series = dict[str, list[tuple[float, int, int, int]]]
CHANGED = -1


def slope(points: Sequence[tuple[float, float]]) -> float | None:
    """The median slope between all pairs of points, per hour; None: there are not two."""
    found = [(later[1] - one[1]) / (later[0] - one[0]) for one, later in combinations(points, 2) if later[0] != one[0]]
    return 3600 * statistics.median(found) if found else None


class Processes:
    """Memory and descriptors of every process of a cluster, by minute."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._begun_s = time.monotonic()
        self._minutes: dict[tuple[str, int], tuple[int, int, int]] = {}

    async def watch(self) -> None:
        while True:
            await asyncio.to_thread(self.sample)
            await next_look(SAMPLED_EVERY_S)

    def sample(self) -> None:
        """Take note of every process that there is now."""
        minute = int((time.monotonic() - self._begun_s) / MINUTE_S)
        for name, pid, children in self._found():
            with suppress(OSError, IndexError):
                status = Path(f"/proc/{pid}/status").read_text()
                size_bytes = 1024 * int(status.split("VmRSS:")[1].split()[0])
                descriptors = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208
                key = (f"{name} {pid}", minute)
                least = self._minutes.get(key, (size_bytes, descriptors, children))
                same = children if least[2] == children else CHANGED
                self._minutes[key] = (min(least[0], size_bytes), min(least[1], descriptors), same)

    def series(self) -> Series:
        found: Series = defaultdict(list)
        for (name, minute), figures in sorted(self._minutes.items(), key=lambda one: one[0][1]):
            found[name].append((minute * MINUTE_S, *figures))
        return dict(found)

    def _found(self) -> list[tuple[str, int, int]]:
        """Services and all processes below them, and the number of children of each."""
        children: dict[int, list[int]] = defaultdict(list)
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with suppress(OSError, IndexError):
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    children[parent].append(int(entry.name))
        found = []
        for name, process in list(self._rig.running.items()):
            pending = [process.pid]
            while pending:
                pid = pending.pop()
                found.append((name if pid == process.pid else f"child of {name}", pid, len(children[pid])))
                pending += children[pid]
        return found


async def _run(directory: Path, numbers: Sequence[int], size: int) -> AsyncIterator[Round]:
    del numbers  # slopes need one long run
    async with running_rig(directory, replicas=REPLICAS, schedulers=2, nodes=NODES, fake=FAKE) as rig:
        processes = Processes(rig)
        begun_s = time.monotonic()
        async with OpenLoop(rig.gateways, PER_SECOND) as load:
            watching = asyncio.create_task(processes.watch())
            number = 0
            while (left_s := begun_s + size - time.monotonic()) > MINUTE_S / 2:
                minute = asyncio.create_task(asyncio.sleep(min(MINUTE_S, left_s)))
                name, fault = FAULTS[number % len(FAULTS)]
                proven = await fault(rig)
                await minute
                number += 1
                yield {"fault": name, "proven": proven, "load": load.take()}
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await load.stop()
            yield {"load": load.take(), "seconds": time.monotonic() - begun_s, "processes": processes.series()}
    if size >= FULL_S:
        yield await run_tests(["tests/e2e/test_posture.py"])


def _runner(rig: Rig, node: str) -> int:
    """Process id of a runner of a node that serves; 0: it has none."""
    runners = [one for found in rig.nodes() if found["id"] == node for one in found.get("runners", ())]
    return next((int(one["pid"]) for one in runners if one["state"] in ("ready", "no_slots")), 0)


async def _kill_runner(rig: Rig) -> bool:
    pid = await asyncio.to_thread(_runner, rig, "b") or await asyncio.to_thread(_runner, rig, "a")
    fault = Killed(pid)
    fault.inject()
    await asyncio.to_thread(verify, fault)
    await rig.serves(REPLICAS, without=frozenset({pid}))
    return True


async def _replace(rig: Rig, name: str) -> bool:
    """Kill a service and start it again."""
    event = f"{name.partition('-')[0]}.ready"
    ready = len(rig.events(name, event))
    has_ended = await asyncio.to_thread(rig.kill, name)
    await next_look(1.0)
    rig.start(name)
    await rig.logged(name, event, ready + 1)
    await rig.serves(REPLICAS)
    return has_ended


async def _stand(rig: Rig, name: str) -> bool:
    """Stop a service for a while."""
    fault = Stopped(rig.running[name].pid)
    fault.inject()
    try:
        await asyncio.to_thread(verify, fault)
        await asyncio.sleep(STANDS_S)
    finally:
        fault.heal()
    return True


FAULTS: tuple[tuple[str, Callable[[Rig], Awaitable[bool]]], ...] = (
    ("SIGKILL of a runner", _kill_runner),
    ("SIGSTOP of discovery", lambda rig: _stand(rig, "discovery")),
    ("SIGKILL of scheduler-1", lambda rig: _replace(rig, "scheduler-1")),
    ("SIGSTOP of Redis", lambda rig: _stand(rig, "redis")),
    ("SIGKILL of host-b", lambda rig: _replace(rig, "host-b")),
    ("SIGSTOP of scheduler-0", lambda rig: _stand(rig, "scheduler-0")),
)


def slopes(series: Series, seconds: float) -> dict[str, dict[str, float]]:
    """MiB and descriptors an hour, and MiB in all, of each process that lived through half of the time."""
    from_s = WARM_UP_SHARE * seconds
    found = {}
    for name, points in series.items():
        warm = [point for point in points if point[0] >= max(from_s, points[0][0] + WARM_UP_S)]
        usual = statistics.mode([point[3] for point in warm] or [CHANGED])
        warm = [point for point in warm if point[3] == usual != CHANGED]
        memory = slope([(at_s, size_bytes / _MIB) for at_s, size_bytes, _, _ in warm])
        descriptors = slope([(at_s, count) for at_s, _, count, _ in warm])
        if memory is not None and descriptors is not None and warm[-1][0] - warm[0][0] >= (seconds - from_s) / 2:
            grown = (min(warm[-1][1], warm[-2][1]) - warm[0][1]) / _MIB
            found[name] = {"mib_per_h": memory, "descriptors_per_h": descriptors, "grown_mib": grown}
    return found


def _judge(rounds: list[Round]) -> list[Figure]:
    last = next((one for one in rounds if "processes" in one), None)
    if last is None:
        return [at_least("rounds that ended", 0, 1)]
    found = slopes(last["processes"], last["seconds"])
    load = total([one["load"] for one in rounds if "load" in one])
    silent = sum(count for kind, count in load["other"].items() if not kind.startswith(EXPLICIT))
    is_full = last["seconds"] >= FULL_S
    memory = at_most("memory, MiB an hour", [one["mib_per_h"] for one in found.values()], SLOPE_MIB_MAX)
    if not is_full:
        why = f"≤ {SLOPE_MIB_MAX:g} in {FULL_S} s; not judged in less"
        memory = Figure(name=memory.name, asked=why, measured=memory.measured, met=memory.measured is not None)
    return [
        at_least("processes with a slope", len(found), 1),
        memory,
        at_most("memory grown after the warm-up, MiB", [one["grown_mib"] for one in found.values()], GROWTH_MIB_MAX),
        at_most("descriptors an hour", [one["descriptors_per_h"] for one in found.values()], 1.0),
        at_least(
            "requests answered", round(100 * load["ok"] / max(1, load["asked"]), 3), AVAILABLE_MIN, "%", is_timed=False
        ),
        at_most("failures without an explicit error", [silent], 0),
        *(judge_tests(rounds) if is_full else ()),
    ]


SOAK = Bar(
    number=20,
    key="soak",
    title="hours under load with a fault a minute; posture",
    full=FULL_S,
    sample=0,
    unit="seconds",
    minutes=125,
    is_throughout=True,
    per_round=0,
    run=_run,
    judge=_judge,
)
