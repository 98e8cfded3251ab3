"""Work in progress of this process: requests that are being prepared, and the lag that they cause."""

import asyncio
import time

from gateway.core.dispatch.work_limit import WorkLimit, cost_of

# Between two samples, while there is work.
SAMPLE_S = 0.005
# Without work for so long, there is no lag to be measured.
REST_S = 0.1

# Of this process.
WORK = WorkLimit()


class LagSampler:
    """Samples the processor time of one turn of the event loop while there is work.

    Other processes that take the processor make a turn longer, and no gateway quicker that refuses requests: so of the
    time and the processor time of the turn the shorter one is its lag.
    """

    def __init__(self, work: WorkLimit) -> None:
        """Begin without a sample."""
        self._work = work
        self._loop: asyncio.AbstractEventLoop | None = None  # None: not sampling
        self._turn: tuple[float, float] = (0.0, 0.0)
        self._busy_s = 0.0

    def wake(self) -> None:
        """Sample until there has been no work for a while."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._busy_s = time.monotonic()
            self._work.rest(self._busy_s)
            loop.call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        assert self._loop is not None
        self._turn = (time.monotonic(), time.process_time())
        self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        assert self._loop is not None
        now_s = time.monotonic()
        lag_s = min(now_s - self._turn[0], time.process_time() - self._turn[1])
        self._work.measured(now_s=now_s, lag_s=lag_s)
        if self._work.in_progress:
            self._busy_s = now_s
        elif now_s - self._busy_s > REST_S:
            self._work.rest(now_s)
            self._loop = None
            return
        self._loop.call_later(SAMPLE_S, self._begin_turn)


_SAMPLER = LagSampler(WORK)


class RequestWork:
    """Part of the work in progress: one request, until it waits for a slot or ends."""

    __slots__ = ("_cost", "_tenant")

    def __init__(self, body_bytes: int) -> None:
        """Begin."""
        self._cost = cost_of(body_bytes)
        self._tenant: str | None = None
        WORK.begin(self._cost)
        _SAMPLER.wake()

    def assign(self, tenant: str) -> None:
        """Name its tenant."""
        if self._tenant is None and self._cost:
            self._tenant = tenant
            WORK.assign(self._cost, tenant)

    def end(self) -> None:
        """Release its part; once is enough."""
        if self._cost:
            WORK.end(self._cost, self._tenant)
            self._cost = 0
