"""Quotas shared by several gateways, with two budgets of tokens, and with or without Redis."""

import pytest

from common.errors import RateLimited
from gateway.core.keys.keys import Quota
from gateway.core.keys.quotas import DAY_S, Account


def entries(account: Account, now_s: float) -> int:
    """Count the requests that are admitted at once."""
    for count in range(1000):
        try:
            account.enter(now_s)
        except RateLimited:
            return count
    return 1000


def remaining(account: Account, now_s: float) -> dict[str, int]:
    return {name: level.remaining for name, level in account.levels(now_s).items()}


@pytest.mark.parametrize(("share", "at_once"), [(1, 10), (3, 3), (10, 1), (40, 1)])
def test_of_several_gateways_each_has_its_part_of_what_may_run_at_once_and_one_at_least(
    share: int, at_once: int
) -> None:
    assert entries(Account(Quota(concurrency=10), share), 0.0) == at_once


@pytest.mark.parametrize(("share", "a_minute"), [(1, 10), (3, 3), (40, 1)])
def test_of_several_gateways_each_has_its_part_of_a_minute_and_one_request_at_least(share: int, a_minute: int) -> None:
    assert entries(Account(Quota(requests_per_minute=10), share), 0.0) == a_minute


def test_a_request_beyond_the_minute_is_told_when_the_next_one_may_come() -> None:
    account = Account(Quota(requests_per_minute=2))
    account.enter(0.0)
    account.enter(0.0)
    with pytest.raises(RateLimited, match="2 requests a minute") as refusal:
        account.enter(0.0)
    assert refusal.value.retry_after_s == pytest.approx(30.0)
    account.enter(30.0)


def test_a_day_has_its_own_budget_that_does_not_come_back_in_a_minute() -> None:
    account = Account(Quota(tokens_per_minute=100, tokens_per_day=150))
    account.reserve(100, 0.0)
    with pytest.raises(RateLimited, match="150 tokens a day") as refusal:
        account.reserve(100, 60.0)
    assert refusal.value.retry_after_s == pytest.approx(50 * DAY_S / 150 - 60.0)
    assert account.reserve(50, 60.0) == 50


def test_a_reserve_that_one_budget_refuses_takes_nothing_of_the_other() -> None:
    account = Account(Quota(tokens_per_minute=100, tokens_per_day=10))
    account.reserve(10, 0.0)
    with pytest.raises(RateLimited):
        account.reserve(10, 0.0)
    assert remaining(account, 0.0) == {"tokens": 90}


def test_what_was_not_used_comes_back_to_both_budgets() -> None:
    account = Account(Quota(tokens_per_minute=100, tokens_per_day=100))
    account.settle(reserved=account.reserve(100, 0.0), used=10)
    assert account.reserve(90, 0.0) == 90
    with pytest.raises(RateLimited):
        account.reserve(1, 0.0)


def test_no_more_is_reserved_than_the_smaller_budget_has() -> None:
    account = Account(Quota(tokens_per_minute=100, tokens_per_day=1000))
    assert account.reserve(5000, 0.0) == 100
    account.settle(reserved=100, used=100)
    assert account.reserve(900, 60.0) == 100, "the day has 900 left, and is charged no more than the minute"


def test_without_a_budget_of_tokens_nothing_is_reserved_and_nothing_refused() -> None:
    account = Account(Quota(concurrency=1))
    assert account.reserve(10**9, 0.0) == 0
    account.settle(reserved=0, used=10**9)
    assert account.levels(0.0) == {}


def test_a_bucket_that_was_left_alone_gives_its_limit_once_and_no_more() -> None:
    account = Account(Quota(requests_per_minute=3))
    assert entries(account, 0.0) == 3
    for _ in range(3):
        account.leave()
    assert entries(account, 3600.0) == 3


def test_what_redis_gave_counts_here_but_is_owed_for_one_period_at_most() -> None:
    account = Account(Quota(requests_per_minute=10, tokens_per_minute=100, concurrency=100), share=10)
    for _ in range(50):
        account.note_entry(0.0)
    assert account.running == 50
    for _ in range(50):
        account.note_reserve(1000, 0.0)
    assert remaining(account, 0.0) == {"requests": 0, "tokens": 0}
    assert remaining(account, 60.0) == {"requests": 1, "tokens": 10}


def test_another_number_of_gateways_forgives_nothing() -> None:
    quota = Quota(requests_per_minute=8, tokens_per_minute=80, tokens_per_day=80)
    account = Account(quota)
    assert entries(account, 0.0) == 8
    account.reserve(80, 0.0)
    account.change_quota(quota, share=2)
    assert remaining(account, 0.0) == {"requests": 0, "tokens": 0}
    assert remaining(account, 60.0) == {"requests": 4, "tokens": 40}
    with pytest.raises(RateLimited, match="a day"):
        account.reserve(1, 60.0)


def test_a_limit_that_was_changed_begins_anew_and_the_others_go_on() -> None:
    account = Account(Quota(requests_per_minute=2, tokens_per_minute=10, tokens_per_day=10))
    entries(account, 0.0)
    account.reserve(10, 0.0)
    account.change_quota(Quota(requests_per_minute=2, tokens_per_minute=20, tokens_per_day=10))
    assert remaining(account, 0.0) == {"requests": 0, "tokens": 20}
    with pytest.raises(RateLimited, match="a day"):
        account.reserve(1, 0.0)
