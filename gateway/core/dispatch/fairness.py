"""Order of the requests that wait for one model. Pure.

Bands first, then tenants by the tokens that they were given (start-time fair queueing), then arrival. A tenant that was
away saves nothing up and owes nothing: it begins where the others are. Tokens that other gateways gave count as if they
were given here, once `Shares.learn` knows of them (`shared_usage`).

Source: Wang and Merchant, Proportional-Share Scheduling for Distributed Storage Systems (FAST 2007), adds what other
coordinators served to a flow's start tag. Here the virtual time also waits for tenants that wait at other gateways.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from typing import NamedTuple, Protocol, TypeVar

from common.spec.bands import Band

# The tenant of all callers where there are no keys.
NO_TENANT = "none"
_TENANTS_REMEMBERED = 1024
# A tenant is ahead of one that waits elsewhere, and may not be served there, by at most the tokens of a long context.
_LEAD_MAX = 65_536.0


class Flow(NamedTuple):
    """Requests of one tenant in one band."""

    tenant: str
    band: Band


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotClaim:
    """The owner of a request for a slot, and the number of its tokens."""

    tenant: str = NO_TENANT
    band: Band = Band.NORMAL
    weight: int = 1
    tokens: int = 1

    @property
    def cost(self) -> float:
        """Return the cost in the tenant's share."""
        return self.tokens / self.weight

    @property
    def flow(self) -> Flow:
        """Return what the request is a part of."""
        return Flow(self.tenant, self.band)


NO_CLAIM = SlotClaim()


class Claimant(Protocol):
    """Waiting request; a lower number came earlier."""

    @property
    def number(self) -> int:
        """Return the number of the request, in order of arrival."""

    @property
    def claim(self) -> SlotClaim:
        """Return the owner."""


Waiting = TypeVar("Waiting", bound=Claimant)


class WaitingCounts:
    """Numbers of the requests that wait for one model, kept so that a request need not look at the others."""

    def __init__(self) -> None:
        """Start with none."""
        self.total = 0
        self._by_band = [0] * len(Band)
        self._by_tenant: dict[str, list[int]] = {}  # and band

    def add(self, claim: SlotClaim, more: int = 1) -> None:
        """Count one more request, or with -1 one that leaves."""
        self.total += more
        self._by_band[claim.band] += more
        counts = self._by_tenant.setdefault(claim.tenant, [0] * len(Band))
        counts[claim.band] += more
        if not any(counts):
            del self._by_tenant[claim.tenant]

    def up_to(self, band: Band) -> int:
        """Return the number of requests that one of a band does not pass."""
        return sum(self._by_band[: band + 1])

    def of_tenant(self, tenant: str, band: Band) -> int:
        """Return how many of them are the tenant's."""
        return sum(self._by_tenant.get(tenant, ())[: band + 1])

    def flows(self) -> list[Flow]:
        """List the flows that wait."""
        return [Flow(tenant, band) for tenant, counts in self._by_tenant.items() for band in Band if counts[band]]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """News of other gateways about one model: cost that each flow was given, and flows that wait for a slot."""

    used: Mapping[Flow, float] = field(default_factory=dict)
    waiting: Collection[Flow] = ()


NOTHING_ELSEWHERE = Elsewhere()


class Shares:
    """Share of each tenant.

    `_now` is the virtual time: the start of the last request that got a slot, but no later than that of a tenant that
    waits at another gateway.
    """

    def __init__(self) -> None:
        """Start without any share."""
        self._now = 0.0
        self._ends: dict[str, float] = {}
        self._waiting_elsewhere: Collection[Flow] = ()

    def order(self, waiting: Iterable[Waiting]) -> list[Waiting]:
        """Sort waiting requests, the next one first."""
        by_tenant = sorted(waiting, key=lambda one: (one.claim.tenant, one.claim.band, one.number))
        keyed: list[tuple[tuple[int, float, int], Waiting]] = []
        for tenant, group in groupby(by_tenant, key=lambda one: one.claim.tenant):
            start = self._start(tenant)
            for one in group:
                keyed.append(((one.claim.band, start, one.number), one))
                start += one.claim.cost
        return [one for _, one in sorted(keyed, key=lambda pair: pair[0])]

    def give(self, claim: SlotClaim) -> None:
        """Note that a slot was given."""
        start = self._start(claim.tenant)
        self._advance({claim.flow: start}, self._waiting_elsewhere)
        self._ends[claim.tenant] = start + claim.cost
        self._forget_those_behind()

    def settle(self, claim: SlotClaim, used: int) -> None:
        """Settle a request with its real number of tokens."""
        if claim.tenant in self._ends:
            self._ends[claim.tenant] += (used - claim.tokens) / claim.weight

    def is_preceded(self, claim: SlotClaim) -> bool:
        """Return True if a free slot belongs to a flow that waits at another gateway.

        It is of a higher band, or behind by more than the request costs.
        """
        mine = (claim.band, self._start(claim.tenant) - claim.cost)
        return any((flow.band, self._start(flow.tenant)) < mine for flow in self._waiting_elsewhere)

    def learn(self, news: Elsewhere, waiting_here: Iterable[Flow]) -> None:
        """Count what other gateways gave, and know what waits there."""
        self._waiting_elsewhere = news.waiting
        starts = {flow: self._start(flow.tenant) for flow, cost in news.used.items() if cost > 0}
        self._advance(starts, {*starts, *news.waiting, *waiting_here})
        for flow, cost in news.used.items():
            if cost > 0 or flow.tenant in self._ends:
                self._ends[flow.tenant] = self._start(flow.tenant) + cost
        self._forget_those_behind()

    def _advance(self, starts: Mapping[Flow, float], waiting: Collection[Flow]) -> None:
        """Let time go on to the starts of flows that were served, up to those that wait and that they do not pass."""
        floors = dict.fromkeys(Band, inf)
        for other in waiting:
            for band in Band:
                if other.band <= band:
                    floors[band] = min(floors[band], self._start(other.tenant))
        ends = [max(min(start, floors[flow.band]), start - _LEAD_MAX) for flow, start in starts.items()]
        self._now = max([self._now, *ends])

    def _forget_those_behind(self) -> None:
        if len(self._ends) > _TENANTS_REMEMBERED:
            self._ends = {tenant: end for tenant, end in self._ends.items() if end > self._now}

    def _start(self, tenant: str) -> float:
        return max(self._now, self._ends.get(tenant, 0.0))
