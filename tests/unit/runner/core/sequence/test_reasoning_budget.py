"""Reasoning budget of an answer: closed at the same token in every place."""

import pytest

from common.errors import InvalidRequest
from runner.core.sequence.reasoning_budget import ReasoningBudget, ReasoningCursor, reasoning_budget

PIECES = [b"<think>", b"</think>", b"a", b"b", b"\n", b"</", b"think>", "é".encode()[:1], "é".encode()[1:], b"x"]
OPEN, CLOSE, A, B, LINE, HALF, REST, HEAD, TAIL, X = range(10)


def budget(tokens_max: int, *, opening: str = "<think>", closing_ids: tuple[int, ...] = (CLOSE,)) -> ReasoningBudget:
    return reasoning_budget(opening, "</think>", tokens_max, tokenize=lambda _: list(closing_ids), pieces=PIECES)


def run(cursor: ReasoningCursor, wanted: list[int]) -> list[int]:
    """Return the tokens that follow if a model wants these."""
    said = []
    for token_id in wanted:
        forced = cursor.forced()
        said.append(token_id if forced is None else forced)
        cursor.accept(said[-1])
    return said


def test_reasoning_is_closed_after_so_many_tokens_and_the_rest_is_free() -> None:
    assert run(ReasoningCursor(budget(2)), [OPEN, A, B, A, X, X]) == [OPEN, A, B, CLOSE, X, X]
    assert run(ReasoningCursor(budget(0)), [OPEN, A, X]) == [OPEN, CLOSE, X]


def test_what_the_prompt_has_opened_counts_from_the_first_token() -> None:
    assert run(ReasoningCursor(budget(1, opening="")), [A, B, X]) == [A, CLOSE, X]


def test_a_model_that_closes_earlier_or_never_reasons_is_left_alone() -> None:
    assert run(ReasoningCursor(budget(2)), [OPEN, A, CLOSE, B, B, B]) == [OPEN, A, CLOSE, B, B, B]
    assert run(ReasoningCursor(budget(1)), [A, B, A, OPEN, A, A]) == [A, B, A, OPEN, A, A]
    assert run(ReasoningCursor(budget(1)), [LINE, OPEN, A, A]) == [LINE, OPEN, A, CLOSE]
    assert run(ReasoningCursor(budget(3)), [OPEN, A, HALF, REST, X, X]) == [OPEN, A, HALF, REST, X, X]


def test_a_closing_of_several_tokens_comes_whole() -> None:
    long = budget(1, closing_ids=(HALF, REST))
    assert run(ReasoningCursor(long), [OPEN, A, A, A, X]) == [OPEN, A, HALF, REST, X]


def test_no_character_is_cut() -> None:
    assert run(ReasoningCursor(budget(1)), [OPEN, HEAD, TAIL, A]) == [OPEN, HEAD, TAIL, CLOSE]


@pytest.mark.parametrize("at", range(7))
def test_an_answer_that_goes_on_elsewhere_is_closed_at_the_same_place(at: int) -> None:
    wanted = [OPEN, A, B, A, A, X, X]
    long = budget(2, closing_ids=(HALF, REST))
    whole = run(ReasoningCursor(long), wanted)
    assert whole[:at] + run(ReasoningCursor(long, resumed=whole[:at]), wanted[at:]) == whole


def test_texts_that_cannot_be_used_are_refused() -> None:
    for opening, closing in (("", ""), ("x", "y" * 129)):
        with pytest.raises(InvalidRequest):
            reasoning_budget(opening, closing, 1, tokenize=lambda _: [], pieces=PIECES)


def test_reasoning_that_opens_and_closes_in_one_token_is_over() -> None:
    pieces = [*PIECES, b"<think></think>"]
    one = reasoning_budget("<think>", "</think>", 0, tokenize=lambda _: [CLOSE], pieces=pieces)
    assert run(ReasoningCursor(one), [len(PIECES), X, X]) == [len(PIECES), X, X]


def test_markers_longer_than_any_model_has_are_refused() -> None:
    for opening, closing in (("x" * 129, "y"), ("x", "y" * 129), ("x", "")):
        with pytest.raises(InvalidRequest, match="reasoning_budget"):
            reasoning_budget(opening, closing, 1, tokenize=lambda _: [CLOSE], pieces=PIECES)
