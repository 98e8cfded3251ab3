"""ggml and gguf functions, bound by hand.

The symbols always come from the library that llama_cpp loaded: `llama_cpp/_ggml.py` loads a second copy of libggml
with a device registry of its own, whose pointers mean nothing to libllama.
"""

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import llama_cpp.llama_cpp as llama

library: ctypes.CDLL = llama._lib  # the one handle whose dependency tree holds every ggml library

Function = Callable[..., Any]


def bind(symbol: str, result: Any, *arguments: Any) -> Function:
    """Return a function of the library with its own prototype, so that no other declaration is changed.

    Raises:
        AttributeError: this build has no such symbol.
    """
    function: Function = ctypes.CFUNCTYPE(result, *arguments)((symbol, library))
    return function


def bind_optional(symbol: str, result: Any, *arguments: Any) -> Function | None:
    """As `bind`, or None where this build lacks the symbol."""
    try:
        return bind(symbol, result, *arguments)
    except AttributeError:
        return None


class DeviceCapabilities(ctypes.Structure):
    """struct ggml_backend_dev_caps."""

    _fields_ = [
        (name, c_bool) for name in ("asynchronous", "host_buffer", "buffer_from_host_ptr", "events", "mmap_support")
    ]


class DeviceProperties(ctypes.Structure):
    """struct ggml_backend_dev_props."""

    name: bytes
    description: bytes
    memory_free: int
    memory_total: int
    type: int
    device_id: bytes | None  # lower-case PCI address; NULL for CPU and RPC

    _fields_ = [
        ("name", c_char_p),
        ("description", c_char_p),
        ("memory_free", c_size_t),
        ("memory_total", c_size_t),
        ("type", c_int),
        ("device_id", c_char_p),
        ("capabilities", DeviceCapabilities),
    ]


class TensorOverride(ctypes.Structure):
    """struct llama_model_tensor_buft_override."""

    pattern: bytes | None
    buffer_type: int | None

    _fields_ = [("pattern", c_char_p), ("buffer_type", c_void_p)]


DEVICE_TYPE_CPU, DEVICE_TYPE_GPU, DEVICE_TYPE_INTEGRATED, DEVICE_TYPE_ACCELERATOR = range(4)

device_count = bind("ggml_backend_dev_count", c_size_t)
device_get = bind("ggml_backend_dev_get", c_void_p, c_size_t)
device_name = bind("ggml_backend_dev_name", c_char_p, c_void_p)
device_properties = bind("ggml_backend_dev_get_props", None, c_void_p, POINTER(DeviceProperties))
device_registry = bind("ggml_backend_dev_backend_reg", c_void_p, c_void_p)
device_buffer_type = bind("ggml_backend_dev_buffer_type", c_void_p, c_void_p)
device_type = bind("ggml_backend_dev_type", c_int, c_void_p)
registry_count = bind("ggml_backend_reg_count", c_size_t)
registry_get = bind("ggml_backend_reg_get", c_void_p, c_size_t)
registry_name = bind("ggml_backend_reg_name", c_char_p, c_void_p)
registry_device_count = bind("ggml_backend_reg_dev_count", c_size_t, c_void_p)
registry_device_get = bind("ggml_backend_reg_dev_get", c_void_p, c_void_p, c_size_t)
buffer_type_name = bind("ggml_backend_buft_name", c_char_p, c_void_p)
buffer_type_is_host = bind("ggml_backend_buft_is_host", c_bool, c_void_p)
allocate_buffer = bind("ggml_backend_buft_alloc_buffer", c_void_p, c_void_p, c_size_t)
clear_buffer = bind("ggml_backend_buffer_clear", None, c_void_p, ctypes.c_uint8)
free_buffer = bind("ggml_backend_buffer_free", None, c_void_p)
cpu_buffer_type = bind("ggml_backend_cpu_buffer_type", c_void_p)
buffer_type_device = bind("ggml_backend_buft_get_device", c_void_p, c_void_p)
# Only where the engine was built with GGML_RPC=on. Aborts the process without an answer: say hello first (rpc_hello).
rpc_add_server = bind_optional("ggml_backend_rpc_add_server", c_void_p, c_char_p)
# Endpoint, cache directory or NULL, threads, device count, devices. Serves until the process ends; returns only if it
# could not listen.
rpc_start_server = bind_optional(
    "ggml_backend_rpc_start_server", None, c_char_p, c_char_p, c_size_t, c_size_t, c_void_p
)

TYPE_COUNT: int = llama.GGML_TYPE_COUNT
type_name = bind("ggml_type_name", c_char_p, c_int)
type_size_bytes = bind("ggml_type_size", c_size_t, c_int)
type_block_elements = bind("ggml_blck_size", c_int64, c_int)
