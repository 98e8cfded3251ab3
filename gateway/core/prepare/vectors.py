"""Embeddings and scores: what is asked, and what becomes of the runner's raw numbers. Pure."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.errors import EmbeddingsUnsupported, InternalError, InvalidRequest, UnsupportedCapability
from gateway.core.models.routes import ModelInfo
from gateway.core.request.answers import Dialect

INPUTS_MAX = 2048  # of the runner, too
EMBEDDING, RERANK = "embedding", "rerank"
NO_EMBEDDINGS = "this model does not support embeddings"
NO_RANKING = "this model does not support reranking"

Vector = NDArray[np.float32]  # float32[embedding_length]
Input = str | tuple[int, ...]  # a text, or its token ids


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedQuestion:
    """Texts to be turned into vectors."""

    dialect: Dialect
    model: str
    inputs: tuple[Input, ...]
    truncate: bool
    normalize: bool = True
    dimensions: int | None = None  # None: as wide as the model's
    context_tokens: int | None = None  # limit of each input; None: the replica's
    keep_alive_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankQuestion:
    """Documents to be ordered by how well they answer a query."""

    dialect: Dialect
    model: str
    query: str
    documents: tuple[str, ...]
    truncate: bool
    normalize: bool = True
    document_tokens_max: int | None = None
    context_tokens: int | None = None
    keep_alive_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Cost of an answer of either kind."""

    prompt_tokens: int
    total_duration_ns: int
    load_duration_ns: int
    prompt_duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """One vector per input, in their order."""

    vectors: tuple[Vector, ...]
    prompt_tokens: tuple[int, ...]  # per input
    counts: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One score per document, in their order."""

    scores: tuple[float, ...]
    counts: Counts


def check_embeds(model: ModelInfo) -> None:
    """Refuse what the model cannot do, before it costs anything.

    Raises:
        EmbeddingsUnsupported: it gives no vectors.
    """
    # A model without any capability was not inspected for them: the runner decides.
    if model.capabilities and EMBEDDING not in model.capabilities:
        raise EmbeddingsUnsupported(NO_EMBEDDINGS, param="model")


def check_ranks(model: ModelInfo) -> None:
    """As `check_embeds`.

    Raises:
        UnsupportedCapability: it has no ranking head.
    """
    if model.capabilities and RERANK not in model.capabilities:
        raise UnsupportedCapability(NO_RANKING, param="model")


def check_dimensions(dimensions: int | None, embedding_length: int) -> None:
    """Check that a vector of the model can be cut to so many numbers; raises InvalidRequest."""
    if dimensions is not None and embedding_length and dimensions > embedding_length:
        raise InvalidRequest(f"dimensions must be between 1 and {embedding_length}", param="dimensions")


def fit_vector(raw: Vector, *, dimensions: int | None, normalize: bool) -> Vector:
    """Cut to the first numbers, then scale to length 1. The zero vector stays what it is.

    Raises:
        InternalError: a number is not finite; no vector at all is better than a wrong one.
    """
    vector = raw[:dimensions]
    if not np.isfinite(vector).all():
        raise InternalError("the model gave a vector with numbers that are not finite")
    if not normalize:
        return vector
    length = float(np.linalg.norm(vector.astype(np.float64)))
    return (vector / length).astype(np.float32) if length else vector


def relevance(raw: float, *, normalize: bool) -> float:
    """Return a raw score of the ranking head, or its logistic in 0..1."""
    if not normalize:
        return raw
    # Symmetric, so that neither end overflows.
    return float(1 / (1 + np.exp(-raw))) if raw >= 0 else float(np.exp(raw) / (1 + np.exp(raw)))


def best_first(scores: tuple[float, ...], top: int | None) -> list[int]:
    """Sort indices by falling score, ties by index."""
    return sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:top]


def check_input_count(count: int, *, param: str) -> None:
    """Check that a request has no more inputs than allowed; raises InvalidRequest."""
    if count > INPUTS_MAX:
        raise InvalidRequest(f"{param} has {count} items, at most {INPUTS_MAX} are allowed", param=param)
