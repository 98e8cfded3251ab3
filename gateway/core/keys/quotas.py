"""Quotas of keys: requests and tokens by GCRA, concurrent requests. Pure: time is an argument.

Tokens are reserved before an answer and settled to the real number after it, so that a bucket may owe, and then gives
nothing until that is paid.
"""

from common.errors import RateLimited
from common.rate_limits import PERIOD_S, Bucket, BucketLevel
from gateway.core.keys.keys import Quota

DAY_S = 86_400.0
# Of the buckets of a quota, and their words in a refusal.
PERIODS_S = {"requests": PERIOD_S, "tokens": PERIOD_S, "day": DAY_S}
_WHAT = {"requests": "requests a minute", "tokens": "tokens a minute", "day": "tokens a day"}


class Account:
    """Use of one key's quota here. `share`: the number of gateways that share it."""

    def __init__(self, quota: Quota, share: int = 1) -> None:
        """Start with nothing used."""
        self.quota = quota
        self.share = share
        self.running = 0
        self._buckets = _buckets(quota, share)

    def change_quota(self, quota: Quota, share: int = 1) -> None:
        """Change the quota, for a new key or number of gateways.

        Running requests stay counted, a bucket of another limit is new. Where only the share is another one, what was
        used is kept: the time at which a bucket is full again.
        """
        before, fresh = self.quota.limits, _buckets(quota, share)
        for name, bucket in fresh.items():
            if before.get(name) == quota.limits[name]:
                bucket.full_at_s = self._buckets[name].full_at_s
        self.quota, self.share, self._buckets = quota, share, fresh

    def enter(self, now_s: float) -> None:
        """Enter one more request; call `leave` once for each.

        Raises:
            RateLimited: too many in this minute, or at once.
        """
        most = self.quota.concurrency
        if most is not None and self.running >= max(most // self.share, 1):
            raise too_many_at_once(self.quota)
        if (requests := self._buckets.get("requests")) is not None:
            self._check("requests", 1, now_s)
            requests.take(1, now_s)
        self.running += 1

    def note_entry(self, now_s: float) -> None:
        """Note one more request that the shared quota admitted."""
        if (requests := self._buckets.get("requests")) is not None:
            requests.note(1, now_s)
        self.running += 1

    def leave(self) -> None:
        """Leave: a request is over."""
        self.running -= 1

    def reserve(self, tokens: int, now_s: float) -> int:
        """Reserve the tokens that a request may use; return the number, for `settle`.

        Raises:
            RateLimited: so many are not left in this minute, or on this day.
        """
        for name in self._of_tokens:
            self._check(name, tokens, now_s)
        for bucket in self._of_tokens.values():
            bucket.take(self._reserved(tokens), now_s)
        return self._reserved(tokens) if self._of_tokens else 0

    def note_reserve(self, tokens: int, now_s: float) -> int:
        """Note tokens that the shared quota gave; return the number that is reserved here."""
        for bucket in self._of_tokens.values():
            bucket.note(self._reserved(tokens), now_s)
        return self._reserved(tokens)

    def settle(self, *, reserved: int, used: int) -> None:
        """Settle a request that is over and has used so many."""
        for bucket in self._of_tokens.values():
            bucket.settle(used - reserved)

    def levels(self, now_s: float) -> dict[str, BucketLevel]:
        """Return the levels of the buckets that clients see."""
        return {name: bucket.level(now_s) for name, bucket in self._buckets.items() if name != "day"}

    @property
    def _of_tokens(self) -> dict[str, Bucket]:
        return {name: bucket for name, bucket in self._buckets.items() if name != "requests"}

    def _check(self, name: str, amount: int, now_s: float) -> None:
        wait_s = self._buckets[name].wait_s(amount, now_s)
        if wait_s > 0:
            raise used_up(self.quota, name, wait_s)

    def _reserved(self, tokens: int) -> int:
        """Return one number for both buckets, within the limit of each."""
        return min([tokens, *(bucket.limit for bucket in self._of_tokens.values())])


def too_many_at_once(quota: Quota) -> RateLimited:
    """Build the refusal of one request too many."""
    return RateLimited(f"this API key may have {quota.concurrency} requests in progress at once", retry_after_s=1.0)


def used_up(quota: Quota, name: str, wait_s: float) -> RateLimited:
    """Build the refusal of a bucket."""
    return RateLimited(f"this API key may use {quota.limits[name]} {_WHAT[name]}", retry_after_s=wait_s)


def _buckets(quota: Quota, share: int) -> dict[str, Bucket]:
    return {name: Bucket(max(limit // share, 1), period_s=PERIODS_S[name]) for name, limit in quota.limits.items()}
