"""Wait for conditions, never for time: every wait ends as soon as the condition holds and fails at its deadline.

Deadlines and bounds are in seconds of a machine that is not overloaded: `Stopwatch` says which seconds count.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

POLL_S = 0.02
# On a machine where somebody always waits, a deadline ends after so many times its seconds.
_PATIENCE = 5.0
_PRESSURE = (Path("/proc/pressure/cpu"), Path("/proc/pressure/io"))


class Stopwatch:
    """Seconds since it was made, less those in which something on this machine had to wait for a processor or a disk.

    So a bound is as sharp as it reads where nothing else runs, and a process that others starve does not break it.
    Where Linux does not count these waits, all seconds count.
    """

    def __init__(self) -> None:
        self._start_s = time.monotonic()
        self._waited_s = _waited_s()

    @property
    def wall_s(self) -> float:
        """Seconds since it was made, all of them."""
        return time.monotonic() - self._start_s

    @property
    def elapsed_s(self) -> float:
        return max(0.0, self.wall_s - (_waited_s() - self._waited_s))

    def is_past(self, deadline_s: float) -> bool:
        """Return True if a deadline is over, with all the patience that an overloaded machine gets."""
        wall_s = self.wall_s
        return wall_s > deadline_s and (self.elapsed_s > deadline_s or wall_s > _PATIENCE * deadline_s)


def _waited_s() -> float:
    """Seconds in which something waited, since the start of the machine, as if no two processors' waits overlapped."""
    waited_s = 0.0
    with contextlib.suppress(OSError):
        for file in _PRESSURE:  # "some avg10=0.00 avg60=0.00 avg300=0.00 total=1", the mean of all processors
            waited_s += int(file.read_text().split("total=")[1].split()[0]) / 1e6 * (os.cpu_count() or 1)
        stolen = Path("/proc/stat").read_text().split()[8]  # by other guests of the same machine
        waited_s += int(stolen) / os.sysconf("SC_CLK_TCK")
    return waited_s


def wait_until(condition: Callable[[], bool], *, deadline_s: float, what: str) -> None:
    """Return once the condition holds; fail with `what` when it does not within the deadline."""
    pause = threading.Event()
    watch = Stopwatch()
    while not condition():
        assert not watch.is_past(deadline_s), f"not within {deadline_s} s: {what}"
        pause.wait(POLL_S)


async def until(condition: Callable[[], bool], *, deadline_s: float = 20.0, what: str) -> None:
    """As `wait_until`, while the event loop runs on."""
    watch = Stopwatch()
    while not condition():
        assert not watch.is_past(deadline_s), f"not within {deadline_s} s: {what}"
        await next_look()


async def next_look(after_s: float = POLL_S) -> None:
    """The interval between two looks at something that cannot tell by itself that it changed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(after_s):
            await asyncio.Event().wait()
