"""Log-probabilities from raw logits."""

import numpy as np
import pytest

from runner.core.sequence.logprobs import token_logprobs
from tests.engines.formulas import log_softmax


@pytest.mark.behaviour("B-110")
@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_probabilities_sum_to_one(scale: float) -> None:
    logits = np.random.default_rng(1).normal(scale=scale, size=128_000).astype(np.float32)
    assert np.exp(log_softmax(logits)).sum() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.behaviour("B-110")
def test_the_chosen_value_is_its_value_in_the_list() -> None:
    logits = np.random.default_rng(2).normal(size=1000).astype(np.float32)
    chosen = int(logits.argmax())
    result = token_logprobs(logits, chosen, 20)
    assert result.top[0] == (chosen, result.chosen)
    assert len(result.top) == 20
    assert [value for _, value in result.top] == sorted((value for _, value in result.top), reverse=True)


@pytest.mark.behaviour("B-110")
def test_ties_go_to_the_lowest_ids_also_at_the_end_of_the_list() -> None:
    logits = np.array([1, 3, 2, 3, 2, 2, 0], np.float32)
    assert [token_id for token_id, _ in token_logprobs(logits, 6, 4).top] == [1, 3, 2, 4]


def test_no_alternatives_when_none_are_asked_for() -> None:
    assert token_logprobs(np.zeros(8, np.float32), 3, 0).top == ()
    assert token_logprobs(np.zeros(8, np.float32), 3, 0).chosen == pytest.approx(-np.log(8))


def test_more_alternatives_than_the_vocabulary_has_are_all_of_it() -> None:
    assert len(token_logprobs(np.zeros(5, np.float32), 0, 20).top) == 5


@pytest.mark.behaviour("B-110")
def test_many_ties_come_in_the_order_of_their_ids() -> None:
    logits = np.zeros(1000, np.float32)
    logits[500:] = 1
    assert [token_id for token_id, _ in token_logprobs(logits, 0, 20).top] == list(range(500, 520))
    logits[[7, 900]] = 2
    assert [token_id for token_id, _ in token_logprobs(logits, 0, 20).top] == [7, 900, *range(500, 518)]


@pytest.mark.behaviour("B-110")
@pytest.mark.parametrize("seed", range(5))
def test_ties_between_values_that_lie_mixed_are_ordered_too(seed: int) -> None:
    logits = np.zeros(500, np.float32)
    logits[np.random.default_rng(seed).choice(500, 40, replace=False)] = np.arange(40) % 3 + 1
    expected = sorted(range(500), key=lambda token_id: (-logits[token_id], token_id))[:20]
    assert [token_id for token_id, _ in token_logprobs(logits, 0, 20).top] == expected
