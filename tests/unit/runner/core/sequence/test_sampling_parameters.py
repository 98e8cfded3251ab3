"""Limits of the sampling parameters, and the seed of each draw."""

from typing import Any

import pytest

from common.errors import InvalidRequest
from common.spec.sampling import Sampling
from runner.core.sequence.sampling import check_sampling, draw_seed, excludes_top_at


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"min_p": -1.0}, "min_p"),
        ({"typical_p": float("-inf")}, "typical_p"),
        ({"repeat_penalty": 0.0}, "repeat_penalty"),
        ({"repeat_last_n": -2}, "repeat_last_n"),
        ({"dry_multiplier": -0.1}, "dry_multiplier"),
        ({"dry_base": 0.9}, "dry_base"),
        ({"dry_allowed_length": -1}, "dry_allowed_length"),
        ({"dry_penalty_last_n": -2}, "dry_penalty_last_n"),
        ({"xtc_probability": 1.1}, "xtc_probability"),
        ({"xtc_threshold": float("nan")}, "xtc_threshold"),
        ({"top_n_sigma": float("inf")}, "top_n_sigma"),
        ({"dynatemp_range": -0.1}, "dynatemp_range"),
        ({"dynatemp_exponent": float("nan")}, "dynatemp_exponent"),
        ({"logit_bias": {100: 1.0}}, "logit_bias"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias"),
    ],
)
def test_values_that_cannot_be_used_are_refused_by_name(wrong: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_sampling(Sampling(**wrong), vocabulary_size=100)
    assert refused.value.param == param


def test_the_defaults_are_accepted() -> None:
    check_sampling(Sampling(), vocabulary_size=100)


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    assert [draw_seed(42, position) for position in range(50)] == [draw_seed(42, position) for position in range(50)]


def test_draws_differ_between_positions_and_between_neighbouring_seeds() -> None:
    seeds = {draw_seed(seed, position) for seed in range(100) for position in range(100)}
    assert len(seeds) == 100 * 100


def test_a_draw_never_asks_llama_cpp_for_a_random_seed() -> None:
    assert all(0 <= draw_seed(seed, position) < 0xFFFFFFFF for seed in (0, 1, 2**64 - 1) for position in range(1000))


def test_greedy_means_no_temperature() -> None:
    assert Sampling(temperature=0.0).greedy
    assert not Sampling(temperature=0.1).greedy


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, False),
        ({"repeat_penalty": 1.1}, True),
        ({"presence_penalty": 0.5}, True),
        ({"frequency_penalty": -0.5}, True),
        ({"repeat_penalty": 1.1, "repeat_last_n": 0}, False),
    ],
)
def test_penalties_are_off_unless_one_of_them_does_something(parameters: dict[str, Any], expected: bool) -> None:
    assert Sampling(**parameters).penalised is expected


def test_xtc_draws_by_seed_and_position_alone_and_as_often_as_it_should() -> None:
    parameters = Sampling(xtc_probability=0.3, seed=8)
    drawn = [excludes_top_at(parameters, position) for position in range(5000)]
    assert drawn == [excludes_top_at(parameters, position) for position in range(5000)]
    assert 0.27 < sum(drawn) / len(drawn) < 0.33
    assert drawn != [excludes_top_at(Sampling(xtc_probability=0.3, seed=9), position) for position in range(5000)]


@pytest.mark.parametrize("off", [{"xtc_probability": 0.0}, {"xtc_threshold": 0.6}, {"temperature": 0.0}])
def test_xtc_is_off_where_it_could_leave_nothing_out(off: dict[str, Any]) -> None:
    parameters = Sampling(**{"xtc_probability": 1.0, **off})
    assert not any(excludes_top_at(parameters, position) for position in range(50))


@pytest.mark.parametrize("off", [{}, {"dry_multiplier": 1.0, "dry_penalty_last_n": 0}])
def test_dry_is_off_unless_it_has_something_to_look_back_at(off: dict[str, Any]) -> None:
    assert not Sampling(**off).avoids_repeats
    assert Sampling(dry_multiplier=1.0).avoids_repeats


def test_the_one_seed_that_the_engine_would_replace_by_chance_is_another() -> None:
    """Found by running the mix backwards from the number that llama.cpp reads as "any seed"."""
    assert draw_seed(0x693376ECFBDABFBE, 0) == 0


def test_whether_the_likeliest_are_left_out_is_drawn_apart_from_the_token() -> None:
    parameters = Sampling(seed=7, xtc_probability=0.5, xtc_threshold=0.1)
    left_out = [excludes_top_at(parameters, position) for position in range(1000)]
    low_draws = [draw_seed(7, position) / 2**32 < 0.5 for position in range(1000)]
    assert 400 < sum(left_out) < 600
    assert 400 < sum(one == other for one, other in zip(left_out, low_draws, strict=True)) < 600
