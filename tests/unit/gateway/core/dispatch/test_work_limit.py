"""Limit of the requests that a gateway prepares at once."""

import random
from collections import deque

import pytest

from common.errors import QueueFull
from gateway.core.dispatch.work_limit import (
    BYTES_OF_A_UNIT,
    INTERVAL_S,
    LIMIT_MAX,
    LIMIT_MIN,
    TARGET_S,
    WorkLimit,
    cost_of,
)

UNIT_S = TARGET_S / 20
MANY = 100


def learned(unit_s: float = UNIT_S) -> WorkLimit:
    """A limit that has seen requests of so long a time, one after the other."""
    work = WorkLimit()
    for _ in range(MANY):
        work.end(1, None, units=work.begin(1), took_s=unit_s)
    return work


def standing(requests: int, **of_tenants: int) -> WorkLimit:
    """Work that has stood above the target for an interval."""
    work = learned()
    work.begin(requests)
    for tenant, count in of_tenants.items():
        work.assign(count, tenant)
    work.has_room(1, 0.0)
    work.has_room(1, INTERVAL_S)
    return work


def test_work_that_stands_above_the_target_is_limited_to_it() -> None:
    work = standing(MANY)
    assert work.limit == pytest.approx(20, rel=0.05)
    assert not work.has_room(1, INTERVAL_S)


def test_a_burst_is_let_in_whole_and_no_more_behind_it() -> None:
    work = learned()
    for _ in range(LIMIT_MAX):
        assert work.has_room(1, 0.0)
        work.begin(1)
    assert not work.has_room(1, 0.0)
    work.end(MANY, None, units=LIMIT_MAX, took_s=LIMIT_MAX * UNIT_S)
    assert not work.has_room(1, INTERVAL_S)


def test_work_below_the_target_is_never_limited() -> None:
    work = learned()
    work.begin(19)
    assert all(work.has_room(1, at_s) for at_s in (0.0, INTERVAL_S, 100.0))
    assert work.limit == LIMIT_MAX


def test_the_interval_begins_anew_when_work_has_fallen_below_the_target() -> None:
    work = learned()
    units = work.begin(30)
    assert work.has_room(1, 0.0)
    work.end(20, None, units=units, took_s=units * UNIT_S)
    assert work.has_room(1, INTERVAL_S / 2)
    work.begin(20)
    assert work.has_room(1, INTERVAL_S)
    assert work.has_room(1, 1.9 * INTERVAL_S)
    assert not work.has_room(1, 2 * INTERVAL_S)


def test_requests_that_wait_for_others_are_no_work() -> None:
    work = learned()
    for _ in range(MANY):
        assert work.has_room(1, 0.0)
        units = work.begin(1)
        if units > MANY / 2:
            work.end(1, None, units=units, took_s=0.0)
    assert work.has_room(1, 0.0)
    assert work.has_room(1, INTERVAL_S)


def test_the_limit_is_gone_once_there_is_nothing_to_do() -> None:
    work = standing(MANY)
    work.end(MANY, None, units=MANY, took_s=MANY * UNIT_S)
    assert work.limit == LIMIT_MAX
    assert work.has_room(LIMIT_MAX, INTERVAL_S)


def test_slow_requests_leave_room_for_a_few() -> None:
    work = learned(unit_s=1.0)
    work.begin(LIMIT_MIN - 1)
    work.has_room(1, 0.0)
    assert work.has_room(1, INTERVAL_S)
    assert not work.has_room(2, INTERVAL_S)


def test_what_does_not_fit_is_told_when_to_come_again_and_not_all_at_once() -> None:
    work = WorkLimit(in_progress=LIMIT_MAX)
    retries = set()
    for _ in range(9):
        with pytest.raises(QueueFull) as refused:
            work.check(1, "a", 0.0)
        retries.add(refused.value.retry_after_s)
    assert (work.refused, retries) == (9, {1, 2, 3})


def test_large_bodies_are_refused_first_and_one_alone_never() -> None:
    large = cost_of(32 * 2**20)
    assert (cost_of(0), cost_of(BYTES_OF_A_UNIT - 1), cost_of(BYTES_OF_A_UNIT)) == (1, 1, 2)
    work = WorkLimit(in_progress=LIMIT_MAX - 1)
    assert work.has_room(1, 0.0)
    assert not work.has_room(large, 0.0)
    assert WorkLimit(limit=LIMIT_MIN).has_room(large, 0.0)


def test_a_quiet_tenant_fits_beside_a_noisy_one() -> None:
    work = standing(MANY, noisy=MANY)
    now_s, share = INTERVAL_S, int(work.limit / 2)
    assert not work.fits(1, "noisy", now_s)
    assert work.fits(1, "quiet", now_s)
    work.begin(share)
    work.assign(share, "quiet")
    assert not work.fits(1, "quiet", now_s)


def test_more_tenants_than_places_do_not_exceed_the_limit() -> None:
    work = WorkLimit(limit=8)
    for number in range(100):
        if work.fits(1, f"tenant-{number}", 0.0):
            work.begin(1)
            work.assign(1, f"tenant-{number}")
    assert work.in_progress == 8


def test_nothing_is_remembered_of_requests_that_ended() -> None:
    work = WorkLimit()
    work.begin(3)
    work.assign(2, "a")
    work.assign(1, "b")
    work.end(2, "a", units=3, took_s=UNIT_S)
    work.end(1, "b", units=3, took_s=UNIT_S)
    assert (work.in_progress, work.by_tenant) == (0, {})


@pytest.mark.parametrize("unit_s", [1e-3, 3e-3, 6e-3])
@pytest.mark.parametrize("load", [1.5, 3.0])
def test_a_saturated_gateway_answers_what_it_can_and_quickly(load: float, unit_s: float) -> None:
    """Simulate a loop that prepares one request after the other, a part of each in each of its turns."""
    draw, work, now_s, due_s = random.Random(1), learned(unit_s / 2), 0.0, 0.0
    running: deque[list[float]] = deque()  # parts that are left, arrival, work in progress at the arrival
    waited_s: list[float] = []
    parts = 4
    while now_s < 20.0:
        while due_s <= now_s:
            if work.has_room(1, now_s):
                running.append([parts, due_s, work.begin(1)])
            due_s += draw.expovariate(load / unit_s)
        if not running:
            now_s = due_s
            continue
        now_s += unit_s / parts
        one = running.popleft()
        one[0] -= 1
        if one[0]:
            running.append(one)
            continue
        work.end(1, None, units=round(one[2]), took_s=now_s - one[1])
        waited_s.append(now_s - one[1])
    assert len(waited_s) >= 0.95 * 20.0 / unit_s
    assert sorted(waited_s)[int(0.99 * len(waited_s))] <= 4 * TARGET_S
