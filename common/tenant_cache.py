"""A bounded memory that tenants share: each loses its own things first."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class TenantCache(Generic[Key, Value]):
    """At most `most` things. One too many is the least recently used of the tenant that has the most.

    Any thread may use it.
    """

    def __init__(self, most: int) -> None:
        """Empty."""
        self._most = most
        self._kept: OrderedDict[tuple[str, Key], Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, tenant: str, key: Key) -> Value | None:
        """Return a tenant's value for a key, or None."""
        with self._lock:
            if (tenant, key) in self._kept:
                self._kept.move_to_end((tenant, key))
            return self._kept.get((tenant, key))

    def put(self, tenant: str, key: Key, value: Value) -> None:
        """Keep a value."""
        with self._lock:
            self._kept.pop((tenant, key), None)
            self._kept[tenant, key] = value
            if len(self._kept) > self._most:
                counts = Counter(kept for kept, _ in self._kept)
                highest = max(counts.values())
                del self._kept[next(one for one in self._kept if counts[one[0]] == highest)]
