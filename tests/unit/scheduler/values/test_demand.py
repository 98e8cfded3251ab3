"""Forecast of a model's next request, and of the loss by its eviction."""

import random

import pytest

from scheduler.core.values.demand import FIRST_GAP_S, NO_DEMAND, ModelDemand, loss_of


def asked_at(*moments_s: float) -> ModelDemand:
    demand = NO_DEMAND
    for moment_s in moments_s:
        demand = demand.asked(moment_s)
    return demand


def loss(demand: ModelDemand, now_s: float, *, kept_for_ever: bool = False, priority: int = 0) -> float:
    return loss_of(demand, now_s=now_s, size_bytes=1 << 30, held_s=0.0, kept_for_ever=kept_for_ever, priority=priority)


def test_what_comes_like_a_clock_is_due_a_gap_after_the_last_one() -> None:
    clock = asked_at(*range(0, 6001, 60))
    assert clock.next_in_s(6001) == pytest.approx(60, rel=0.05)
    assert clock.next_in_s(6050) == pytest.approx(10, rel=0.2)


def test_what_comes_by_chance_is_as_far_away_whenever_one_looks() -> None:
    chance = random.Random(3)
    moments = [0.0]
    while len(moments) < 400:
        moments.append(moments[-1] + chance.expovariate(1 / 60))
    demand, last = asked_at(*moments), moments[-1]
    assert demand.next_in_s(last + 30) > 0.7 * demand.next_in_s(last)


def test_what_is_overdue_becomes_less_likely_the_longer_it_is() -> None:
    clock = asked_at(*range(0, 601, 60))
    late = [clock.next_in_s(600 + passed) for passed in (70, 120, 600, 6000)]
    assert late == sorted(late)
    assert late[-1] > 5000


def test_of_models_that_take_turns_the_one_that_was_just_asked_for_is_lost_most_cheaply() -> None:
    before, just_now = asked_at(*range(0, 1801, 180)), asked_at(*range(90, 1900, 180))
    assert loss(just_now, 1900) < loss(before, 1900)


def test_what_is_asked_for_many_times_before_the_horizon_is_worth_more_than_what_is_asked_for_some_times() -> None:
    often, seldom = asked_at(*range(0, 3601, 10)), asked_at(*range(0, 3601, 60))
    assert loss(often, 3605) > 4 * loss(seldom, 3605)


def test_one_request_tells_little_and_none_nothing() -> None:
    assert asked_at(0).next_in_s(10) == FIRST_GAP_S + 10
    assert 0 < loss(NO_DEMAND, 10) < 1e-6


def test_many_requests_at_one_moment_are_no_endless_demand() -> None:
    assert asked_at(5, 5, 5, 5).next_in_s(5) > 0


def test_what_is_kept_for_ever_or_preferred_is_dearer() -> None:
    demand = asked_at(0, 60, 120)
    assert loss(demand, 130, kept_for_ever=True) == pytest.approx(100 * loss(demand, 130))
    assert loss(demand, 130, priority=2) == pytest.approx(100 * loss(demand, 130))
