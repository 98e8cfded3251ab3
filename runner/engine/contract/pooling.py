"""Contract of an engine for pooled models beside `Engine`, and its reports. No engine is imported here."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from common.errors import PunaError
from runner.core.model.description import Pooling
from runner.core.pooled.embedding_inputs import Frame
from runner.core.pooled.rerank_prompt import PairTokens
from runner.engine.contract.engine import Engine, StepReport


class PooledVector(NamedTuple):
    """Result of the model for one input: float32[embedding], or float32[outputs of the ranking head]."""

    request_id: int
    input_index: int
    values: NDArray[np.float32]


class PooledTimes(NamedTuple):
    """Measured by the engine thread for one request."""

    queue_ns: int  # arrival to first call
    compute_ns: int  # begin of the first call to the end of the last


class PooledEnd(NamedTuple):
    """A request is over: done, failed or cancelled. Reported once for every submitted one, after its vectors."""

    request_id: int
    error: PunaError | None
    times: PooledTimes | None  # None: no input of it was in a call


@dataclass(slots=True, kw_only=True)
class PooledReport(StepReport):
    """Events since the last report. `slots_busy` are the inputs of the call that begins now."""

    vectors: list[PooledVector] = field(default_factory=list)
    ends: list[PooledEnd] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledModel:
    """Facts about a loaded pooled model that the text side needs."""

    pooling: Pooling
    input_tokens_max: int  # the least of the context and what the model was trained with
    vector_length: int
    frame: Frame
    pair_tokens: PairTokens
    rerank_template: str  # empty: `pair_tokens` say how


class PooledEngine(Engine, Protocol):
    """An engine that computes vectors instead of tokens. Methods may be called from any thread and never block."""

    @property
    def pooled_model(self) -> PooledModel:
        """Only once loaded."""

    def submit_inputs(self, request_id: int, inputs: Sequence[Sequence[int]]) -> None:
        """Compute framed inputs, each between 1 and `input_tokens_max` tokens, under an id never used before."""
