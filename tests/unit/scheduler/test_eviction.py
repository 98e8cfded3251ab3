"""Victims: enough, least recently used first, and none in vain."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.eviction import Evictable, PoolKey, choose_victims

GPU: PoolKey = ("a", "gpu-0")
HOST: PoolKey = ("a", "host")


def idle(name: str, size: int, *, idle_s: float = 1.0, pool: PoolKey = GPU, for_ever: bool = False) -> Evictable:
    return Evictable(placement_id=name, idle_s=idle_s, kept_for_ever=for_ever, pool_bytes={pool: size})


def shortage(
    candidates: list[Evictable], needed: int, pool: PoolKey = GPU
) -> Callable[[frozenset[str]], frozenset[PoolKey]]:
    """Short by `needed` bytes in one pool until enough of the candidates are gone."""

    def short(gone: frozenset[str]) -> frozenset[PoolKey]:
        freed = sum(one.pool_bytes.get(pool, 0) for one in candidates if one.placement_id in gone)
        return frozenset({pool} if freed < needed else ())

    return short


@pytest.mark.behaviour("B-136")
@pytest.mark.parametrize(
    ("candidates", "needed", "victims"),
    [
        ([idle("old", 5, idle_s=9), idle("new", 5, idle_s=1)], 5, ("old",)),
        ([idle("old", 5, idle_s=9), idle("new", 5, idle_s=1)], 6, ("old", "new")),
        ([idle("old", 5, idle_s=9), idle("new", 9, idle_s=1)], 9, ("new",)),
        ([idle("kept", 5, idle_s=99, for_ever=True), idle("new", 5, idle_s=1)], 5, ("new",)),
        ([idle("kept", 5, idle_s=99, for_ever=True)], 5, ("kept",)),
        ([idle("elsewhere", 50, pool=HOST, idle_s=99), idle("here", 5)], 5, ("here",)),
        ([idle("elsewhere", 50, pool=HOST)], 5, None),
        ([idle("small", 4)], 5, None),
        ([], 5, None),
        ([idle("spared", 5)], 0, ()),
    ],
)
def test_who_goes(candidates: list[Evictable], needed: int, victims: tuple[str, ...] | None) -> None:
    assert choose_victims(candidates, shortage(candidates, needed)) == victims


@pytest.mark.behaviour("B-136")
def test_what_mostly_lies_elsewhere_is_spared() -> None:
    mostly_gpu = Evictable(placement_id="g", idle_s=99, kept_for_ever=False, pool_bytes={GPU: 20, HOST: 5})
    assert choose_victims([mostly_gpu], shortage([mostly_gpu], 5, HOST)) is None


@given(sizes=st.lists(st.integers(1, 20), max_size=8), needed=st.integers(0, 80))
def test_victims_suffice_and_none_of_them_is_superfluous(sizes: list[int], needed: int) -> None:
    candidates = [idle(f"p{number}", size, idle_s=float(number)) for number, size in enumerate(sizes)]
    short = shortage(candidates, needed)
    victims = choose_victims(candidates, short)
    if victims is None:
        assert sum(sizes) < needed
        return
    assert not short(frozenset(victims))
    assert all(short(frozenset(victims) - {one}) for one in victims)
