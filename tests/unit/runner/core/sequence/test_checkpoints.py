"""Checkpoints of a memory that cannot go back."""

import pytest

from runner.core.sequence.checkpoints import CHECKPOINTS_MAX, best_checkpoint, plan_checkpoints, surplus_checkpoints


@pytest.mark.behaviour("B-38")
def test_saves_are_taken_at_user_turns_and_shortly_before_the_end() -> None:
    assert plan_checkpoints(held_tokens=0, prompt_tokens=500, boundaries=[100, 300]) == (100, 300, 496)


@pytest.mark.behaviour("B-38")
def test_places_that_are_held_already_are_not_saved_again() -> None:
    assert plan_checkpoints(held_tokens=100, prompt_tokens=500, boundaries=[50, 100, 300]) == (300, 496)


@pytest.mark.behaviour("B-38")
def test_user_turns_close_to_each_other_are_saved_once_but_the_end_always() -> None:
    assert plan_checkpoints(held_tokens=0, prompt_tokens=200, boundaries=[100, 120, 150]) == (100, 196)


def test_a_prompt_of_a_few_inputs_is_not_saved() -> None:
    assert plan_checkpoints(held_tokens=0, prompt_tokens=4, boundaries=[]) == ()
    assert plan_checkpoints(held_tokens=0, prompt_tokens=1, boundaries=[0]) == ()


@pytest.mark.behaviour("B-38")
def test_the_number_of_saves_is_bounded() -> None:
    boundaries = range(100, 10_000, 100)
    assert len(plan_checkpoints(held_tokens=0, prompt_tokens=10_000, boundaries=boundaries)) == CHECKPOINTS_MAX


def test_the_latest_save_within_the_prefix_is_the_best() -> None:
    assert best_checkpoint([10, 40, 80], prefix_tokens=79) == 40
    assert best_checkpoint([10, 40, 80], prefix_tokens=9) == 0


@pytest.mark.behaviour("B-38")
def test_of_too_many_saves_the_ones_between_close_neighbours_go() -> None:
    places = [100, 200, 210, 220, 400, 500, 600, 700, 800, 900]
    gone = surplus_checkpoints(places)
    assert set(gone) == {200, 210} or set(gone) == {210, 220}
    assert surplus_checkpoints(places[:CHECKPOINTS_MAX]) == ()


@pytest.mark.behaviour("B-38")
def test_the_end_is_saved_however_close_the_last_turn_began_and_never_beyond_the_prompt() -> None:
    assert plan_checkpoints(held_tokens=0, prompt_tokens=200, boundaries=[190]) == (190, 196)
    assert plan_checkpoints(held_tokens=0, prompt_tokens=200, boundaries=[200, 300]) == (196,)


def test_of_too_many_places_the_latest_are_saved() -> None:
    places = plan_checkpoints(held_tokens=0, prompt_tokens=10_000, boundaries=range(100, 10_000, 100))
    assert places == (*range(9300, 10_000, 100), 9996)


def test_a_save_of_the_whole_prefix_is_used() -> None:
    assert best_checkpoint([10, 40, 80], prefix_tokens=80) == 80


def test_the_first_and_the_newest_save_stay() -> None:
    places = [1, *range(1000, 1000 + CHECKPOINTS_MAX), 5000, 5001]
    assert {1, 5001}.isdisjoint(surplus_checkpoints(places))
    assert surplus_checkpoints([*range(0, 800, 100), 750]) == (700,), "the last but one is a middle one, too"
