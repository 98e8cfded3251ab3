"""What is worked out once and kept for each tenant apart: nobody finds, or pushes out, what is another's."""

from collections import Counter, OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class TenantCache(Generic[Key, Value]):
    """At most `most` things. One too many is the oldest of the tenant that has the most; tenants are cache salts.

    May be read while another thread puts something in.
    """

    def __init__(self, most: int) -> None:
        """Empty."""
        self._most = most
        self._kept: OrderedDict[tuple[str, Key], Value] = OrderedDict()

    def get(self, salt: str, key: Key) -> Value | None:
        """What a tenant has under a key."""
        return self._kept.get((salt, key))

    def put(self, salt: str, key: Key, value: Value) -> None:
        """Keep it."""
        self._kept[salt, key] = value
        if len(self._kept) > self._most:
            counts = Counter(kept_salt for kept_salt, _ in self._kept)
            highest = max(counts.values())
            del self._kept[next(one for one in self._kept if counts[one[0]] == highest)]
