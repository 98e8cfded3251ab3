"""Counts what is allocated on a device in this process, and refuses what goes beyond a limit.

A device of ggml and its buffer type are tables of functions. Two entries are replaced here: the device's `get_memory`,
so that it reports no more than the limit, and the buffer type's `alloc_buffer`, so that a request beyond it gets
nothing. Each buffer's `free_buffer` is replaced too, so that the count falls again.
Source: struct ggml_backend_device and struct ggml_backend_buffer_type in ggml-backend-impl.h.
"""

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_size_t, c_void_p

from runner.engine.bindings import ggml

_POINTER_BYTES = ctypes.sizeof(c_void_p)
_GET_MEMORY_SLOT = 2  # of a device: get_name, get_description, get_memory, …
_ALLOC_SLOT = 1  # of a buffer type: get_name, alloc_buffer, …
_FREE_SLOT = 0  # of a buffer

_GetMemory = ctypes.CFUNCTYPE(None, c_void_p, POINTER(c_size_t), POINTER(c_size_t))
_Alloc = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_size_t)
_Free = ctypes.CFUNCTYPE(None, c_void_p)


class DeviceCap:
    """Lives as long as the process: C holds its functions. `max_bytes` 0 counts without a limit."""

    def __init__(self, device: int, *, max_bytes: int, on_change: Callable[[int], None]) -> None:
        """`on_change` gets the bytes in use after every allocation and release; it must not raise."""
        self.used_bytes = 0
        self._max_bytes = max_bytes
        self._on_change = on_change
        self._buffers: dict[int, tuple[int, ggml.Function]] = {}  # address → bytes, and what really frees it
        memory_slot = c_void_p.from_address(device + _GET_MEMORY_SLOT * _POINTER_BYTES)
        alloc_slot = c_void_p.from_address(ggml.device_buffer_type(device) + _ALLOC_SLOT * _POINTER_BYTES)
        self._ask_device = _GetMemory(memory_slot.value or 0)
        self._ask_alloc = _Alloc(alloc_slot.value or 0)
        self._memory = _GetMemory(self._tell_memory)
        self._alloc = _Alloc(self._allocate)
        self._free = _Free(self._release)  # one for all buffers: it must outlive every call of it
        memory_slot.value = ctypes.cast(self._memory, c_void_p).value
        alloc_slot.value = ctypes.cast(self._alloc, c_void_p).value

    def _tell_memory(self, device: int, free: "ctypes._Pointer[c_size_t]", total: "ctypes._Pointer[c_size_t]") -> None:
        self._ask_device(device, free, total)
        if self._max_bytes:
            limit = min(total[0], self._max_bytes)
            free[0] = min(free[0], max(0, limit - self.used_bytes))
            total[0] = limit

    def _allocate(self, buffer_type: int, size: int) -> int | None:
        if self._max_bytes and self.used_bytes + size > self._max_bytes:
            return None
        buffer: int | None = self._ask_alloc(buffer_type, size)
        if not buffer:
            return None
        free_slot = c_void_p.from_address(buffer + _FREE_SLOT * _POINTER_BYTES)
        self._buffers[buffer] = size, _Free(free_slot.value or 0)
        free_slot.value = ctypes.cast(self._free, c_void_p).value
        self.used_bytes += size
        self._on_change(self.used_bytes)
        return buffer

    def _release(self, buffer: int) -> None:
        size, free = self._buffers.pop(buffer)
        free(buffer)
        self.used_bytes -= size
        self._on_change(self.used_bytes)
