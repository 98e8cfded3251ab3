"""Time that a test moves."""

from common.clock import SystemClock


class SetClock(SystemClock):
    """A clock that the test moves."""

    moved_s = 0.0

    def now_s(self) -> float:
        return 100.0 + self.moved_s
