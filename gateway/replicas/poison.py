"""Requests that ended replicas, for schedulers: it was not the model's fault."""

import asyncio
import contextlib
from collections.abc import Sequence

from common.clock import Clock
from gateway.core.models.routes import ReplicaInfo

# For so long a request is named: a scheduler that restarts, or begins to lead, hears of it all the same.
REPORTED_S = 10.0
_REQUESTS_MAX = 64


class PoisonRequests:
    """Those of the last seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[bytes, tuple[tuple[ReplicaInfo, ...], float]] = {}
        self._news = asyncio.Event()

    def add(self, name: bytes, crashed: Sequence[ReplicaInfo]) -> None:
        """Note the replicas that crashed under the request of this name, which is refused from now on."""
        before, _ = self._known.pop(name, ((), 0.0))
        self._known[name] = (*before, *crashed), self._clock.now_s() + REPORTED_S
        while len(self._known) > _REQUESTS_MAX:
            del self._known[next(iter(self._known))]
        self._news.set()

    def known(self) -> list[tuple[bytes, tuple[ReplicaInfo, ...]]]:
        """List the requests to report now, with the replicas that they ended."""
        now_s = self._clock.now_s()
        self._known = {name: one for name, one in self._known.items() if now_s < one[1]}
        return [(name, crashed) for name, (crashed, _) in self._known.items()]

    async def news_within(self, seconds: float) -> None:
        """Return after so long, or at once where something was added since the last call."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        self._news.clear()
