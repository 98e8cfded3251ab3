"""Choice of the last token of an answer."""

import pytest

from runner.core.sequence.endings import (
    END_TOKEN,
    LENGTH,
    REPEATED_TOKENS_MAX,
    REPETITION,
    EndRules,
    generated_tokens_max,
)


def rules(*, end: int = -1, limit: int = 100, repeats: int = 30, resumed: tuple[int, ...] = ()) -> EndRules:
    return EndRules(end_tokens=frozenset({end}), limit=limit, repeats_max=repeats, resumed=resumed)


def test_an_end_token_ends() -> None:
    counted = rules(end=7)
    assert counted.count(3) is None
    assert counted.count(7) == END_TOKEN
    assert counted.generated == 2


def test_an_end_token_at_the_limit_is_an_end_token() -> None:
    assert rules(end=7, limit=1).count(7) == END_TOKEN


@pytest.mark.behaviour("B-113")
def test_the_limit_ends_with_length() -> None:
    counted = rules(limit=2)
    assert counted.count(3) is None
    assert counted.count(4) == LENGTH


@pytest.mark.behaviour("B-117")
def test_one_equal_token_in_a_row_too_many_ends_with_a_reason() -> None:
    counted = rules(limit=1000)
    assert all(counted.count(5) is None for _ in range(30))
    assert counted.count(5) == REPETITION


@pytest.mark.behaviour("B-117")
def test_a_row_of_a_hundred_zeros_or_dots_is_no_loop() -> None:
    counted = rules(limit=1000, repeats=REPEATED_TOKENS_MAX)
    assert all(counted.count(5) is None for _ in range(100))


@pytest.mark.behaviour("B-117")
def test_another_token_in_between_starts_the_count_again() -> None:
    counted = rules(limit=10_000)
    for _ in range(50):
        assert all(counted.count(5) is None for _ in range(30))
        assert counted.count(6) is None


@pytest.mark.behaviour("B-117")
def test_the_repeat_rule_can_be_off() -> None:
    counted = rules(limit=1000, repeats=0)
    assert all(counted.count(5) is None for _ in range(900))


@pytest.mark.behaviour("B-117")
@pytest.mark.parametrize(("asked", "expected"), [(None, 5120), (7, 7), (0, 0), (5120, 5120), (5121, 5120)])
def test_no_sequence_generates_more_than_ten_contexts(asked: int | None, expected: int) -> None:
    assert generated_tokens_max(asked, 512) == expected


def test_resumed_tokens_count() -> None:
    counted = rules(limit=3, resumed=(5, 5))
    assert not counted.exhausted
    assert counted.count(6) == LENGTH
    assert counted.exhausted


def test_resumed_tokens_count_as_repeats() -> None:
    counted = rules(limit=1000, resumed=(5,) * 30)
    assert counted.count(5) is not None
