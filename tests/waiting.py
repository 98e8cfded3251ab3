"""Wait for conditions, never for time, and hold bounds on real seconds.

A bound counts wall time, the work of the test's own cluster included. Where it is missed while processes of others took
the processors, nothing was measured: the test is skipped with that reason, and never passes.
"""

import asyncio
import contextlib
import os
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

POLL_S = 0.02
# A wait on a machine that others keep busy ends after so many times its deadline.
_PATIENCE = 5.0
# Others disturb a measurement from this share of all processors, unless so much of them was idle.
OTHERS_SHARE_MAX = 0.1
IDLE_SHARE_MIN = 0.5
_TICKS_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class OwnProcess:
    """A process of the test's tree. `reaped_s` is what its dead children used."""

    parent: tuple[int, int] | None
    used_s: float
    reaped_s: float


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds of processors since the machine started, and those of this process and its descendants."""

    at_s: float
    busy_s: float
    processes: dict[tuple[int, int], OwnProcess]  # by process id and start time


# Processes that were once in the tree stay in it when their parent dies.
_known: set[tuple[int, int]] = set()


def sample_usage() -> Usage:
    """Read /proc. Interrupts are left out: Linux does not say for which process they work."""
    rows: dict[int, tuple[int, int, float, float]] = {}  # parent, start, used, reaped
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            user, system, children_user, children_system = (int(field) for field in fields[11:15])
            used_s, reaped_s = (user + system) / _TICKS_S, (children_user + children_system) / _TICKS_S
            rows[int(entry.name)] = (int(fields[1]), int(fields[19]), used_s, reaped_s)
    children: dict[int, list[int]] = {}
    for pid, row in rows.items():
        children.setdefault(row[0], []).append(pid)
    pending = [os.getpid(), *(pid for pid, start in _known if pid in rows and rows[pid][1] == start)]
    found: dict[tuple[int, int], OwnProcess] = {}
    while pending:
        pid = pending.pop()
        if pid not in rows or (key := (pid, rows[pid][1])) in found:
            continue
        parent_pid, _, used_s, reaped_s = rows[pid]
        parent = (parent_pid, rows[parent_pid][1]) if parent_pid in rows else None
        found[key] = OwnProcess(parent, used_s, reaped_s)
        pending += children.get(pid, ())
    _known.clear()
    _known.update(found)
    times = (
        Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )  # user, nice, system; the eighth: stolen by guests
    busy_s = sum(int(times[index]) for index in (0, 1, 2, 7)) / _TICKS_S
    return Usage(time.monotonic(), busy_s, found)


def own_used_s(before: Usage, after: Usage) -> float:
    """Return the seconds of processors that the test's tree used in between, its dead processes included."""
    total_s = 0.0
    for key, now in after.processes.items():
        then = before.processes.get(key)
        total_s += now.used_s + now.reaped_s - (then.used_s + then.reaped_s if then else 0.0)
    for key, then in before.processes.items():
        # What a process used before it died moved to its parent, the part from before the measurement as well.
        if key not in after.processes and then.parent in after.processes:
            total_s -= then.used_s + then.reaped_s
    return total_s


class Stopwatch:
    """Wall time since it was made, and how much others disturbed it."""

    def __init__(self, sample: Callable[[], Usage] = sample_usage) -> None:
        self._sample = sample
        self._before = sample()
        self._start_s = time.monotonic()

    @property
    def wall_s(self) -> float:
        return time.monotonic() - self._start_s

    def disturbance(self) -> str:
        """Describe how other processes kept this test from the processors; empty: they did not."""
        after = self._sample()
        capacity_s = (os.cpu_count() or 1) * (after.at_s - self._before.at_s)
        if capacity_s <= 0:
            return ""
        busy_s = after.busy_s - self._before.busy_s
        share = (busy_s - own_used_s(self._before, after)) / capacity_s
        if share <= OTHERS_SHARE_MAX or busy_s / capacity_s < 1 - IDLE_SHARE_MIN:
            return ""
        return f"other processes used {share:.0%} of the processors"

    def assert_within(self, bound_s: float, what: str, *, took_s: float | None = None) -> None:
        """Fail if it took longer, as measured by the caller or by this watch; skip if others may be the reason."""
        took_s = self.wall_s if took_s is None else took_s
        if took_s <= bound_s:
            return
        found = f"{what}: {took_s:.2f} s, allowed are {bound_s:g} s"
        if disturbance := self.disturbance():
            pytest.skip(f"not measurable here: {found}, while {disturbance}")
        pytest.fail(found)

    def is_past(self, deadline_s: float) -> bool:
        """Return True if a wait is over: after its deadline, or later on a machine that others keep busy."""
        wall_s = self.wall_s
        return wall_s > deadline_s and (wall_s > _PATIENCE * deadline_s or not self.disturbance())


def _report_late(watch: Stopwatch, deadline_s: float, what: str) -> None:
    if (wall_s := watch.wall_s) > deadline_s + POLL_S:
        warnings.warn(f"after {wall_s:.1f} s instead of {deadline_s:g} s on a busy machine: {what}", stacklevel=3)


def wait_until(condition: Callable[[], bool], *, deadline_s: float, what: str) -> None:
    """Return once the condition holds; fail with `what` when it does not within the deadline."""
    pause = threading.Event()
    watch = Stopwatch()
    while not condition():
        assert not watch.is_past(deadline_s), f"not within {deadline_s} s: {what}"
        pause.wait(POLL_S)
    _report_late(watch, deadline_s, what)


async def until(condition: Callable[[], bool], *, deadline_s: float = 20.0, what: str) -> None:
    """As `wait_until`, while the event loop runs on."""
    watch = Stopwatch()
    while not condition():
        assert not watch.is_past(deadline_s), f"not within {deadline_s} s: {what}"
        await next_look()
    _report_late(watch, deadline_s, what)


async def next_look(after_s: float = POLL_S) -> None:
    """The interval between two looks at something that cannot tell by itself that it changed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(after_s):
            await asyncio.Event().wait()
