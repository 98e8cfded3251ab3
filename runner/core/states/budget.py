"""Decide which saved states go when a tier is full: the fewest seconds saved per byte, aged. Pure.

Greedy-Dual-Size: a state's rank is the tier's age at its last use plus seconds per byte; what goes sets the age. So a
state that is never used again falls behind, however much it could save.

Source: P. Cao, S. Irani, Cost-aware WWW proxy caching algorithms, 1997.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class _Held:
    tenant: str
    size_bytes: int
    worth: float
    rank: float


class TierBudget:
    """Sizes and ranks of the states of one tier. No state is larger than a tenant's part."""

    def __init__(self, *, bytes_max: int, tenant_bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.tenant_bytes_max = min(tenant_bytes_max, bytes_max)
        self._held: dict[str, _Held] = {}
        self._age = 0.0
        self.bytes_used = 0

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def __len__(self) -> int:
        return len(self._held)

    def add(self, key: str, *, tenant: str, size_bytes: int, saved_s: float) -> list[str] | None:
        """Enter a state; return the keys that have to go for it, or None if it is too large."""
        if size_bytes > self.tenant_bytes_max:
            return None
        self.remove(key)
        worth = saved_s / max(1, size_bytes)
        gone = self._make_room(self.tenant_bytes_max - size_bytes, tenant)
        gone += self._make_room(self.bytes_max - size_bytes, None)
        self._held[key] = _Held(tenant, size_bytes, worth, self._age + worth)
        self.bytes_used += size_bytes
        return gone

    def use(self, key: str) -> None:
        """Rank a state anew: it was just used."""
        held = self._held.get(key)
        if held is not None:
            held.rank = self._age + held.worth
            self._held[key] = self._held.pop(key)  # of equal ranks the one used longest ago goes first

    def remove(self, key: str) -> None:
        """Forget a state, if it is there."""
        held = self._held.pop(key, None)
        if held is not None:
            self.bytes_used -= held.size_bytes

    def next_out(self, bytes_free: int) -> Iterator[str]:
        """Yield what goes next, until tier and tenants' parts have room for the largest state and so many bytes."""
        bytes_free = max(bytes_free, max((held.size_bytes for held in self._held.values()), default=0))
        used = Counter[str | None]({None: self.bytes_used - self.bytes_max + self.tenant_bytes_max})
        for held in self._held.values():
            used[held.tenant] += held.size_bytes
        for key, held in sorted(self._held.items(), key=lambda item: item[1].rank):
            if max(used[None], used[held.tenant]) > self.tenant_bytes_max - bytes_free:
                used.subtract({None: held.size_bytes, held.tenant: held.size_bytes})
                yield key

    def _make_room(self, bytes_left: int, tenant: str | None) -> list[str]:
        """Remove the lowest ranks, of one tenant or of all, until at most so many bytes are left."""
        used = sum(held.size_bytes for held in self._held.values() if tenant in {None, held.tenant})
        gone = []
        while used > bytes_left:
            ranked = ((held.rank, key) for key, held in self._held.items() if tenant in {None, held.tenant})
            rank, key = min(ranked, key=lambda one: one[0])
            self._age = max(self._age, rank)
            used -= self._held[key].size_bytes
            self.remove(key)
            gone.append(key)
        return gone
