"""Test of a device and its memory speed: one small graph, and a copy inside the device.

A device that the engine lists may still abort the process at its first kernel, so this runs in a process of its own.
"""

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_bool, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np

from runner.engine.bindings import ggml

_F32 = 0
_F32_BYTES = 4
# Small integers: exact in every precision that a backend may compute f32 products in.
_SIDE = 64
_VALUES = 4
MIB = 1024 * 1024
# Larger than any cache, as far as the device has room for it.
COPY_BYTES_MAX = 256 * MIB
COPY_BYTES_MIN = 1 * MIB
_COPY_SHARE_OF_FREE = 16
_COPIES_S_MIN = 0.05
_COPIES_MAX = 64
_GRAPH_TENSORS = 16


class DeviceBroken(Exception):
    """The device refuses to compute, or computes wrongly. The text says which."""


class _InitParameters(ctypes.Structure):
    """struct ggml_init_params."""

    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


_init = ggml.bind("ggml_init", c_void_p, _InitParameters)
_free = ggml.bind("ggml_free", None, c_void_p)
_tensor_overhead = ggml.bind("ggml_tensor_overhead", c_size_t)
_graph_overhead = ggml.bind("ggml_graph_overhead", c_size_t)
_new_matrix = ggml.bind("ggml_new_tensor_2d", c_void_p, c_void_p, c_int, c_int64, c_int64)
_multiply = ggml.bind("ggml_mul_mat", c_void_p, c_void_p, c_void_p, c_void_p)
_copy = ggml.bind("ggml_cpy", c_void_p, c_void_p, c_void_p, c_void_p)
_new_graph = ggml.bind("ggml_new_graph", c_void_p, c_void_p)
_expand = ggml.bind("ggml_build_forward_expand", None, c_void_p, c_void_p)
_open_backend = ggml.bind("ggml_backend_dev_init", c_void_p, c_void_p, c_void_p)
_close_backend = ggml.bind("ggml_backend_free", None, c_void_p)
_allocate = ggml.bind("ggml_backend_alloc_ctx_tensors", c_void_p, c_void_p, c_void_p)
_write = ggml.bind("ggml_backend_tensor_set", None, c_void_p, c_void_p, c_size_t, c_size_t)
_read = ggml.bind("ggml_backend_tensor_get", None, c_void_p, c_void_p, c_size_t, c_size_t)
_compute = ggml.bind("ggml_backend_graph_compute", c_int, c_void_p, c_void_p)
_synchronize = ggml.bind("ggml_backend_synchronize", None, c_void_p)


def check_device(pointer: int) -> None:
    """Allocate on the device, multiply two matrices there, and compare the product.

    Raises:
        DeviceBroken: use the device for nothing.
    """
    left = _pattern(3)
    right = _pattern(5)
    with _backend(pointer) as backend, _tensors() as context:
        a, b = (_new_matrix(context, _F32, _SIDE, _SIDE) for _ in range(2))
        product = _multiply(context, a, b)
        graph = _graph_of(context, product)
        with _allocated(context, backend):
            _write(a, left.ctypes.data, 0, left.nbytes)
            _write(b, right.ctypes.data, 0, right.nbytes)
            _run(backend, graph)
            found = np.empty((_SIDE, _SIDE), dtype=np.float32)
            _read(product, found.ctypes.data, 0, found.nbytes)
    # ggml multiplies rows by rows: element (i, j) is row j of the left one times row i of the right one.
    if not np.array_equal(found, right @ left.T):
        raise DeviceBroken("the device computes wrongly")


def measure_speed(pointer: int, *, free_bytes: int) -> int:
    """Bytes per second that a copy inside the device reads and writes; 0 where there is no room for one."""
    copy_bytes = min(COPY_BYTES_MAX, free_bytes // _COPY_SHARE_OF_FREE)
    if copy_bytes < COPY_BYTES_MIN:
        return 0
    rows = copy_bytes // (_SIDE * _SIDE * _F32_BYTES)
    with _backend(pointer) as backend, _tensors() as context:
        source, target = (_new_matrix(context, _F32, _SIDE * _SIDE, rows) for _ in range(2))
        graph = _graph_of(context, _copy(context, source, target))
        try:
            with _allocated(context, backend) as buffer:
                ggml.clear_buffer(buffer, 0)  # pages that were never written cost nothing to read
                seconds = _time_copy(backend, graph, target)
        except DeviceBroken:
            return 0  # no room after all: free bytes move
    return round(2 * rows * _SIDE * _SIDE * _F32_BYTES / seconds)


def _time_copy(backend: int, graph: int, target: int) -> float:
    """Seconds of the fastest of some copies: others use the machine, too, and slow down most of them.

    Reading a byte back waits for the copy, on lent devices as well.
    """
    byte = ctypes.create_string_buffer(1)
    fastest_s, spent_s = float("inf"), 0.0
    for _ in range(_COPIES_MAX):
        began_s = time.perf_counter()
        _run(backend, graph)
        _read(target, byte, 0, 1)
        copy_s = time.perf_counter() - began_s
        fastest_s, spent_s = min(fastest_s, copy_s), spent_s + copy_s
        if spent_s >= _COPIES_S_MIN:
            break
    return max(fastest_s, 1e-9)


def _pattern(step: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    numbers = (np.arange(_SIDE * _SIDE) * step) % 7 % _VALUES
    return numbers.reshape(_SIDE, _SIDE).astype(np.float32)


@contextmanager
def _backend(pointer: int) -> Iterator[int]:
    backend = _open_backend(pointer, None)
    if not backend:
        raise DeviceBroken("the engine cannot open the device")
    try:
        yield backend
    finally:
        _close_backend(backend)


@contextmanager
def _tensors() -> Iterator[int]:
    size = _GRAPH_TENSORS * _tensor_overhead() + _graph_overhead()
    context = _init(_InitParameters(mem_size=size, mem_buffer=None, no_alloc=True))
    assert context, "some kilobytes of host memory"
    try:
        yield context
    finally:
        _free(context)


@contextmanager
def _allocated(context: int, backend: int) -> Iterator[int]:
    buffer = _allocate(context, backend)
    if not buffer:
        raise DeviceBroken("the device has no memory for a small graph")
    try:
        yield buffer
    finally:
        ggml.free_buffer(buffer)


def _graph_of(context: int, result: int) -> int:
    graph: int = _new_graph(context)
    _expand(graph, result)
    return graph


def _run(backend: int, graph: int) -> None:
    status = _compute(backend, graph)
    _synchronize(backend)
    if status != 0:
        raise DeviceBroken(f"the device refuses to compute (status {status})")
