"""How the cores of a node are divided between the runners that compute on them. Pure.

Compute threads meet at a barrier hundreds of times a token. Where more of them compute than there are cores, every
barrier waits for one that has none. So runners that have work share the cores, and one that rests holds none of them:
it is told what it would get if its work began now, and begins with that.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

# Work counts once it has lasted this long: for a short request nobody else is made slower.
SETTLE_S = 0.1
# And for so long after its end: the next question of a conversation, or of a row of them, changes nothing.
RELEASE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one runner wants."""

    threads_max: int  # what it uses where nobody else computes; at least 1
    busy: bool
    fixed: bool = False  # somebody said how many: they count, and stay


@dataclass(slots=True)
class _Work:
    """Whether a runner has work, seen over time."""

    busy: bool = False
    began_s: float = 0.0
    last_s: float = float("-inf")  # when it was last seen busy
    counts: bool = False

    def see(self, *, busy: bool, now_s: float) -> None:
        if busy and not self.busy and now_s > self.last_s + SETTLE_S:
            self.began_s = now_s
        if busy or self.busy:  # until now, as far as anybody knows
            self.last_s = now_s
        self.busy = busy
        if busy:
            self.counts = self.counts or now_s >= self.began_s + SETTLE_S
        elif now_s >= self.last_s + RELEASE_S:
            self.counts = False

    def due_s(self) -> float | None:
        """When time alone changes whether it counts."""
        if self.busy == self.counts:
            return None
        return self.began_s + SETTLE_S if self.busy else self.last_s + RELEASE_S


@dataclass(slots=True)
class CoreDivision:
    """Owned by whoever tells the runners."""

    cores: int
    _work: dict[str, _Work] = field(default_factory=dict)

    def divide(self, claims: Mapping[str, Claim], now_s: float) -> dict[str, int]:
        """Threads of every runner that can be told, by its key; at least 1 each."""
        self._work = {key: self._work.get(key, _Work()) for key in claims}
        for key, claim in claims.items():
            self._work[key].see(busy=claim.busy, now_s=now_s)
        working = {key for key, work in self._work.items() if work.counts}
        taken = sum(claims[key].threads_max for key in working if claims[key].fixed)
        wants = {key: claim.threads_max for key, claim in claims.items() if not claim.fixed}
        sharing = {key for key in wants if key in working}
        shares = _share(wants, sharing, self.cores - taken)
        for key in wants.keys() - sharing:
            shares[key] = _share(wants, sharing | {key}, self.cores - taken)[key]
        return shares

    def due_s(self) -> float | None:
        """When to divide again although nothing new was heard; None: not before."""
        return min((due for work in self._work.values() if (due := work.due_s()) is not None), default=None)


def _share(wants: Mapping[str, int], keys: Collection[str], cores: int) -> dict[str, int]:
    """Equal shares; what one does not want is the others'. The last of equal ones get what is left over."""
    shares: dict[str, int] = {}
    for count, key in enumerate(sorted(keys, key=lambda key: (wants[key], key))):
        shares[key] = max(1, min(wants[key], cores // (len(keys) - count)))
        cores -= shares[key]
    return shares
