"""How much a key has used: requests and tokens by GCRA, and requests at once. Pure: time comes in.

GCRA: a bucket is one number, the time at which it is full again. Tokens are reserved before an answer and settled to
the real number after it, so that a bucket may owe, and then gives nothing until that is paid.
"""

import math
from dataclasses import dataclass, field

from common.errors import RateLimited
from gateway.core.keys.keys import Quota

PERIOD_S = 60.0
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """How a bucket stands."""

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
        """How long until so much may be taken; 0: now. More than the whole bucket counts as the whole bucket."""
        after_s = max(self.full_at_s, now_s) + self._duration_s(min(amount, self.limit))
        # Sums of floats may miss the whole period by their last bits.
        wait_s = after_s - now_s - self.period_s
        return wait_s if wait_s > 1e-6 else 0.0

    def take(self, amount: float, now_s: float) -> None:
        """Take it; ask `wait_s` first."""
        self.full_at_s = max(self.full_at_s, now_s) + self._duration_s(amount)

    def note(self, amount: float, now_s: float) -> None:
        """Somebody else has given it; it counts, but is owed for one period at most."""
        self.take(amount, now_s)
        self.full_at_s = min(self.full_at_s, now_s + self.period_s)

    def settle(self, difference: float) -> None:
        """So much more (or less) than taken was used."""
        self.full_at_s += self._duration_s(difference)

    def level(self, now_s: float) -> Level:
        """How it stands."""
        return level_of(self.limit, self.period_s, max(self.full_at_s - now_s, 0.0))

    def _duration_s(self, amount: float) -> float:
        return amount * self.period_s / self.limit


def level_of(limit: int, period_s: float, full_in_s: float) -> Level:
    """How a bucket stands that is full in so long."""
    left = limit * (1 - full_in_s / period_s)
    return Level(limit=limit, remaining=max(math.floor(left + 1e-6), 0), full_in_s=full_in_s)


class Account:
    """What one key uses of its quota here. `share`: of how many gateways this one is one."""

    def __init__(self, quota: Quota, share: int = 1) -> None:
        """Nothing is used yet."""
        self.quota = quota
        self.share = share
        self.running = 0
        self.requests = _bucket(quota.requests_per_minute, share)
        self.tokens = _bucket(quota.tokens_per_minute, share)
        self.day = _bucket(quota.tokens_per_day, share, DAY_S)

    def change_quota(self, quota: Quota, share: int = 1) -> None:
        """The key or the number of gateways changed: what runs stays counted, a bucket of another limit begins anew.

        Where only the share is another one, what was used is kept: the time at which a bucket is full again.
        """
        before = self.quota
        fresh = Account(quota, share)
        if quota.requests_per_minute == before.requests_per_minute:
            _carry(self.requests, fresh.requests)
        if quota.tokens_per_minute == before.tokens_per_minute:
            _carry(self.tokens, fresh.tokens)
        if quota.tokens_per_day == before.tokens_per_day:
            _carry(self.day, fresh.day)
        self.requests, self.tokens, self.day = fresh.requests, fresh.tokens, fresh.day
        self.quota, self.share = quota, share

    def enter(self, now_s: float) -> None:
        """One more request; `leave` once for each that was let in.

        Raises:
            RateLimited: too many in this minute, or at once.
        """
        most = self.quota.concurrency
        if most is not None and self.running >= max(most // self.share, 1):
            raise too_many_at_once(self.quota)
        if self.requests is not None:
            _check([(self.requests, 1, "requests a minute", self.quota.requests_per_minute)], now_s)
            self.requests.take(1, now_s)
        self.running += 1

    def note_entry(self, now_s: float) -> None:
        """One more request that the shared quota let in."""
        if self.requests is not None:
            self.requests.note(1, now_s)
        self.running += 1

    def leave(self) -> None:
        """A request is over."""
        self.running -= 1

    def reserve(self, tokens: int, now_s: float) -> int:
        """Tokens that a request may come to use; returns what was reserved, for `settle`.

        Raises:
            RateLimited: so many are not left in this minute, or on this day.
        """
        wanted = [
            (bucket, min(tokens, bucket.limit), what, limit)
            for bucket, what, limit in (
                (self.tokens, "tokens a minute", self.quota.tokens_per_minute),
                (self.day, "tokens a day", self.quota.tokens_per_day),
            )
            if bucket is not None
        ]
        _check(wanted, now_s)
        for bucket, _, _, _ in wanted:
            bucket.take(self._reserved(tokens), now_s)
        return self._reserved(tokens) if wanted else 0

    def note_reserve(self, tokens: int, now_s: float) -> int:
        """Tokens that the shared quota gave; returns what counts as reserved here."""
        for bucket in (self.tokens, self.day):
            if bucket is not None:
                bucket.note(self._reserved(tokens), now_s)
        return self._reserved(tokens)

    def settle(self, *, reserved: int, used: int) -> None:
        """The request is over and has used so many."""
        for bucket in (self.tokens, self.day):
            if bucket is not None:
                bucket.settle(used - reserved)

    def levels(self, now_s: float) -> dict[str, Level]:
        """How the buckets stand that clients are told of."""
        named = {"requests": self.requests, "tokens": self.tokens}
        return {name: bucket.level(now_s) for name, bucket in named.items() if bucket is not None}

    def _reserved(self, tokens: int) -> int:
        """One number for both buckets, which no bucket is too small for."""
        return min([tokens, *(bucket.limit for bucket in (self.tokens, self.day) if bucket is not None)])


def too_many_at_once(quota: Quota) -> RateLimited:
    """The refusal of one request too many."""
    return RateLimited(f"this API key may have {quota.concurrency} requests in progress at once", retry_after_s=1.0)


def used_up(limit: int | None, what: str, wait_s: float) -> RateLimited:
    """The refusal of a bucket, `what` as in "tokens a day"."""
    return RateLimited(f"this API key may use {limit} {what}", retry_after_s=wait_s)


def _bucket(limit: int | None, share: int, period_s: float = PERIOD_S) -> Bucket | None:
    return None if limit is None else Bucket(max(limit // share, 1), period_s=period_s)


def _carry(old: Bucket | None, new: Bucket | None) -> None:
    if old is not None and new is not None:
        new.full_at_s = old.full_at_s


def _check(wanted: list[tuple[Bucket, int, str, int | None]], now_s: float) -> None:
    for bucket, amount, what, limit in wanted:
        wait_s = bucket.wait_s(amount, now_s)
        if wait_s > 0:
            raise used_up(limit, what, wait_s)
