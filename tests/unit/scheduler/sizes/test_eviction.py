"""Victims: enough, at the least loss, and none in vain."""

import itertools
import random
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.sizes.eviction import EXACT_MAX, Evictable, PoolKey, choose_victims

GPU: PoolKey = ("a", "gpu-0")
OTHER: PoolKey = ("a", "gpu-1")
HOST: PoolKey = ("a", "host")

Short = Callable[[frozenset[str]], Mapping[PoolKey, int]]


def idle(
    name: str,
    size: int,
    *,
    idle_s: float = 1.0,
    pool: PoolKey = GPU,
    loss: float = 1.0,
    model: str = "",
    spare: int = 9,
) -> Evictable:
    return Evictable(placement_id=name, idle_s=idle_s, pool_bytes={pool: size}, loss=loss, model=model, spare=spare)


def shortage(candidates: list[Evictable], needed: Mapping[PoolKey, int]) -> Short:
    """Short by so many bytes in each pool until enough of the candidates are gone."""

    def short(gone: frozenset[str]) -> dict[PoolKey, int]:
        lacking = dict(needed)
        for one in candidates:
            for pool, count in one.pool_bytes.items():
                if one.placement_id in gone and pool in lacking:
                    lacking[pool] -= count
        return {pool: count for pool, count in lacking.items() if count > 0}

    return short


@pytest.mark.behaviour("B-136")
@pytest.mark.parametrize(
    ("candidates", "needed", "victims"),
    [
        ([idle("old", 5, idle_s=9), idle("new", 5, idle_s=1)], 5, ("old",)),
        ([idle("old", 5, idle_s=9), idle("new", 5, idle_s=1)], 6, ("old", "new")),
        ([idle("old", 5, idle_s=9), idle("new", 9, idle_s=1)], 9, ("new",)),
        ([idle("dear", 5, idle_s=99, loss=100.0), idle("new", 5, idle_s=1)], 5, ("new",)),
        ([idle("dear", 5, idle_s=99, loss=100.0)], 5, ("dear",)),
        # Two cheap ones cost less than one that is much used, and one small one less than a large one.
        ([idle("used", 10, loss=5.0), idle("b", 5, idle_s=3), idle("c", 5, idle_s=2)], 10, ("b", "c")),
        ([idle("used", 10, loss=1.5), idle("b", 5, idle_s=3), idle("c", 5, idle_s=2)], 10, ("used",)),
        ([idle("elsewhere", 50, pool=HOST, idle_s=99), idle("here", 5)], 5, ("here",)),
        ([idle("elsewhere", 50, pool=HOST)], 5, None),
        ([idle("small", 4)], 5, None),
        ([], 5, None),
        ([idle("spared", 5)], 0, ()),
        # Of a model that must keep a replica, not every one may go.
        (
            [idle("m1", 5, model="m", spare=1), idle("m2", 5, model="m", spare=1), idle("n", 5, loss=9.0)],
            10,
            ("m1", "n"),
        ),
        ([idle("m1", 5, model="m", spare=1), idle("m2", 5, model="m", spare=1)], 10, None),
    ],
)
def test_who_goes(candidates: list[Evictable], needed: int, victims: tuple[str, ...] | None) -> None:
    chosen = choose_victims(candidates, shortage(candidates, {GPU: needed}))
    assert (None if chosen is None else set(chosen)) == (None if victims is None else set(victims))


@pytest.mark.behaviour("B-136")
def test_one_that_frees_both_devices_goes_before_two_that_cost_more() -> None:
    both = Evictable(placement_id="both", idle_s=1, pool_bytes={GPU: 5, OTHER: 5}, loss=1.5)
    candidates = [idle("one", 5), idle("two", 5, pool=OTHER), both]
    assert choose_victims(candidates, shortage(candidates, {GPU: 5, OTHER: 5})) == ("both",)


def test_a_shortage_whose_numbers_are_too_low_is_met_too() -> None:
    candidates = [idle("a", 3, loss=1.0), idle("b", 3, loss=2.0), idle("c", 3, loss=3.0)]

    def short(gone: frozenset[str]) -> dict[PoolKey, int]:
        return {} if len(gone) >= 2 else {GPU: 1}

    assert set(choose_victims(candidates, short) or ()) == {"a", "b"}


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Evictable], dict[PoolKey, int]]:
    """Up to 9 replicas on up to 3 pools, some of them on two, and what is needed."""
    pools = [GPU, OTHER, HOST]
    candidates = []
    for number in range(draw(st.integers(0, 9))):
        own = draw(st.lists(st.sampled_from(pools), min_size=1, max_size=2, unique=True))
        candidates.append(
            Evictable(
                placement_id=f"p{number}",
                idle_s=float(draw(st.integers(0, 5))),
                pool_bytes={pool: draw(st.integers(1, 20)) for pool in own},
                loss=draw(st.sampled_from([0.1, 0.5, 1.0, 3.0, 7.5, 100.0])),
                model=draw(st.sampled_from(["", "m", "n"])),
                spare=draw(st.integers(1, 2)),
            )
        )
    spares = {"m": draw(st.integers(1, 3)), "n": draw(st.integers(1, 3))}
    candidates = [
        Evictable(
            placement_id=one.placement_id, idle_s=one.idle_s, pool_bytes=one.pool_bytes, loss=one.loss,
            model=one.model, spare=spares.get(one.model, 99),
        )
        for one in candidates
    ]  # fmt: skip
    needed = {pool: draw(st.integers(0, 40)) for pool in draw(st.lists(st.sampled_from(pools), unique=True))}
    return candidates, needed


def allowed(chosen: tuple[Evictable, ...]) -> bool:
    return all(sum(1 for other in chosen if other.model == one.model) <= one.spare for one in chosen if one.model)


@pytest.mark.behaviour("B-136")
@given(case=clusters())
def test_no_other_set_would_have_cost_less(case: tuple[list[Evictable], dict[PoolKey, int]]) -> None:
    candidates, needed = case
    short = shortage(candidates, needed)
    victims = choose_victims(candidates, short)
    sets = itertools.chain.from_iterable(
        itertools.combinations(candidates, size) for size in range(len(candidates) + 1)
    )
    enough = [one for one in sets if allowed(one) and not short(frozenset(v.placement_id for v in one))]
    if victims is None:
        assert enough == []
        return
    by_id = {one.placement_id: one for one in candidates}
    chosen = tuple(by_id[victim] for victim in victims)
    assert not short(frozenset(victims))
    assert allowed(chosen)
    assert sum(one.loss for one in chosen) <= min(sum(one.loss for one in other) for other in enough) + 1e-9
    lacking = {pool for pool, count in needed.items() if count > 0}
    assert all(one.useful_bytes(lacking) > 0 for one in chosen)


@given(sizes=st.lists(st.integers(1, 20), min_size=EXACT_MAX + 1, max_size=40), needed=st.integers(0, 300))
def test_beyond_the_exact_limit_victims_suffice_and_none_is_superfluous(sizes: list[int], needed: int) -> None:
    candidates = [idle(f"p{number}", size, idle_s=float(number)) for number, size in enumerate(sizes)]
    short = shortage(candidates, {GPU: needed})
    victims = choose_victims(candidates, short)
    if victims is None:
        assert sum(sizes) < needed
        return
    assert not short(frozenset(victims))
    assert all(short(frozenset(victims) - {one}) for one in victims)


def test_sixteen_candidates_on_two_devices_are_searched_to_the_end_in_few_questions() -> None:
    """Not a matter of the machine's speed: the questions to the ledger are counted."""
    for seed in range(20):
        draw = random.Random(seed)
        candidates = [
            Evictable(
                placement_id=f"p{number}",
                idle_s=draw.uniform(0, 100),
                pool_bytes={draw.choice([GPU, OTHER]): draw.randint(1, 20)},
                loss=draw.uniform(0.1, 10),
            )
            for number in range(EXACT_MAX)
        ]
        questions = 0
        lacks = shortage(candidates, {GPU: 30, OTHER: 30})

        def short(gone: frozenset[str], lacks: Short = lacks) -> Mapping[PoolKey, int]:
            nonlocal questions
            questions += 1
            return lacks(gone)

        choose_victims(candidates, short)
        assert questions < 500
