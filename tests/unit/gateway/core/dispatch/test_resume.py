"""Limits of going on elsewhere: silence, blame, retries, and what is refused at the door."""

import pytest

from gateway.core.dispatch.resume import (
    CRASHES_MAX,
    PROBATION_TOKENS,
    QUARANTINE_S,
    RETRY_RESERVE,
    RETRY_SHARE,
    STALL_S_MIN,
    STALL_UNKNOWN_S,
    Quarantine,
    RetryBudget,
    Suspicion,
    average_after,
    stall_after_s,
)


def test_a_replica_of_which_nothing_is_known_has_time_for_a_long_prompt() -> None:
    assert stall_after_s(None, begun=True) == stall_after_s(None, begun=False) == STALL_UNKNOWN_S


@pytest.mark.parametrize(("average_s", "longest_s"), [(0.01, STALL_S_MIN), (1.5, STALL_S_MIN), (4.0, 80.0)])
def test_a_call_is_stalled_after_twenty_usual_gaps_and_never_within_half_a_minute(
    average_s: float, longest_s: float
) -> None:
    assert stall_after_s(average_s, begun=True) == longest_s


def test_a_call_that_has_said_nothing_may_wait_for_a_slot_there() -> None:
    assert stall_after_s(0.01, begun=False) == STALL_UNKNOWN_S
    assert stall_after_s(30.0, begun=False) == 600.0


def test_one_long_gap_moves_the_average_a_little() -> None:
    assert average_after(None, 2.0) == 2.0
    assert average_after(1.0, 21.0) == pytest.approx(2.0)


def test_a_suspect_is_on_probation_until_it_is_past_the_place_of_the_crash() -> None:
    suspicion = Suspicion()
    assert (suspicion.is_suspect, suspicion.is_poison) == (False, False)
    suspicion.crashed(answer_tokens=100)
    assert (suspicion.is_suspect, suspicion.is_poison) == (True, False)
    assert not suspicion.is_past(100 + PROBATION_TOKENS - 1)
    assert suspicion.is_past(100 + PROBATION_TOKENS)


def test_a_second_crash_on_probation_is_the_last() -> None:
    suspicion = Suspicion()
    suspicion.crashed(answer_tokens=0)
    assert not suspicion.is_poison
    suspicion.is_computed = True
    suspicion.crashed(answer_tokens=0)
    assert suspicion.is_poison


def test_a_crash_after_the_probation_is_followed_by_another_probation_and_the_third_one_is_the_last() -> None:
    suspicion = Suspicion()
    for place in range(CRASHES_MAX):
        assert not suspicion.is_poison
        suspicion.crashed(answer_tokens=100 * place)
        assert suspicion.is_suspect
        assert not suspicion.is_past(100 * place)
    assert suspicion.is_poison
    assert CRASHES_MAX == 3


def test_retries_are_a_tenth_of_the_requests_beyond_the_reserve() -> None:
    budget = RetryBudget()
    assert sum(budget.spend() for _ in range(1000)) == RETRY_RESERVE
    for _ in range(50):
        budget.earn()
    assert sum(budget.spend() for _ in range(1000)) in (4, 5)  # sums of a tenth are no whole numbers
    assert RETRY_SHARE == 0.1


def test_a_quiet_day_saves_no_storm_of_retries_up() -> None:
    budget = RetryBudget()
    for _ in range(10_000):
        budget.earn()
    assert sum(budget.spend() for _ in range(10_000)) == RETRY_RESERVE


def test_a_body_that_killed_runners_is_refused_for_a_minute_to_its_tenant_alone() -> None:
    quarantine = Quarantine(b"s" * 32)
    quarantine.add("blue", "poison", 100.0)
    assert quarantine.remaining_s("blue", "poison", 100.0) == QUARANTINE_S == 60.0
    assert quarantine.remaining_s("blue", "poison", 159.0) == 1.0
    assert quarantine.remaining_s("blue", "poison", 160.0) == 0.0
    assert quarantine.remaining_s("red", "poison", 100.0) == 0.0
    assert quarantine.remaining_s("blue", "harmless", 100.0) == 0.0


def test_nobody_is_hashed_once_the_quarantine_is_over() -> None:
    quarantine = Quarantine(b"s" * 32)
    assert quarantine.is_empty(0.0)
    quarantine.add("blue", "first", 0.0)
    quarantine.add("blue", "second", 30.0)
    assert not quarantine.is_empty(59.0)
    assert not quarantine.is_empty(89.0)
    assert quarantine.remaining_s("blue", "second", 89.0) == 1.0
    assert quarantine.is_empty(90.0)


def test_a_flood_of_poison_pushes_the_oldest_out_and_takes_no_more_memory() -> None:
    quarantine = Quarantine(b"s" * 32)
    for number in range(1025):
        quarantine.add("blue", str(number), 0.0)
    refused = [number for number in range(1025) if quarantine.remaining_s("blue", str(number), 1.0) > 0]
    assert refused == list(range(1, 1025))


def test_a_body_that_no_encoding_takes_is_quarantined_too() -> None:
    quarantine = Quarantine(b"s" * 32)
    quarantine.add("blue", "\ud800", 0.0)
    assert quarantine.remaining_s("blue", "\ud800", 0.0) == QUARANTINE_S
