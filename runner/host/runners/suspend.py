"""Notices that the machine slept: the boot clock ran on while the monotonic one stood still."""

import time
from collections.abc import Callable

# The two are read one after the other, and drift apart by less than this.
NOTICED_S = 1.0


def suspended_s() -> float:
    """For how long the machine has been asleep since it was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


class SleepWatch:
    """Compares from look to look."""

    def __init__(self, read: Callable[[], float] = suspended_s) -> None:
        self._read = read
        self._slept_s = read()

    def woke_up(self) -> bool:
        """Whether the machine slept since the last look."""
        before, self._slept_s = self._slept_s, self._read()
        return self._slept_s - before > NOTICED_S
