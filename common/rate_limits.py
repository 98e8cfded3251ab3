"""Limits of rates by GCRA, and of failed attempts by address. Pure: time is an argument.

A bucket is one number, the time at which it is full again.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass, field

from common.errors import RateLimited, Unauthenticated

PERIOD_S = 60.0
FAILURES_PER_MINUTE = 20
# Addresses that are remembered; the one that failed longest ago is forgotten first.
_ADDRESSES_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketLevel:
    """Level of a bucket."""

    limit: int
    remaining: int
    full_in_s: float


@dataclass(slots=True)
class Bucket:
    """At most `limit` at once and `limit` a period."""

    limit: int
    full_at_s: float = field(default=-math.inf)
    period_s: float = PERIOD_S

    def wait_s(self, amount: float, now_s: float) -> float:
        """Return the time until so much is available; 0: now. More than the whole bucket counts as the whole bucket."""
        after_s = max(self.full_at_s, now_s) + self._duration_s(min(amount, self.limit))
        # Sums of floats may miss the whole period by their last bits.
        wait_s = after_s - now_s - self.period_s
        return wait_s if wait_s > 1e-6 else 0.0

    def take(self, amount: float, now_s: float) -> None:
        """Take it; ask `wait_s` first."""
        self.full_at_s = max(self.full_at_s, now_s) + self._duration_s(amount)

    def note(self, amount: float, now_s: float) -> None:
        """Record a use at another gateway; it counts, but is owed for one period at most."""
        self.take(amount, now_s)
        self.full_at_s = min(self.full_at_s, now_s + self.period_s)

    def settle(self, difference: float) -> None:
        """Correct the use: so much more (or less) than taken."""
        self.full_at_s += self._duration_s(difference)

    def level(self, now_s: float) -> BucketLevel:
        """Return the level."""
        return level_of(self.limit, self.period_s, max(self.full_at_s - now_s, 0.0))

    def _duration_s(self, amount: float) -> float:
        return amount * self.period_s / self.limit


def level_of(limit: int, period_s: float, full_in_s: float) -> BucketLevel:
    """Return the level of a bucket that is full after so long."""
    left = limit * (1 - full_in_s / period_s)
    return BucketLevel(limit=limit, remaining=max(math.floor(left + 1e-6), 0), full_in_s=full_in_s)


class FailedAttempts:
    """Counts failed attempts by address. A good key passes all the same: many people may share an address."""

    def __init__(self) -> None:
        """Start without failures."""
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def refusal(self, error: Unauthenticated, address: str, now_s: float) -> Unauthenticated | RateLimited:
        """Return the error for one more failure."""
        bucket = self._buckets.pop(address, None) or Bucket(FAILURES_PER_MINUTE)
        self._buckets[address] = bucket
        if len(self._buckets) > _ADDRESSES_MAX:
            self._buckets.popitem(last=False)
        wait_s = bucket.wait_s(1, now_s)
        if wait_s > 0:
            return RateLimited("too many failed attempts from this address", retry_after_s=wait_s)
        bucket.take(1, now_s)
        return error
