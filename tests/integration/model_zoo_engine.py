"""The engine's low-level API with little between it and a test: the zoo is judged by llama.cpp itself."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as llama
import llama_cpp.mtmd_cpp as mtmd
import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
PIECE_BYTES_MAX = 512
WARN = 3


@dataclass
class EngineLog:
    """Warnings and errors of llama.cpp; the callback must live as long as the library may call it."""

    lines: list[str] = field(default_factory=list)
    callback: Any = None

    def install(self) -> None:
        def keep(level: int, text: bytes, _data: Any) -> None:
            if level >= WARN:
                self.lines.append(text.decode(errors="replace"))

        self.callback = llama.llama_log_callback(keep)
        llama.llama_log_set(self.callback, ctypes.c_void_p(0))
        mtmd.mtmd_log_set(self.callback, ctypes.c_void_p(0))
        mtmd.mtmd_helper_log_set(self.callback, ctypes.c_void_p(0))


LOG = EngineLog()


class Model:
    """A loaded model with one context."""

    def __init__(self, path: Path, stack: ExitStack, settings: dict[str, Any]) -> None:
        llama.llama_backend_init()
        LOG.install()
        self.stack = stack
        self.model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
        assert self.model, LOG.lines
        stack.callback(llama.llama_model_free, self.model)
        self.vocabulary = llama.llama_model_get_vocab(self.model)
        self.tokens = llama.llama_vocab_n_tokens(self.vocabulary)
        self.context = self.new_context(**settings)
        self.memory = llama.llama_get_memory(self.context)

    def new_context(self, **settings: Any) -> Any:
        parameters = llama.llama_context_default_params()
        chosen = {"n_ctx": 2048, "n_batch": 2048, "n_ubatch": 512, "n_threads": 1, "n_threads_batch": 1, **settings}
        for name, value in chosen.items():
            setattr(parameters, name, value)
        context = llama.llama_init_from_model(self.model, parameters)
        assert context, LOG.lines
        self.stack.callback(llama.llama_free, context)
        return context

    def meta(self, key: str) -> str | None:
        buffer = ctypes.create_string_buffer(4096)
        found = llama.llama_model_meta_val_str(self.model, key.encode(), buffer, len(buffer))
        return buffer.value.decode() if found >= 0 else None

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        data = text.encode()
        ids = (llama.llama_token * (len(data) + 8))()
        count = llama.llama_tokenize(self.vocabulary, data, len(data), ids, len(ids), special, special)
        assert count >= 0
        return list(ids[:count])

    def piece(self, token: int, *, special: bool = True) -> bytes:
        buffer = ctypes.create_string_buffer(PIECE_BYTES_MAX)
        size = llama.llama_token_to_piece(self.vocabulary, token, buffer, PIECE_BYTES_MAX, 0, special)
        assert size >= 0
        return buffer.raw[:size]

    def detokenize(self, ids: Sequence[int]) -> str:
        tokens = (llama.llama_token * len(ids))(*ids)
        buffer = ctypes.create_string_buffer(16 * len(ids) + 64)
        size = llama.llama_detokenize(self.vocabulary, tokens, len(ids), buffer, len(buffer), False, False)
        assert size >= 0
        return buffer.raw[:size].decode()

    def decode(self, ids: Sequence[int], *, context: Any = None) -> None:
        tokens = (llama.llama_token * len(ids))(*ids)
        batch = llama.llama_batch_get_one(tokens, len(ids))
        assert llama.llama_decode(context or self.context, batch) == 0, LOG.lines

    def last_logits(self, *, context: Any = None) -> Vector:
        return self.copied(llama.llama_get_logits_ith(context or self.context, -1), self.tokens)

    def logits(self, ids: Sequence[int], *, context: Any = None) -> Vector:
        """Return the logits after the ids, evaluated from an empty memory."""
        llama.llama_memory_clear(llama.llama_get_memory(context or self.context), True)
        self.decode(ids, context=context)
        return self.last_logits(context=context)

    def pooled(self, ids: Sequence[int], length: int) -> Vector:
        """Return what the model makes of a whole text."""
        if self.memory:
            llama.llama_memory_clear(self.memory, True)
        self.decode(ids)
        return self.copied(llama.llama_get_embeddings_seq(self.context, 0), length)

    @staticmethod
    def copied(pointer: Any, length: int) -> Vector:
        assert pointer
        return np.array(np.ctypeslib.as_array(pointer, (length,)), dtype=np.float32)


@contextmanager
def loaded(path: Path, **settings: Any) -> Iterator[Model]:
    """Load a model and free everything that the test made of it."""
    with ExitStack() as stack:
        yield Model(path, stack, settings)


class Vision:
    """A projector next to its text model."""

    def __init__(self, model: Model, projector: Path) -> None:
        self.model = model
        parameters = mtmd.mtmd_context_params_default()
        parameters.use_gpu = False
        parameters.n_threads = 1
        parameters.print_timings = False
        self.context = mtmd.mtmd_init_from_file(str(projector).encode(), model.model, parameters)
        assert self.context, LOG.lines
        model.stack.callback(mtmd.mtmd_free, self.context)

    def chunks(self, text: str, pixels: NDArray[np.uint8]) -> list[Any]:
        """Return the chunks of a text with one image, given as uint8[height, width, 3]."""
        height, width, _ = pixels.shape
        data = (ctypes.c_uint8 * pixels.size).from_buffer_copy(pixels.tobytes())
        bitmap = mtmd.mtmd_bitmap_init(width, height, data)
        self.model.stack.callback(mtmd.mtmd_bitmap_free, bitmap)
        chunks = mtmd.mtmd_input_chunks_init()
        assert chunks
        self.model.stack.callback(mtmd.mtmd_input_chunks_free, chunks)
        prompt = mtmd.mtmd_input_text(text.encode(), len(text.encode()), True, True)
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        assert mtmd.mtmd_tokenize(self.context, chunks, ctypes.byref(prompt), bitmaps, 1) == 0, LOG.lines
        return [mtmd.mtmd_input_chunks_get(chunks, index) for index in range(mtmd.mtmd_input_chunks_size(chunks))]

    def rows(self, chunk: Any) -> Vector:
        """Return float32[rows, embedding] of an image chunk."""
        assert mtmd.mtmd_encode_chunk(self.context, chunk) == 0
        count = mtmd.mtmd_input_chunk_get_n_tokens(chunk)
        length = llama.llama_model_n_embd_inp(self.model.model)
        return Model.copied(mtmd.mtmd_get_output_embd(self.context), count * length).reshape(count, length)

    def logits(self, chunks: list[Any]) -> tuple[Vector, int]:
        """Evaluate all chunks from an empty memory; return the last logits and the next position."""
        llama.llama_memory_clear(self.model.memory, True)
        position = llama.llama_pos(0)
        for chunk in chunks:
            is_last = chunk is chunks[-1]
            status = mtmd.mtmd_helper_eval_chunk_single(
                self.context, self.model.context, chunk, position, 0, 512, is_last, ctypes.byref(position)
            )
            assert status == 0, LOG.lines
        return self.model.last_logits(), position.value
