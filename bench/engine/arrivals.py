"""Bytes with their time of arrival."""

import asyncio
import bisect
import time
from collections.abc import Callable
from typing import cast


class Arrivals(asyncio.Protocol):
    """Stores what one connection receives, and when; everything else is done after the measurement."""

    def __init__(self, on_data: Callable[["Arrivals"], None] | None = None) -> None:
        """`on_data` is called after each arrival, for protocols that want answers."""
        self.data = bytearray()
        self.closed = asyncio.Event()
        self.transport: asyncio.Transport | None = None
        self._ends: list[int] = []
        self._times_s: list[float] = []
        self._on_data = on_data

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it for writing."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Note the time first."""
        self._times_s.append(time.perf_counter())
        self.data += data
        self._ends.append(len(self.data))
        if self._on_data is not None:
            self._on_data(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's name
        """Record that the peer closed the connection."""
        self.closed.set()

    def time_s(self, end: int) -> float:
        """Return the time at which the byte before offset `end` arrived."""
        return self._times_s[bisect.bisect_left(self._ends, end)]

    @property
    def last_s(self) -> float:
        """Return the time at which the last byte arrived."""
        return self._times_s[-1]
