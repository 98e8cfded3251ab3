"""Conversion of a runner's raw vectors and scores."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from common.errors import EmbeddingsUnsupported, InternalError, InvalidRequest, UnsupportedCapability
from gateway.core.models.routes import ModelInfo
from gateway.core.prepare.vectors import best_first, check_dimensions, check_embeds, check_ranks, fit_vector, relevance


def model(*capabilities: str) -> ModelInfo:
    return ModelInfo(name="m:latest", digest="ab" * 32, size_bytes=1, modified_at_unix_s=0, capabilities=capabilities)


@pytest.mark.behaviour("B-94")
@given(arrays(np.float32, 8, elements=st.floats(-(2.0**60), 2.0**60, width=32)), st.integers(1, 8))
def test_vectors_are_cut_first_and_scaled_to_length_one_after(raw: np.ndarray, dimensions: int) -> None:
    fitted = fit_vector(raw, dimensions=dimensions, normalize=True)
    assert len(fitted) == dimensions
    length = np.linalg.norm(fitted.astype(np.float64))
    if np.linalg.norm(raw[:dimensions].astype(np.float64)) > 1e-30:
        assert length == pytest.approx(1, abs=1e-6)


def test_a_vector_that_is_not_to_be_scaled_stays_as_pooled() -> None:
    raw = np.array([3, 4], np.float32)
    assert fit_vector(raw, dimensions=None, normalize=False).tolist() == [3, 4]


def test_the_zero_vector_has_no_direction_to_keep() -> None:
    assert fit_vector(np.zeros(4, np.float32), dimensions=None, normalize=True).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_an_error_and_no_answer(bad: float) -> None:
    with pytest.raises(InternalError):
        fit_vector(np.array([1, bad], np.float32), dimensions=None, normalize=True)


def test_dimensions_are_bounded_by_the_models_width() -> None:
    check_dimensions(64, 64)
    check_dimensions(None, 64)
    check_dimensions(65, 0)  # the width is not known: the vector shows it
    with pytest.raises(InvalidRequest, match="between 1 and 64"):
        check_dimensions(65, 64)


def test_models_are_asked_for_what_they_can_do_only() -> None:
    check_embeds(model("embedding"))
    check_embeds(model())  # not inspected: the runner judges
    check_ranks(model("rerank"))
    with pytest.raises(EmbeddingsUnsupported, match="this model does not support embeddings"):
        check_embeds(model("completion"))
    with pytest.raises(UnsupportedCapability, match="reranking"):
        check_ranks(model("embedding"))


@given(st.floats(-1e6, 1e6))
def test_relevance_is_the_logistic_of_the_raw_score(raw: float) -> None:
    score = relevance(raw, normalize=True)
    assert 0 <= score <= 1
    assert score + relevance(-raw, normalize=True) == pytest.approx(1)
    assert relevance(raw, normalize=False) == raw


def test_documents_come_best_first_and_ties_by_index() -> None:
    assert best_first((0.1, 0.9, 0.9, 0.3), None) == [1, 2, 3, 0]
    assert best_first((0.1, 0.9, 0.9, 0.3), 2) == [1, 2]
