"""A llama_context that turns texts into vectors: every input a sequence of its own, nothing kept between calls."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from common.spec.layout import Layout
from runner.core.model.description import Pooling
from runner.engine.bindings import library
from runner.engine.llama.batch import Batch
from runner.engine.llama.context import Context, DecodeResult, EngineFailure
from runner.engine.llama.parameters import context_parameters

_FLOAT_BYTES = 4


def pooled_context_parameters(layout: Layout, pooling: Pooling) -> Any:
    """llama_context_params of a pooled layout (`runner.core.pooled.pooling.pooled_layout`)."""
    struct = context_parameters(layout)
    # The inputs of one call share the cells; nothing outlives the call.
    struct.n_ctx = layout.context_tokens
    # An encoder sees an input as a whole: it must be in one graph, and llama.cpp makes every token an output.
    struct.n_batch = struct.n_ubatch = struct.n_outputs_max = layout.batch_tokens
    struct.embeddings = True
    struct.pooling_type = pooling.value
    return struct


def output_bytes(model_pointer: int, *, tokens: int) -> int:
    """Return the bytes of the output buffer for a call of so many tokens; it has logits too, although never read.

    It grows with the largest call, and the engine's own counts leave it out.
    """
    vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model_pointer))
    values: int = vocabulary + llama.llama_model_n_embd_out(model_pointer)
    return tokens * values * _FLOAT_BYTES


class PooledContext(Context):
    """Only the engine thread may call it."""

    def __init__(self, model_pointer: int, parameters: Any, *, vocabulary_size: int) -> None:
        """See `Context`."""
        super().__init__(model_pointer, parameters, vocabulary_size=vocabulary_size)
        self.pooling = Pooling(llama.llama_pooling_type(self.pointer))
        if self.pooling is Pooling.RANK:
            self.vector_length: int = llama.llama_model_n_cls_out(model_pointer)
        else:
            self.vector_length = llama.llama_model_n_embd_out(model_pointer)
        self._batch = Batch(capacity=self.batch_tokens, slots=self.slots)

    def compute(self, inputs: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """One decode call: the vector of each input, copied.

        Raises:
            EngineFailure: the engine broke.
        """
        if self._memory:
            llama.llama_memory_clear(self._memory, False)
        self._fill(inputs)
        if self.decode(self._batch) != DecodeResult.DONE:
            raise EngineFailure("an empty cache had no cells for a batch of its own size")
        self.synchronize()
        return [self._vector(index) for index in range(len(inputs))]

    def forget(self) -> None:
        """Zero the cells too: invalid numbers in them would reach later calls although they are masked."""
        if self._memory:
            llama.llama_memory_clear(self._memory, True)

    def reserve(self, token_id: int) -> None:
        """Let the engine take the memory of the largest call now, so that a load fails here or never.

        A CPU stops before the first operation, once everything is allocated; a GPU computes the call, which also
        brings its pools to their working size.

        Raises:
            MemoryError: refused.
        """
        share, rest = divmod(self.batch_tokens, self.slots)
        lengths = [share + (index < rest) for index in range(self.slots)]
        self._fill([[token_id] * length for length in lengths if length])
        with self._aborting():
            result: int = library.decode(self.pointer, self._batch.struct)
        if result not in (DecodeResult.DONE, DecodeResult.ABORTED):
            raise MemoryError(f"the engine could not reserve its largest call ({result})")
        self.synchronize()

    @contextmanager
    def _aborting(self) -> Iterator[None]:
        callback = llama.ggml_abort_callback(lambda _: True)
        llama.llama_set_abort_callback(self.pointer, callback, None)
        try:
            yield
        finally:
            llama.llama_set_abort_callback(self.pointer, llama.ggml_abort_callback(), None)

    def _fill(self, inputs: Sequence[Sequence[int]]) -> None:
        self._batch.clear()
        for index, tokens in enumerate(inputs):
            self._batch.add(index, 0, tokens, wants_logits=True)
        self._batch.want_all()

    def _vector(self, index: int) -> NDArray[np.float32]:
        address = library.pooled_at(self.pointer, index)
        if not address:
            raise EngineFailure("the engine has no vector for a sequence of the call")
        row = (ctypes.c_float * self.vector_length).from_address(address)
        return np.ctypeslib.as_array(row).copy()
