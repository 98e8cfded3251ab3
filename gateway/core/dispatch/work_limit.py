"""Limit of the requests that a gateway prepares at once. Pure: measurements come in.

A gateway that gets more requests than it has processor time for would delay all of them. It refuses those that do not
fit, before it reads their bodies. A request counts from the end of its body until the
first event of its runner, or until it waits for a slot: a slow client, a queue or a long answer take little time.

Source: the gradient limit of Netflix' concurrency-limits (the limit follows target lag / measured lag, at most halved
at once), with the minimum of an interval as the measured lag, as in CoDel (RFC 8289): a burst that is being worked off
raises the maximum, and only a standing queue the minimum.
"""

from dataclasses import dataclass, field

from common.errors import QueueFull

# Processor time of one turn of the event loop: each request that is refused, and each chunk of an answer, waits for it.
LAG_S_TARGET = 0.006
INTERVAL_S = 0.05
# One sample alone may be a pause of the process.
SAMPLES_MIN = 2
# So many may always arrive at once.
LIMIT_MIN = 4
# A burst of the clients of one model; the dispatcher's own limit (PUNA_MAX_QUEUE) is the same by default.
LIMIT_MAX = 512
_SHRINK_MIN = 0.5
_GROWTH = 1.25
# Text that takes about as long to read as a short request takes altogether.
BYTES_OF_A_UNIT = 512 * 1024
RETRY_AFTER_S_MIN, RETRY_AFTER_S_MAX = 1, 3
OVERLOAD_TEXT = "the gateway has too much to do; please try again"


def cost_of(body_bytes: int) -> int:
    """Return the units that a request takes of the limit: one for itself, and more for a large body."""
    return 1 + body_bytes // BYTES_OF_A_UNIT


@dataclass(slots=True)
class WorkLimit:
    """Work in progress and its limit, in units of short requests. Tenants are addresses where there are no keys."""

    limit: float = LIMIT_MAX
    in_progress: int = 0
    by_tenant: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    _peak: int = 0  # of the work in progress since the interval began
    _samples: int = 0
    _lag_s_min: float = 0.0
    _since_s: float = 0.0

    def has_room(self, cost: int) -> bool:
        """Return True if a request of any tenant may begin; one of any size may begin alone."""
        return self.in_progress + cost <= self.limit or not self.in_progress

    def fits(self, cost: int, tenant: str) -> bool:
        """Return True if a request may begin: there is room, or its tenant has less than an equal share."""
        if self.has_room(cost):
            return True
        tenants = len(self.by_tenant.keys() | {tenant})
        return tenants > 1 and self.by_tenant.get(tenant, 0) + cost <= self.limit / tenants

    def check(self, cost: int, tenant: str) -> None:
        """Count a request that does not fit.

        Raises:
            QueueFull: it does not fit now; tell the client when to come again.
        """
        if not self.fits(cost, tenant):
            raise QueueFull(OVERLOAD_TEXT, retry_after_s=self.refuse())

    def refuse(self) -> int:
        """Count a refusal; return the seconds until a retry, which differ so that the clients do not return at once."""
        self.refused += 1
        return RETRY_AFTER_S_MIN + self.refused % (RETRY_AFTER_S_MAX - RETRY_AFTER_S_MIN + 1)

    def begin(self, cost: int) -> None:
        """Count a request whose tenant is not known yet."""
        self.in_progress += cost
        self._peak = max(self._peak, self.in_progress)

    def assign(self, cost: int, tenant: str) -> None:
        """Count a request that has begun to its tenant."""
        self.by_tenant[tenant] = self.by_tenant.get(tenant, 0) + cost

    def end(self, cost: int, tenant: str | None) -> None:
        """Count a request out; None: it was not assigned."""
        self.in_progress -= cost
        if tenant is not None:
            self.by_tenant[tenant] -= cost
            if not self.by_tenant[tenant]:
                del self.by_tenant[tenant]

    def measured(self, *, now_s: float, lag_s: float) -> None:
        """Note a sample of the lag, and adjust the limit at the end of an interval."""
        self._lag_s_min = min(self._lag_s_min, lag_s) if self._samples else lag_s
        self._samples += 1
        if self._samples < SAMPLES_MIN or now_s - self._since_s < INTERVAL_S:
            return
        if self._lag_s_min > LAG_S_TARGET:
            shrunk = min(self.limit, self._peak) * max(LAG_S_TARGET / self._lag_s_min, _SHRINK_MIN)
            self.limit = max(shrunk, LIMIT_MIN)
        else:
            self.limit = min(self.limit * _GROWTH, LIMIT_MAX)
        self._begin_interval(now_s)

    def rest(self, now_s: float) -> None:
        """Forget the limit: there has been nothing to do."""
        self.limit = LIMIT_MAX
        self._begin_interval(now_s)

    def _begin_interval(self, now_s: float) -> None:
        self._samples, self._since_s, self._peak = 0, now_s, self.in_progress
