"""Sizes of a context's graphs without allocation: reserved as a load reserves them.

The engine's own count of a `no_alloc` context forgets, before it lays the graph out, on which device each layer's norm
is to be computed (`ggml_backend_sched_reserve_size` resets the scheduler). So a norm lies on the device before, and
what the devices hand each other is counted wrongly: some hundred KiB on every device but the first, four times as much
with a pipeline. Here the reservations of a real context are made once more; the buffers that they ask for are written
down and not allocated.
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from ctypes import c_char_p, c_size_t, c_uint32, c_void_p
from pathlib import Path

import llama_cpp.llama_cpp as llama

from runner.engine.bindings import ggml

_SYMBOL = "_Z19llama_graph_reserveP13llama_contextjjj"
_POINTER_BYTES = ctypes.sizeof(c_void_p)
# struct ggml_backend_buffer_type begins with its functions: get_name, alloc_buffer, …
_NAME_SLOT, _ALLOCATE_SLOT = 0, 1
_NAME = ctypes.CFUNCTYPE(c_char_p, c_void_p)
_ALLOCATE = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_size_t)
_MAPS = Path("/proc/self/maps")

_graph_reserve = ggml.bind_optional(_SYMBOL, c_void_p, c_void_p, c_uint32, c_uint32, c_uint32)


def reserve_graphs(context: int, buffer_types: Iterable[int], *, outputs_max: int) -> dict[int, int] | None:
    """Bytes by buffer type; None where this build or this machine does not let us look.

    The context must be of a model that was loaded with `no_alloc`, and computes nothing afterwards.
    """
    types = sorted(set(buffer_types))
    if _graph_reserve is None or not types or not all(_is_as_known(one) for one in types):
        return None
    most: dict[int, int] = {}
    with ExitStack() as stack:
        asked: dict[int, int] = {}
        for one in types:
            stack.enter_context(_noting(one, asked))
        for tokens, sequences, outputs in _worst_batches(context, outputs_max):
            asked.clear()
            if not _graph_reserve(context, tokens, sequences, outputs):
                return None
            most.update({kind: max(most.get(kind, 0), count) for kind, count in asked.items()})
    return most


def _worst_batches(context: int, outputs_max: int) -> tuple[tuple[int, int, int], ...]:
    """Tokens, sequences and outputs of prompts, then of generation. Source: `llama_context::sched_reserve`."""
    tokens = min(llama.llama_n_ctx(context), llama.llama_n_ubatch(context))
    sequences: int = llama.llama_n_seq_max(context)
    outputs = min(tokens, outputs_max or llama.llama_n_batch(context))
    return (tokens, sequences, outputs), (sequences, sequences, sequences)


@contextmanager
def _noting(buffer_type: int, asked: dict[int, int]) -> Iterator[None]:
    """Have a buffer type give out buffers of nothing, and add up what was asked for."""

    def note(kind: int, size_bytes: int) -> int | None:
        asked[kind] = asked.get(kind, 0) + size_bytes
        empty: int | None = ggml.allocate_buffer(kind, 0)  # of no bytes: it holds nothing, of any type
        return empty

    slot = c_void_p.from_address(buffer_type + _ALLOCATE_SLOT * _POINTER_BYTES)
    before = slot.value
    mine: Callable[[int, int], int | None] = _ALLOCATE(note)
    slot.value = ctypes.cast(mine, c_void_p).value  # type: ignore[arg-type]  # a function is a pointer
    try:
        yield
    finally:
        slot.value = before


def _is_as_known(buffer_type: int) -> bool:
    """Return True if the struct begins as it did when this was written, and may be changed."""
    slots = (c_void_p * 2).from_address(buffer_type)
    name, allocate = slots[_NAME_SLOT], slots[_ALLOCATE_SLOT]
    if not name or not allocate or not _rights(buffer_type + _ALLOCATE_SLOT * _POINTER_BYTES).startswith("rw"):
        return False
    is_code = _rights(name).startswith("r-x") and _rights(allocate).startswith("r-x")
    return is_code and _NAME(name)(buffer_type) == ggml.buffer_type_name(buffer_type)


def _rights(address: int) -> str:
    """Of the mapping at an address, as `rw-p`; empty if unknown."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        span, rights, *_ = line.split()
        start, stop = (int(part, 16) for part in span.split("-"))
        if start <= address < stop:
            return rights
    return ""
