"""Choice of idle replicas to evict: the set with the lowest cost. Pure: candidates in, victims out.

Exact for up to EXACT_MAX candidates (branch and bound), beyond that greedy by loss per useful byte. What frees nothing
that is needed is never touched.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

PoolKey = tuple[str, str]  # node id, pool id
EXACT_MAX = 16
# A search that meets an unlucky shape ends with the best it has; so many steps take some milliseconds.
STEPS_MAX = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Evictable:
    """A replica that may be stopped: idle, not pinned, past its first moments.

    `pool_bytes` are the most by which each pool can gain when it goes; host RAM is left out where most of it lies on
    devices, so that nothing leaves a device for the sake of RAM.
    """

    placement_id: str
    idle_s: float
    pool_bytes: Mapping[PoolKey, int]
    loss: float = 1.0  # seconds of work that are likely to be needed again
    model: str = ""  # replicas of one model share `spare`; empty: of no model in particular
    spare: int = 1 << 30  # how many replicas of its model may go

    def useful_bytes(self, pools: AbstractSet[PoolKey]) -> int:
        """Return the freed bytes that are needed."""
        return sum(count for pool, count in self.pool_bytes.items() if pool in pools)


def choose_victims(
    candidates: Sequence[Evictable], short_pools: Callable[[frozenset[str]], Mapping[PoolKey, int]]
) -> tuple[str, ...] | None:
    """Choose the replicas that free enough at the least loss, least recently used first; None if none suffice.

    `short_pools(gone)` is how many bytes each pool still lacks when the placements `gone` are gone; empty: none.
    It must not grow when more are gone.
    """
    lacking = short_pools(frozenset())
    if not lacking:
        return ()
    pools = frozenset(lacking)
    useful = [one for one in candidates if one.useful_bytes(pools) > 0]
    # Ties go to the least recently used: it comes first, and only less loss takes its place.
    useful.sort(key=lambda one: (one.loss / one.useful_bytes(pools), -one.idle_s, one.placement_id))
    search = _Search(candidates=useful, lacks=lacking, short_pools=short_pools)
    found = search.run() if len(useful) <= EXACT_MAX else search.greedy()
    if found is None:
        return None
    return tuple(one.placement_id for one in sorted(found, key=lambda one: (-one.idle_s, one.placement_id)))


@dataclass(slots=True, kw_only=True)
class _Search:
    candidates: Sequence[Evictable]
    lacks: Mapping[PoolKey, int]
    short_pools: Callable[[frozenset[str]], Mapping[PoolKey, int]]
    best: tuple[Evictable, ...] | None = None
    best_loss: tuple[float, float] = (float("inf"), 0.0)
    steps: int = 0
    known: dict[frozenset[str], bool] = field(default_factory=dict)
    by_price: dict[PoolKey, list[int]] = field(default_factory=dict)

    def run(self) -> tuple[Evictable, ...] | None:
        """Return the best set: the greedy solution is the bound from which the search starts."""
        for pool in self.lacks:
            prices = [
                (one.loss / one.pool_bytes[pool], index)
                for index, one in enumerate(self.candidates)
                if one.pool_bytes.get(pool)
            ]
            self.by_price[pool] = [index for _, index in sorted(prices)]
        greedy = self.greedy()
        if greedy is not None:
            self._take(greedy)
        self._descend((), 0, dict(self.lacks))
        return self.best

    def greedy(self) -> tuple[Evictable, ...] | None:
        """Choose the cheapest by loss per useful byte until it suffices; then spare unnecessary victims."""
        chosen: list[Evictable] = []
        for one in self.candidates:
            if self._suffices(chosen):
                break
            if one.useful_bytes(self._pools_short(chosen)) and _within_spare([*chosen, one]):
                chosen.append(one)
        if not self._suffices(chosen):
            return None
        for spared in sorted(chosen, key=lambda one: (-one.loss, one.idle_s)):
            rest = [one for one in chosen if one is not spared]
            if self._suffices(rest):
                chosen = rest
        return tuple(chosen)

    def _descend(self, chosen: tuple[Evictable, ...], index: int, lacks: Mapping[PoolKey, int]) -> None:
        """Decide about one candidate after the other; leave a branch that cannot suffice or cannot be better."""
        self.steps += 1
        if self.steps > STEPS_MAX or _loss(chosen)[0] + self._least_more(lacks, index) > self.best_loss[0]:
            return
        enough = all(count <= 0 for count in lacks.values())  # as far as bytes by pool can tell
        if enough and self._suffices(chosen):
            self._take(chosen)
            return
        if index == len(self.candidates):
            return
        one = self.candidates[index]
        if _within_spare([*chosen, one]):
            less = {pool: count - one.pool_bytes.get(pool, 0) for pool, count in lacks.items()}
            self._descend((*chosen, one), index + 1, less)
        self._descend(chosen, index + 1, lacks)

    def _least_more(self, lacks: Mapping[PoolKey, int], index: int) -> float:
        """Bound the cost from below: the shortest pool's, if replicas could be evicted in parts."""
        return max((self._least_for(pool, count, index) for pool, count in lacks.items()), default=0.0)

    def _least_for(self, pool: PoolKey, lacking: int, index: int) -> float:
        cost = 0.0
        for other in self.by_price[pool]:
            if lacking <= 0:
                return cost
            if other >= index:
                freed = self.candidates[other].pool_bytes[pool]
                cost += self.candidates[other].loss * min(1.0, lacking / freed)
                lacking -= freed
        return cost if lacking <= 0 else float("inf")

    def _take(self, chosen: tuple[Evictable, ...]) -> None:
        loss = _loss(chosen)
        if self.best is None or loss < self.best_loss:
            self.best, self.best_loss = chosen, loss

    def _suffices(self, chosen: Sequence[Evictable]) -> bool:
        gone = frozenset(one.placement_id for one in chosen)
        if gone not in self.known:
            self.known[gone] = not self.short_pools(gone)
        return self.known[gone]

    def _pools_short(self, chosen: Sequence[Evictable]) -> frozenset[PoolKey]:
        return frozenset(self.short_pools(frozenset(one.placement_id for one in chosen)))


def _loss(chosen: Sequence[Evictable]) -> tuple[float, float]:
    """Return the cost of a set; among equals, the one used longest ago wins."""
    return sum(one.loss for one in chosen), -min((one.idle_s for one in chosen), default=0.0)


def _within_spare(chosen: Sequence[Evictable]) -> bool:
    """Return True if every model keeps the replicas that it must keep."""
    newest = chosen[-1]
    return not newest.model or sum(1 for one in chosen if one.model == newest.model) <= newest.spare
