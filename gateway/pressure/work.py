"""Work in progress of this process: requests that are being prepared, and the time that they take."""

import time

from gateway.core.dispatch.work_limit import WorkLimit, cost_of

# Of this process.
WORK = WorkLimit()
# The clock of the limit, on the event loop: what other processes and threads do is no work of the loop.
work_s = time.thread_time


class RequestWork:
    """Part of the work in progress: one request, until a runner has it, it waits for a slot, or it ends."""

    __slots__ = ("_begun_s", "_cost", "_tenant", "_units")

    def __init__(self, body_bytes: int) -> None:
        """Begin."""
        self._cost = cost_of(body_bytes)
        self._tenant: str | None = None
        self._begun_s = work_s()
        self._units = WORK.begin(self._cost)

    def assign(self, tenant: str) -> None:
        """Name its tenant."""
        if self._tenant is None and self._cost:
            self._tenant = tenant
            WORK.assign(self._cost, tenant)

    def end(self) -> None:
        """Release its part; once is enough."""
        if self._cost:
            WORK.end(self._cost, self._tenant, units=self._units, took_s=work_s() - self._begun_s)
            self._cost = 0
