"""Inputs that a full context drops."""

import pytest

from common.errors import InvalidRequest
from runner.core.sequence.context_shift import (
    ContextShift,
    discarded_tokens,
    kept_head_tokens,
    plan_context_shift,
    replay_context,
)


@pytest.mark.behaviour("B-50")
@pytest.mark.parametrize(
    ("keep", "prompt", "context", "adds_bos", "expected"),
    [
        (4, 100, 2048, False, 4),
        (4, 100, 2048, True, 5),
        (-1, 100, 2048, False, 100),
        (-1, 100, 2048, True, 101),
        (0, 100, 2048, False, 0),
        (5000, 100, 2048, False, 2047),
        (-1, 4000, 2048, True, 2047),
        (4, 1, 1, True, 0),
    ],
)
def test_the_kept_head_leaves_at_least_one_input_that_can_go(
    keep: int, prompt: int, context: int, adds_bos: bool, expected: int
) -> None:
    kept = kept_head_tokens(keep_tokens=keep, prompt_tokens=prompt, context_tokens=context, adds_bos=adds_bos)
    assert kept == expected


@pytest.mark.behaviour("B-52")
@pytest.mark.parametrize(("kept", "held", "expected"), [(5, 2048, 1021), (5, 1000, 0), (2047, 2048, 1)])
def test_half_of_what_is_not_kept_becomes_free(kept: int, held: int, expected: int) -> None:
    assert discarded_tokens(held_tokens=held, context_tokens=2048, kept_tokens=kept) == expected


@pytest.mark.behaviour("B-52")
def test_a_kept_head_that_fills_the_context_is_refused() -> None:
    text = r"^unable to shift context - keep exceeds context \(keep: 2048 context: 2048\)$"
    with pytest.raises(InvalidRequest, match=text):
        plan_context_shift(held_tokens=2048, context_tokens=2048, kept_tokens=2048, can_move=True)


@pytest.mark.behaviour("B-52")
def test_shift_keeps_the_head_and_frees_half_of_the_rest() -> None:
    plan = plan_context_shift(held_tokens=100, context_tokens=100, kept_tokens=10, can_move=True)
    assert plan == ContextShift(drop_start=10, drop_stop=55, moves=True)


def test_nothing_is_dropped_while_there_is_room() -> None:
    assert plan_context_shift(held_tokens=40, context_tokens=100, kept_tokens=10, can_move=True) is None


@pytest.mark.behaviour("B-53")
def test_a_memory_that_cannot_move_computes_again() -> None:
    plan = plan_context_shift(held_tokens=100, context_tokens=100, kept_tokens=10, can_move=False)
    assert plan is not None
    assert not plan.moves


@pytest.mark.behaviour("B-42")
@pytest.mark.parametrize(
    ("shared", "moves"),
    [(0, True), (55, True), (56, False), (100, False)],
)
def test_cells_that_another_slot_uses_are_not_moved(shared: int, moves: bool) -> None:
    plan = plan_context_shift(held_tokens=100, context_tokens=100, kept_tokens=10, can_move=True, shared_tokens=shared)
    assert plan is not None
    assert plan.moves is moves


@pytest.mark.behaviour("B-52")
def test_a_resumed_sequence_holds_what_the_first_runner_held() -> None:
    prompt, context, kept = list(range(10)), 16, 2
    held = list(prompt)
    generated = list(range(100, 140))
    for token_id in generated:
        if len(held) == context:
            dropped = discarded_tokens(held_tokens=len(held), context_tokens=context, kept_tokens=kept)
            del held[kept : kept + dropped]
        held.append(token_id)
    assert replay_context(prompt, generated, context_tokens=context, kept_tokens=kept, shift=True) == held
    assert len(held) <= context


@pytest.mark.behaviour("B-54")
def test_without_shift_a_resumed_sequence_keeps_everything() -> None:
    inputs = replay_context([1, 2], [3, 4, 5], context_tokens=4, kept_tokens=0, shift=False)
    assert inputs == [1, 2, 3, 4, 5]
