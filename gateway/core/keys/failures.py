"""How often an address may present bad keys. Pure: time comes in."""

from collections import OrderedDict

from common.errors import RateLimited, Unauthenticated
from gateway.core.keys.quotas import Bucket

FAILURES_PER_MINUTE = 20
# Addresses that are remembered; the one that failed longest ago is forgotten first.
_ADDRESSES_MAX = 4096


class Failures:
    """Counts failed attempts by address. A good key passes all the same: many people may share an address."""

    def __init__(self) -> None:
        """Nobody has failed yet."""
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def refusal(self, error: Unauthenticated, address: str, now_s: float) -> Unauthenticated | RateLimited:
        """What to answer to one more failure."""
        bucket = self._buckets.pop(address, None) or Bucket(FAILURES_PER_MINUTE)
        self._buckets[address] = bucket
        if len(self._buckets) > _ADDRESSES_MAX:
            self._buckets.popitem(last=False)
        wait_s = bucket.wait_s(1, now_s)
        if wait_s > 0:
            return RateLimited("too many failed attempts from this address", retry_after_s=wait_s)
        bucket.take(1, now_s)
        return error
