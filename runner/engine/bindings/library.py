"""llama.cpp's functions as the engine thread calls them, and its log.

Every call through `CDLL` gives the interpreter lock away and may wait up to a switch interval to get it back. Short
calls are therefore bound through `PyDLL`, which keeps the lock; long ones (decode, load, tokenize) through `CDLL`.
Both use the symbols of the library that llama_cpp loaded: a second copy would have a device registry of its own.
"""

import ctypes
import os
import time
from collections import deque
from typing import Any

import llama_cpp.llama_cpp as llama

from common.clock import NS_PER_S
from runner.core.layout.load_log import NOTED
from runner.engine.bindings.ggml import Function, bind, library

_short = ctypes.PyDLL(library._name)

_pointer = ctypes.c_void_p
_int = ctypes.c_int32


def _bind_short(symbol: str, result: Any, *arguments: Any) -> Function:
    function: Function = ctypes.PYFUNCTYPE(result, *arguments)((symbol, _short))
    return function


decode = bind("llama_decode", _int, _pointer, llama.llama_batch)
synchronize = bind("llama_synchronize", None, _pointer)
tokenize = bind(
    "llama_tokenize",
    _int,
    _pointer,
    ctypes.c_char_p,
    _int,
    ctypes.c_void_p,
    _int,
    ctypes.c_bool,
    ctypes.c_bool,
)

logits_at = _bind_short("llama_get_logits_ith", _pointer, _pointer, _int)
pooled_at = _bind_short("llama_get_embeddings_seq", _pointer, _pointer, _int)
sequence_remove = _bind_short("llama_memory_seq_rm", ctypes.c_bool, _pointer, _int, _int, _int)
sequence_copy = _bind_short("llama_memory_seq_cp", None, _pointer, _int, _int, _int, _int)
sequence_add = _bind_short("llama_memory_seq_add", None, _pointer, _int, _int, _int, _int)
sequence_first = _bind_short("llama_memory_seq_pos_min", _int, _pointer, _int)
sequence_last = _bind_short("llama_memory_seq_pos_max", _int, _pointer, _int)
token_attributes = _bind_short("llama_vocab_get_attr", _int, _pointer, _int)
token_ends = _bind_short("llama_vocab_is_eog", ctypes.c_bool, _pointer, _int)
token_to_piece = _bind_short("llama_token_to_piece", _int, _pointer, _int, ctypes.c_char_p, _int, _int, ctypes.c_bool)

chain_add = _bind_short("llama_sampler_chain_add", None, _pointer, _pointer)
chain_remove = _bind_short("llama_sampler_chain_remove", _pointer, _pointer, _int)
chain_length = _bind_short("llama_sampler_chain_n", _int, _pointer)
sampler_free = _bind_short("llama_sampler_free", None, _pointer)
sampler_sample = _bind_short("llama_sampler_sample", _int, _pointer, _pointer, _int)
# The same for other threads than the engine's, which choose at the same time.
sampler_sample_unlocked = bind("llama_sampler_sample", _int, _pointer, _pointer, _int)
sampler_apply = _bind_short("llama_sampler_apply", None, _pointer, _pointer)
sampler_dist = _bind_short("llama_sampler_init_dist", _pointer, ctypes.c_uint32)
sampler_top_k = _bind_short("llama_sampler_init_top_k", _pointer, _int)
sampler_top_p = _bind_short("llama_sampler_init_top_p", _pointer, ctypes.c_float, ctypes.c_size_t)
sampler_min_p = _bind_short("llama_sampler_init_min_p", _pointer, ctypes.c_float, ctypes.c_size_t)
sampler_typical = _bind_short("llama_sampler_init_typical", _pointer, ctypes.c_float, ctypes.c_size_t)
sampler_xtc = _bind_short(
    "llama_sampler_init_xtc", _pointer, ctypes.c_float, ctypes.c_float, ctypes.c_size_t, ctypes.c_uint32
)
sampler_temperature = _bind_short(
    "llama_sampler_init_temp_ext", _pointer, ctypes.c_float, ctypes.c_float, ctypes.c_float
)
chain_create = _bind_short("llama_sampler_chain_init", _pointer, llama.llama_sampler_chain_params)

# ggml_log_level; the table in llama_cpp's own logger is off by one.
_LEVEL_ERROR, _LEVEL_CONTINUE = 4, 5
_LINES_MAX = 50
# A backend logs why a call failed in a few lines and aborts right after them.
_LAST_WORDS_MAX = 5
_LAST_WORDS_NS = NS_PER_S
_NOTES_MAX = 1024  # one for each layer, and few others
_NOTED = tuple(word.encode() for word in NOTED)


class EngineLog:
    """Takes what llama.cpp logs and keeps the last errors, which alone say why a load failed."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=_LINES_MAX)
        self.notes: deque[str] = deque(maxlen=_NOTES_MAX)  # facts about a load from the log alone
        self._level = 0
        self._error_at_ns = 0  # the newest
        self._errors_together = 0  # lines since a pause of _LAST_WORDS_NS
        # Held by this object for as long as C may call it.
        self._callback = llama.llama_log_callback(self._receive)

    def install(self) -> None:
        """Replace the callback that llama_cpp installed at import."""
        llama.llama_log_set(self._callback, ctypes.c_void_p(0))

    def attach(self, set_callback: Function) -> None:
        """Take the log of another library too, through its own `…_log_set`."""
        set_callback(self._callback, ctypes.c_void_p(0))

    def clear(self) -> None:
        """Forget what was kept, before an operation whose failure must be explained."""
        self.errors.clear()

    def last_words(self) -> list[str]:
        """Return the errors of this moment, which alone say why the engine aborts; older ones it has survived."""
        if time.monotonic_ns() - self._error_at_ns > _LAST_WORDS_NS:
            return []
        return [*self.errors][-min(self._errors_together, _LAST_WORDS_MAX) :]

    def _receive(self, level: int, text: bytes, _: Any) -> None:
        try:
            if level != _LEVEL_CONTINUE:
                self._level = level
            if any(word in text for word in _NOTED):
                self.notes.append(text.decode(errors="replace").strip())
            if self._level == _LEVEL_ERROR:
                now_ns = time.monotonic_ns()
                together = now_ns - self._error_at_ns <= _LAST_WORDS_NS
                self._errors_together = self._errors_together + 1 if together else 1
                self._error_at_ns = now_ns
                self.errors.append(text.decode(errors="replace").strip())
        except BaseException:  # noqa: BLE001, S110  # an exception must not cross into C
            pass


engine_log = EngineLog()
_AbortCallback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
_abort_callback: Any = None


def start_engine() -> None:
    """Take over log and abort message, and initialise the backends. Call once per process, before anything else."""
    global _abort_callback  # noqa: PLW0603  # C holds it until the process ends
    engine_log.install()
    if _abort_callback is None:
        _abort_callback = _AbortCallback(_report_abort)
        _bind_short("ggml_set_abort_callback", _pointer, _AbortCallback)(_abort_callback)
        llama.llama_backend_init()


def _report_abort(message: bytes) -> None:
    """Write the engine's last errors and the text of its abort as one line to the log; the process dies right after."""
    line = " | ".join([*engine_log.last_words(), message.decode(errors="replace").strip()])
    os.write(2, f"engine error: {' '.join(line.split())}\n".encode())
