"""Which idle replicas go to make room. Pure: candidates in, victims out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

PoolKey = tuple[str, str]  # node id, pool id


@dataclass(frozen=True, slots=True, kw_only=True)
class Evictable:
    """A replica that may be stopped: idle, not pinned, past its first moments."""

    placement_id: str
    idle_s: float
    kept_for_ever: bool  # asked to stay; goes last, but goes
    pool_bytes: Mapping[PoolKey, int]

    def helps(self, pools: frozenset[PoolKey]) -> bool:
        """Whether most of it lies where room is needed: what mostly lies elsewhere is not worth its reload."""
        useful = sum(count for pool, count in self.pool_bytes.items() if pool in pools)
        return 2 * useful >= sum(self.pool_bytes.values()) > 0


def choose_victims(
    candidates: Sequence[Evictable], short_pools: Callable[[frozenset[str]], frozenset[PoolKey]]
) -> tuple[str, ...] | None:
    """The least recently used replicas whose going makes room; None if not even all of them do.

    `short_pools(gone)` names the pools that still lack bytes when the placements `gone` are gone; empty: there is room.
    What frees nothing that is needed is never touched.
    """
    order = sorted(candidates, key=lambda one: (one.kept_for_ever, -one.idle_s, one.placement_id))
    victims: list[str] = []
    for candidate in order:
        lacking = short_pools(frozenset(victims))
        if not lacking:
            break
        if candidate.helps(lacking):
            victims.append(candidate.placement_id)
    if short_pools(frozenset(victims)):
        return None
    # A large one that came late may have made earlier ones unnecessary; spare the most recently used first.
    for spared in reversed(victims[:-1]):
        rest = [victim for victim in victims if victim != spared]
        if not short_pools(frozenset(rest)):
            victims = rest
    return tuple(victims)
