"""How much a key has used: requests and tokens a minute (GCRA), and requests at once. Pure: time comes in.

GCRA: a bucket is one number, the time at which it is full again. Tokens are reserved before an answer and settled to
the real number after it, so that a bucket may owe, and then gives nothing until that is paid.
"""

import math
from dataclasses import dataclass, field

from common.errors import RateLimited
from gateway.core.keys import Quota

PERIOD_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How a bucket stands."""

    limit: int
    remaining: int
    full_in_s: float


@dataclass(slots=True)
class Bucket:
    """At most `limit` at once and `limit` a minute."""

    limit: int
    full_at_s: float = field(default=-math.inf)

    def wait_s(self, amount: float, now_s: float) -> float:
        """How long until so much may be taken; 0: now. More than the whole bucket counts as the whole bucket."""
        after_s = max(self.full_at_s, now_s) + self._duration_s(min(amount, self.limit))
        # Sums of floats may miss the whole period by their last bits.
        wait_s = after_s - now_s - PERIOD_S
        return wait_s if wait_s > 1e-6 else 0.0

    def take(self, amount: float, now_s: float) -> None:
        """Take it; ask `wait_s` first."""
        self.full_at_s = max(self.full_at_s, now_s) + self._duration_s(amount)

    def settle(self, difference: float) -> None:
        """So much more (or less) than taken was used."""
        self.full_at_s += self._duration_s(difference)

    def level(self, now_s: float) -> Level:
        """How it stands."""
        full_in_s = max(self.full_at_s - now_s, 0.0)
        left = self.limit * (1 - full_in_s / PERIOD_S)
        return Level(limit=self.limit, remaining=max(math.floor(left + 1e-6), 0), full_in_s=full_in_s)

    def _duration_s(self, amount: float) -> float:
        return amount * PERIOD_S / self.limit


class Account:
    """What one key uses of its quota."""

    def __init__(self, quota: Quota) -> None:
        """Nothing is used yet."""
        self.quota = quota
        self.running = 0
        self.requests = _bucket(quota.requests_per_minute)
        self.tokens = _bucket(quota.tokens_per_minute)

    def change_quota(self, quota: Quota) -> None:
        """The key was changed: buckets whose limit is another one begin anew, what runs stays counted."""
        if quota.requests_per_minute != self.quota.requests_per_minute:
            self.requests = _bucket(quota.requests_per_minute)
        if quota.tokens_per_minute != self.quota.tokens_per_minute:
            self.tokens = _bucket(quota.tokens_per_minute)
        self.quota = quota

    def enter(self, now_s: float) -> None:
        """One more request; `leave` once for each that was let in.

        Raises:
            RateLimited: too many in this minute, or at once.
        """
        if self.quota.concurrency is not None and self.running >= self.quota.concurrency:
            raise RateLimited(
                f"this API key may have {self.quota.concurrency} requests in progress at once", retry_after_s=1.0
            )
        _take(self.requests, 1, now_s, "requests")
        self.running += 1

    def leave(self) -> None:
        """A request is over."""
        self.running -= 1

    def reserve(self, tokens: int, now_s: float) -> int:
        """Tokens that a request may come to use; returns what was reserved, for `settle`.

        Raises:
            RateLimited: so many are not left in this minute.
        """
        if self.tokens is None:
            return 0
        reserved = min(tokens, self.tokens.limit)
        _take(self.tokens, reserved, now_s, "tokens")
        return reserved

    def settle(self, *, reserved: int, used: int) -> None:
        """The request is over and has used so many."""
        if self.tokens is not None:
            self.tokens.settle(used - reserved)


def _bucket(limit: int | None) -> Bucket | None:
    return None if limit is None else Bucket(limit)


def _take(bucket: Bucket | None, amount: int, now_s: float, what: str) -> None:
    if bucket is None:
        return
    wait_s = bucket.wait_s(amount, now_s)
    if wait_s > 0:
        raise RateLimited(f"this API key may use {bucket.limit} {what} a minute", retry_after_s=wait_s)
    bucket.take(amount, now_s)
