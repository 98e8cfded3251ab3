"""Limit of the requests that a gateway prepares at once. Pure: the clock is an argument.

A gateway that gets more requests than it has processor time for would delay all of them. It refuses those that do not
fit, before it reads their bodies. A request counts from the end of its body until its start is on the way to a runner,
or until it waits for a slot: a slow client, a queue, a runner or a long answer take little time.

Times are processor time of the thread that does the work. A request that waits for another process ages only by what
is done for others meanwhile, so a slow Redis, template or neighbour is no overload.

Source: Little's law gives the work in progress that is done within a target from the time of one request; as in CoDel
(RFC 8289), only work that stands above the target for an interval is refused, so a burst is worked off. Waiting time,
not response time, as the signal: DAGOR (Zhou et al., Overload Control for Scaling WeChat Microservices, 2018).
"""

from dataclasses import dataclass, field

from common.errors import QueueFull

# Work that is in progress, at most, while more comes than is done.
TARGET_S = 0.04
# Work may stand above the target for so long.
INTERVAL_S = 0.05
# So many may always arrive at once.
LIMIT_MIN = 8
# A burst of the clients of one model; the dispatcher's own limit (PUNA_MAX_QUEUE) is the same by default.
LIMIT_MAX = 512
# Weight of the newest request in the measured time of one.
_NEWEST = 1 / 16
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
    unit_s: float = 0.0  # that one unit takes, on average
    _above_since_s: float | None = None  # work has stood above the target since; None: it does not

    def has_room(self, cost: int, now_s: float) -> bool:
        """Return True if a request of any tenant may begin; one of any size may begin alone."""
        self._look(now_s)
        return self.in_progress + cost <= self.limit or not self.in_progress

    def fits(self, cost: int, tenant: str, now_s: float) -> bool:
        """Return True if a request may begin: there is room, or its tenant has less than an equal share."""
        if self.has_room(cost, now_s):
            return True
        tenants = len(self.by_tenant.keys() | {tenant})
        return tenants > 1 and self.by_tenant.get(tenant, 0) + cost <= self.limit / tenants

    def check(self, cost: int, tenant: str, now_s: float) -> None:
        """Count a request that does not fit.

        Raises:
            QueueFull: it does not fit now; tell the client when to come again.
        """
        if not self.fits(cost, tenant, now_s):
            raise QueueFull(OVERLOAD_TEXT, retry_after_s=self.refuse())

    def refuse(self) -> int:
        """Count a refusal; return the seconds until a retry, which differ so that the clients do not return at once."""
        self.refused += 1
        return RETRY_AFTER_S_MIN + self.refused % (RETRY_AFTER_S_MAX - RETRY_AFTER_S_MIN + 1)

    def begin(self, cost: int) -> int:
        """Count a request whose tenant is not known yet; return the work in progress, itself included."""
        self.in_progress += cost
        return self.in_progress

    def assign(self, cost: int, tenant: str) -> None:
        """Count a request that has begun to its tenant."""
        self.by_tenant[tenant] = self.by_tenant.get(tenant, 0) + cost

    def end(self, cost: int, tenant: str | None, *, units: int, took_s: float) -> None:
        """Count a request out, as it was assigned, that took so long for itself and the `units` before it."""
        self.in_progress -= cost
        if tenant is not None:
            self.by_tenant[tenant] -= cost
            if not self.by_tenant[tenant]:
                del self.by_tenant[tenant]
        self.unit_s += _NEWEST * (took_s / units - self.unit_s)
        if not self.in_progress:  # nothing stands, so the next ones are a burst
            self.limit, self._above_since_s = LIMIT_MAX, None

    def _look(self, now_s: float) -> None:
        """Set the limit: to the target, once work has stood above it for an interval and until there is none."""
        is_above = self.in_progress * self.unit_s > TARGET_S
        if self.limit == LIMIT_MAX and not is_above:
            self._above_since_s = None
        elif self._above_since_s is None:
            self._above_since_s = now_s
        elif now_s - self._above_since_s >= INTERVAL_S:
            self.limit = min(max(TARGET_S / self.unit_s, LIMIT_MIN), LIMIT_MAX)
