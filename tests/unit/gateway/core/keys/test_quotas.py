"""Quotas of keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import RateLimited
from common.rate_limits import PERIOD_S, Bucket
from gateway.core.keys.keys import Quota
from gateway.core.keys.quotas import Account

gaps_s = st.floats(0, 30, allow_nan=False)


@given(limit=st.integers(1, 1000), steps=st.lists(st.tuples(gaps_s, st.integers(1, 50)), max_size=60))
def test_no_window_gives_more_than_the_limit_and_what_refills(limit: int, steps: list[tuple[float, int]]) -> None:
    bucket, now_s, taken = Bucket(limit), 0.0, [(0.0, 0)]
    for gap_s, amount in steps:
        now_s += gap_s
        if amount <= limit and bucket.wait_s(amount, now_s) == 0:
            bucket.take(amount, now_s)
            taken.append((now_s, amount))
    for start, (start_s, _) in enumerate(taken):
        for end in range(start, len(taken)):
            window_s = taken[end][0] - start_s
            total = sum(amount for _, amount in taken[start : end + 1])
            assert total <= limit * (1 + window_s / PERIOD_S) + 1e-3


@given(limit=st.integers(1, 1000), amounts=st.lists(st.integers(1, 1000), min_size=1, max_size=30), gap_s=gaps_s)
def test_who_waits_as_told_gets_it(limit: int, amounts: list[int], gap_s: float) -> None:
    bucket, now_s = Bucket(limit), 100.0
    for amount in amounts:
        now_s += gap_s / 10
        now_s += bucket.wait_s(amount, now_s)
        assert bucket.wait_s(amount, now_s) == 0
        bucket.take(min(amount, limit), now_s)
        level = bucket.level(now_s)
        assert 0 <= level.remaining <= limit
        assert bucket.level(now_s + level.full_in_s + 1e-3).remaining == limit


@given(reserved=st.integers(0, 500), used=st.integers(0, 500))
def test_settling_leaves_what_was_really_used(reserved: int, used: int) -> None:
    account, plain = Account(Quota(tokens_per_minute=1000)), Bucket(1000)
    account.settle(reserved=account.reserve(reserved, 10.0), used=used)
    plain.take(used, 10.0)
    assert account.levels(10.0)["tokens"].remaining == pytest.approx(plain.level(10.0).remaining, abs=1)


def test_more_used_than_reserved_is_owed() -> None:
    account = Account(Quota(tokens_per_minute=100))
    account.settle(reserved=account.reserve(10, 0.0), used=160)
    with pytest.raises(RateLimited) as refusal:
        account.reserve(10, 0.0)
    assert refusal.value.retry_after_s == pytest.approx(42.0)
    assert account.reserve(10, 42.1) == 10


def test_a_reserve_beyond_the_limit_waits_for_the_whole_bucket_and_no_longer() -> None:
    account = Account(Quota(tokens_per_minute=100))
    assert account.reserve(100_000, 0.0) == 100
    with pytest.raises(RateLimited):
        account.reserve(1, 0.0)
    assert account.reserve(100_000, 60.0) == 100


def test_requests_at_once_are_counted() -> None:
    account = Account(Quota(concurrency=2))
    account.enter(0.0)
    account.enter(0.0)
    with pytest.raises(RateLimited):
        account.enter(0.0)
    account.leave()
    account.enter(0.0)


def test_a_refused_request_takes_nothing() -> None:
    account = Account(Quota(requests_per_minute=5, concurrency=1))
    account.enter(0.0)
    for _ in range(10):
        with pytest.raises(RateLimited):
            account.enter(0.0)
    assert account.levels(0.0)["requests"].remaining == 4


def test_another_limit_begins_anew_and_forgets_nothing_that_runs() -> None:
    account = Account(Quota(requests_per_minute=1, concurrency=1))
    account.enter(0.0)
    account.change_quota(Quota(requests_per_minute=2, concurrency=1))
    with pytest.raises(RateLimited, match="at once"):
        account.enter(0.0)
    account.leave()
    account.enter(0.0)
