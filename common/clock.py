"""Time as shells hand it to pure code: monotonic for durations, wall clock only for what people read."""

import time
from datetime import UTC, datetime
from typing import Protocol

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
MS_PER_S = 1000


class Clock(Protocol):
    """Clock of the shells; tests replace it."""

    def now_s(self) -> float:
        """Seconds since an arbitrary start; never goes back."""

    def wall_unix_s(self) -> float:
        """Seconds since 1970 UTC."""


class SystemClock:
    """The machine's clocks."""

    def now_s(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall_unix_s(self) -> float:
        """Wall-clock seconds since 1970 UTC."""
        return time.time()


def rfc3339_ns(unix_ns: int) -> str:
    """RFC 3339 in UTC with nanoseconds, as Ollama's `created_at`."""
    whole_s, rest_ns = divmod(unix_ns, NS_PER_S)
    return f"{datetime.fromtimestamp(whole_s, UTC):%Y-%m-%dT%H:%M:%S}.{rest_ns:09d}Z"
