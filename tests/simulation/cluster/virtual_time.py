"""An event loop whose clock moves only when nothing is left to do: hours pass in seconds, always in the same order."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

WALL_UNIX_S = 1_700_000_000.0


class Deadlock(AssertionError):
    """Nothing runs, and nothing ever will: every task waits for another one."""


class _Selector:
    """Sleeps in no time. No sockets exist in virtual time."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop

    def select(self, timeout_s: float | None) -> list[Any]:
        """Move the clock to the next timer."""
        if timeout_s is None:
            raise Deadlock(f"no timer is set at {self._loop.time():.3f} s")
        self._loop.passed(timeout_s)
        return []

    def close(self) -> None:
        """Do nothing: no descriptor is open."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs tasks and timers of one thread in the order of their times, and of their creation at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._selector = _Selector(self)
        self.wakes = 0  # passes of the loop in which time moved

    def time(self) -> float:
        """Return the virtual time."""
        return self._now_s

    def passed(self, seconds: float) -> None:
        """Move the clock."""
        self._now_s += seconds
        self.wakes += 1

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: no descriptor ever has news."""

    def _write_to_self(self) -> None:
        """Do nothing: other threads do not wake this loop."""


class VirtualClock:
    """A process's clocks: monotonic with a rate of its own, and a wall clock that may be wrong."""

    def __init__(self, loop: VirtualLoop, *, rate: float = 1.0) -> None:
        self._loop = loop
        self.rate = rate
        self.wall_offset_s = 0.0
        self._base_s = 1000.0

    def now_s(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        return self._base_s + self._loop.time() * self.rate

    def wall_unix_s(self) -> float:
        """Seconds since 1970 UTC, as this process believes."""
        return WALL_UNIX_S + self._loop.time() + self.wall_offset_s

    def monotonic_ns(self) -> int:
        """Return nanoseconds, as modules that measure their steps read them."""
        return round(self._loop.time() * 1e9)


def run(loop: VirtualLoop, main: Coroutine[Any, Any, Result]) -> Result:
    """Run to the end of `main`, then end every task that is left."""
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(_settle())
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


async def _settle() -> None:
    while others := [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
        await asyncio.gather(*others, return_exceptions=True)
