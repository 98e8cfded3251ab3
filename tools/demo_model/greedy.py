"""Greedy decoding of many prompts at once under llama.cpp, with the lead of every chosen token.

Not a server: the product's engine is elsewhere. This one is independent of it, so that a fault of the one does not
hide in the other.
"""

import ctypes
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import llama_cpp
import numpy
from numpy.typing import NDArray

BATCH_TOKENS = 2048
PIECE_BYTES_MAX = 256
TOKENS_PER_STREAM = 1280
"""Room for the longest taught conversation and its answer."""


@dataclass(slots=True, kw_only=True)
class Generated:
    """Output of the model: its tokens without the end token, and each choice's lead, the end's included."""

    tokens: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    ended: bool = False


@dataclass(slots=True, kw_only=True)
class Stream:
    """One sequence in the context."""

    number: int
    pending: list[int]
    position: int
    tokens_max: int
    generated: Generated


class Greedy:
    """A model with one context of several sequences, on the CPU."""

    def __init__(self, path: Path, *, streams: int, threads: int) -> None:
        """Load the model.

        Raises:
            RuntimeError: llama.cpp cannot load this file.
        """
        model_parameters = llama_cpp.llama_model_default_params()
        model_parameters.n_gpu_layers = 0
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_parameters)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = streams * TOKENS_PER_STREAM
        parameters.n_batch = parameters.n_ubatch = BATCH_TOKENS
        parameters.n_seq_max = streams
        parameters.kv_unified = True
        parameters.n_threads = parameters.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot make a context for {path}")
        self._vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._vocabulary_tokens = llama_cpp.llama_vocab_n_tokens(self._vocabulary)
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)
        self._free = list(range(streams))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def metadata(self, key: str) -> str:
        """Return one value of the file's metadata, "" when it is absent."""
        buffer = ctypes.create_string_buffer(65536)
        length = llama_cpp.llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return "" if length < 0 else buffer.value.decode()

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Return the tokens of a text; with `special`, control tokens that it spells out become themselves."""
        encoded = text.encode()
        tokens = (llama_cpp.llama_token * (len(encoded) + 1))()
        count = llama_cpp.llama_tokenize(self._vocabulary, encoded, len(encoded), tokens, len(tokens), False, special)
        return list(tokens[:count])

    def text(self, tokens: Sequence[int]) -> bytes:
        """Return what a client sees of these tokens."""
        buffer = ctypes.create_string_buffer(PIECE_BYTES_MAX)
        pieces = []
        for token in tokens:
            length = llama_cpp.llama_token_to_piece(self._vocabulary, token, buffer, len(buffer), 0, False)
            pieces.append(buffer.raw[:length])
        return b"".join(pieces)

    def generate(self, prompts: Sequence[Sequence[int]], tokens_max: Sequence[int]) -> list[Generated]:
        """Answer all prompts, as many at a time as there are streams."""
        results = [Generated() for _ in prompts]
        waiting = deque(zip(prompts, tokens_max, results, strict=True))
        active: list[Stream] = []
        while waiting or active:
            room = BATCH_TOKENS - sum(len(stream.pending) for stream in active)
            while waiting and self._free and len(waiting[0][0]) <= room:
                prompt, limit, result = waiting.popleft()
                room -= len(prompt)
                active.append(
                    Stream(
                        number=self._free.pop(), pending=list(prompt), position=0, tokens_max=limit, generated=result
                    )
                )
            self._step(active)
            for stream in [stream for stream in active if not stream.pending]:
                active.remove(stream)
                self._free.append(stream.number)
                llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._context), stream.number, -1, -1)
        return results

    def _step(self, active: Sequence[Stream]) -> None:
        """Decode what is pending in one call; each stream then holds its next token, or nothing when it is done."""
        batch, rows = self._batch, []
        batch.n_tokens = 0
        for stream in active:
            for token in stream.pending:
                row = batch.n_tokens
                batch.token[row] = token
                batch.pos[row] = stream.position
                batch.n_seq_id[row] = 1
                batch.seq_id[row][0] = stream.number
                batch.logits[row] = 0
                stream.position += 1
                batch.n_tokens += 1
            batch.logits[batch.n_tokens - 1] = 1
            rows.append(batch.n_tokens - 1)
        status = llama_cpp.llama_decode(self._context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")
        for stream, row in zip(active, rows, strict=True):
            self._choose(stream, row)

    def _choose(self, stream: Stream, row: int) -> None:
        logits = self._logits(row)
        best = int(logits.argmax())
        lead = float(logits[best] - numpy.delete(logits, best).max())
        stream.generated.margins.append(lead)
        stream.pending = []
        if llama_cpp.llama_vocab_is_eog(self._vocabulary, best):
            stream.generated.ended = True
            return
        stream.generated.tokens.append(best)
        if len(stream.generated.tokens) < stream.tokens_max:
            stream.pending = [best]

    def _logits(self, row: int) -> NDArray[numpy.float32]:
        pointer = llama_cpp.llama_get_logits_ith(self._context, row)
        return numpy.ctypeslib.as_array(pointer, shape=(self._vocabulary_tokens,))
