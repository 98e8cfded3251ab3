"""Bias and penalties on the logits of one position."""

import numpy as np
import pytest

from common.spec.sampling import Sampling
from runner.core.sequence.penalties import LogitBias, Penalties
from tests.engines.formulas import without_top


def test_repeat_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    penalties = Penalties(Sampling(repeat_penalty=2.0), context_tokens=100, earlier=[0, 1])
    logits = np.array([4.0, -4.0, 4.0], np.float32)
    penalties.apply(logits)
    assert logits.tolist() == [2.0, -8.0, 4.0]


def test_frequency_counts_and_presence_does_not() -> None:
    parameters = Sampling(frequency_penalty=0.5, presence_penalty=1.0)
    penalties = Penalties(parameters, context_tokens=100, earlier=[0, 0, 0, 1])
    logits = np.zeros(3, np.float32)
    penalties.apply(logits)
    assert logits.tolist() == [-2.5, -1.5, 0.0]


def test_only_the_last_tokens_count() -> None:
    parameters = Sampling(presence_penalty=1.0, repeat_last_n=2)
    penalties = Penalties(parameters, context_tokens=100, earlier=[0, 1])
    penalties.accept(2)
    logits = np.zeros(4, np.float32)
    penalties.apply(logits)
    assert logits.tolist() == [0.0, -1.0, -1.0, 0.0]


def test_minus_one_looks_back_over_the_whole_context() -> None:
    parameters = Sampling(presence_penalty=1.0, repeat_last_n=-1)
    penalties = Penalties(parameters, context_tokens=3, earlier=[0, 1, 2, 3])
    logits = np.zeros(4, np.float32)
    penalties.apply(logits)
    assert logits.tolist() == [0.0, -1.0, -1.0, -1.0]


def test_a_token_that_repeats_stays_counted_while_one_of_it_is_in_the_window() -> None:
    parameters = Sampling(frequency_penalty=1.0, repeat_last_n=3)
    penalties = Penalties(parameters, context_tokens=100, earlier=[5, 5, 1, 2])
    logits = np.zeros(6, np.float32)
    penalties.apply(logits)
    assert logits.tolist() == [0.0, -1.0, -1.0, 0.0, 0.0, -1.0]


def test_bias_adds_and_bans() -> None:
    bias = LogitBias({0: 1.5, 1: -100.0, 2: -150.0}, banned=[3])
    logits = np.zeros(5, np.float32)
    bias.apply(logits)
    assert logits.tolist() == [1.5, -np.inf, -np.inf, -np.inf, 0.0]


@pytest.mark.parametrize(("bias", "banned", "expected"), [({}, [], False), ({1: 0.5}, [], True), ({}, [2], True)])
def test_an_empty_bias_is_false(bias: dict[int, float], banned: list[int], expected: bool) -> None:
    assert bool(LogitBias(bias, banned=banned)) is expected


def test_a_token_exactly_as_likely_as_the_threshold_is_one_of_the_likely_ones() -> None:
    logits = np.array([0, 0, -np.inf], np.float32)
    assert np.isneginf(without_top(logits, 0.5)).sum() == 2
    assert np.array_equal(without_top(logits, 0.51), logits)
