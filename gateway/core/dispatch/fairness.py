"""Order of the requests that wait for one model. Pure.

Bands first, then tenants by the tokens that they were given (start-time fair queueing), then arrival. A tenant that was
away saves nothing up and owes nothing: it begins where the others are.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, TypeVar

from gateway.core.keys.keys import Band

# The tenant of all callers where there are no keys.
NO_TENANT = "none"
_TENANTS_REMEMBERED = 1024


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


class Shares:
    """Share of each tenant. `_now` is the virtual time: the start of the last request that got a slot."""

    def __init__(self) -> None:
        """Start without any share."""
        self._now = 0.0
        self._ends: dict[str, float] = {}

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
        self._now = max(self._now, start)
        self._ends[claim.tenant] = start + claim.cost
        if len(self._ends) > _TENANTS_REMEMBERED:
            self._ends = {tenant: end for tenant, end in self._ends.items() if end > self._now}

    def settle(self, claim: SlotClaim, used: int) -> None:
        """Settle a request with its real number of tokens."""
        if claim.tenant in self._ends:
            self._ends[claim.tenant] += (used - claim.tokens) / claim.weight

    def _start(self, tenant: str) -> float:
        return max(self._now, self._ends.get(tenant, 0.0))
