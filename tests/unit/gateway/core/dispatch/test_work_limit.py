"""Limit of the requests that a gateway prepares at once."""

import random

import pytest

from common.errors import QueueFull
from gateway.core.dispatch.work_limit import (
    BYTES_OF_A_UNIT,
    INTERVAL_S,
    LAG_S_TARGET,
    LIMIT_MAX,
    LIMIT_MIN,
    WorkLimit,
    cost_of,
)

LATE = 4 * LAG_S_TARGET


def intervals(work: WorkLimit, count: int, lag_s: float, *, at_s: float = 0.0) -> float:
    """Measure the same lag for some intervals; returns the time."""
    for _ in range(2 * count):
        at_s += INTERVAL_S / 2
        work.measured(now_s=at_s, lag_s=lag_s)
    return at_s


def busy(requests: int, **of_tenants: int) -> WorkLimit:
    work = WorkLimit()
    work.begin(requests)
    for tenant, count in of_tenants.items():
        work.assign(count, tenant)
    work.measured(now_s=0.0, lag_s=0.0)
    return work


def test_a_standing_lag_halves_the_work_at_most_once_in_an_interval() -> None:
    work = busy(100)
    at_s = intervals(work, 1, LATE)
    assert work.limit == LIMIT_MAX  # the interval began with a sample without lag
    at_s = intervals(work, 1, LATE, at_s=at_s)
    assert work.limit == 50
    intervals(work, 20, LATE, at_s=at_s)
    assert work.limit == LIMIT_MIN


def test_the_limit_falls_as_far_as_the_lag_is_too_long() -> None:
    work = busy(100)
    at_s = intervals(work, 1, LAG_S_TARGET)
    intervals(work, 1, LAG_S_TARGET * 1.25, at_s=at_s)
    assert work.limit == pytest.approx(80)


def test_a_burst_that_is_worked_off_is_no_reason() -> None:
    work = busy(300)
    for number in range(40):
        work.measured(now_s=number * INTERVAL_S / 4, lag_s=LATE if number % 4 else 0.0)
    assert work.limit == LIMIT_MAX


def test_a_pause_of_the_process_is_no_reason() -> None:
    work = busy(300)
    work.measured(now_s=5.0, lag_s=5.0)
    work.measured(now_s=5.01, lag_s=0.0)
    assert work.limit == LIMIT_MAX


def test_a_tight_limit_opens_within_a_second_after_the_lag_is_gone() -> None:
    work = busy(100)
    at_s = intervals(work, 20, LATE)
    assert work.limit == LIMIT_MIN
    intervals(work, round(1 / INTERVAL_S), 0.0, at_s=at_s)
    assert work.limit > 64


def test_nothing_to_do_forgets_the_limit() -> None:
    work = busy(100)
    intervals(work, 20, LATE)
    work.rest(9.0)
    assert work.limit == LIMIT_MAX


def test_what_does_not_fit_is_told_when_to_come_again_and_not_all_at_once() -> None:
    work = busy(LIMIT_MAX)
    retries = set()
    for _ in range(9):
        with pytest.raises(QueueFull) as refused:
            work.check(1, "a")
        retries.add(refused.value.retry_after_s)
    assert (work.refused, retries) == (9, {1, 2, 3})


def test_large_bodies_are_refused_first_and_one_alone_never() -> None:
    large = cost_of(32 * 2**20)
    assert (cost_of(0), cost_of(BYTES_OF_A_UNIT - 1), cost_of(BYTES_OF_A_UNIT)) == (1, 1, 2)
    work = busy(LIMIT_MAX - 1)
    assert work.has_room(1)
    assert not work.has_room(large)
    alone = WorkLimit(limit=LIMIT_MIN)
    assert alone.has_room(large)


def test_a_quiet_tenant_fits_beside_a_noisy_one() -> None:
    work = busy(LIMIT_MAX, noisy=LIMIT_MAX)
    assert not work.fits(1, "noisy")
    assert work.fits(1, "quiet")
    work.begin(LIMIT_MAX // 2)
    work.assign(LIMIT_MAX // 2, "quiet")
    assert not work.fits(1, "quiet")


def test_more_tenants_than_places_do_not_exceed_the_limit() -> None:
    work = WorkLimit(limit=8)
    for number in range(100):
        if work.fits(1, f"tenant-{number}"):
            work.begin(1)
            work.assign(1, f"tenant-{number}")
    assert work.in_progress == 8


def test_nothing_is_remembered_of_requests_that_ended() -> None:
    work = busy(3, a=2, b=1)
    work.end(2, "a")
    work.end(1, "b")
    assert (work.in_progress, work.by_tenant) == (0, {})


@pytest.mark.parametrize(("turn_s", "turns", "prepares"), [(1e-4, 30, 10), (3e-4, 10, 5), (1e-4, 60, 4)])
@pytest.mark.parametrize("load", [1.5, 3.0])
def test_a_saturated_gateway_answers_what_it_can_and_quickly(
    load: float, turn_s: float, turns: int, prepares: int
) -> None:
    """Simulate a loop that gives each request in progress one turn after the other, the first ones as preparation."""
    draw, work, now_s, due_s, sampled_s = random.Random(turns), WorkLimit(), 0.0, 0.0, 0.0
    capacity = 1 / (turn_s * turns)
    running: list[list[float]] = []  # turns that are left, time of arrival
    first_s: list[float] = []
    loops_s: list[float] = []
    while now_s < 20.0:
        begun_s = now_s
        while due_s <= now_s:
            if work.has_room(1):
                work.begin(1)
                running.append([turns, due_s])
            due_s += draw.expovariate(load * capacity)
        for one in running:
            one[0] -= 1
            now_s += turn_s
            if one[0] == turns - prepares:
                work.end(1, None)
                first_s.append(now_s - one[1])
        running = [one for one in running if one[0]]
        now_s = max(now_s, begun_s + turn_s)
        loops_s.append(now_s - begun_s)
        if now_s - sampled_s >= 0.005:
            sampled_s = now_s
            work.measured(now_s=now_s, lag_s=loops_s[-1])
    assert len(first_s) >= 0.95 * capacity * 20.0
    assert sorted(first_s)[int(0.99 * len(first_s))] <= 0.25
    assert sorted(loops_s)[int(0.99 * len(loops_s))] <= 0.02  # a refusal waits so long
