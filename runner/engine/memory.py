"""The engine's own count of what a context holds: exact bytes by buffer type and class.

llama.cpp answers through a C++ function that returns a std::map by value. On x86-64 the caller passes the address of
the result as a hidden first argument, which ctypes can do; elsewhere it cannot, and only the log's rounded figures of a
real load are left (`runner.core.memory_report.parse_buffer_lines`).
Source: `llama_get_memory_breakdown` in llama-ext.h of llama.cpp; std::map's layout from libstdc++.
"""

import ctypes
import platform
import sys
from collections.abc import Iterator, Mapping
from ctypes import POINTER, c_int, c_size_t, c_void_p

from runner.core.memory_report import BufferUse, ClassBytes
from runner.engine import ggml

_SYMBOL = "_Z26llama_get_memory_breakdownPK13llama_context"
_NODES_MAX = 64  # buffer types of one context: a handful


class BreakdownUnavailable(Exception):
    """This machine or this build cannot tell. The caller falls back to the log, or says that it does not know."""


class _Node(ctypes.Structure):
    """One element of the red-black tree: links, then key and value."""


_Node._fields_ = [
    ("color", c_int),
    ("parent", POINTER(_Node)),
    ("left", POINTER(_Node)),
    ("right", POINTER(_Node)),
    ("buffer_type", c_void_p),
    ("weights_bytes", c_size_t),
    ("cache_bytes", c_size_t),
    ("graph_bytes", c_size_t),
]


class _Map(ctypes.Structure):
    """std::map<ggml_backend_buffer_type_t, llama_memory_breakdown_data>; `root` is the header's parent link."""

    _fields_ = [
        ("compare", c_size_t),
        ("header_color", c_int),
        ("root", POINTER(_Node)),
        ("leftmost", POINTER(_Node)),
        ("rightmost", POINTER(_Node)),
        ("count", c_size_t),
    ]


assert ctypes.sizeof(_Map) == 48


def can_read_breakdown() -> bool:
    """Whether `read_breakdown` works here."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and _breakdown_function() is not None


def read_breakdown(context: int, device_ids: Mapping[int, str] | None = None) -> list[BufferUse]:
    """What a llama_context holds, also one whose model was loaded with `no_alloc`.

    Args:
        context: address of the llama_context; its engine thread must not be in a call.
        device_ids: id of each device pointer; without it the engine's names are used. CPU memory of any kind, also
            pinned memory of GPUs, is host RAM.

    Raises:
        BreakdownUnavailable: see there.
    """
    function = _breakdown_function()
    if function is None or not can_read_breakdown():
        raise BreakdownUnavailable("the engine cannot count memory on this machine")
    result = _Map()
    function(ctypes.byref(result), context)
    try:
        nodes = [node.contents for node in _walk(result.root)]
        if len(nodes) != result.count:
            raise BreakdownUnavailable("the C++ library lays out std::map in an unknown way")
        return [_to_use(node, device_ids) for node in nodes]
    finally:
        _free(result.root)


def _breakdown_function() -> ggml.Function | None:
    return ggml.bind_optional(_SYMBOL, c_void_p, POINTER(_Map), c_void_p)


def _walk(node: "ctypes._Pointer[_Node]") -> Iterator["ctypes._Pointer[_Node]"]:
    pending = [node] if node else []
    for _ in range(_NODES_MAX):
        if not pending:
            return
        current = pending.pop()
        yield current
        pending += [link for link in (current.contents.left, current.contents.right) if link]


def _free(root: "ctypes._Pointer[_Node]") -> None:
    """Give the nodes back as C++ would: operator delete, children first."""
    delete = ggml.bind("_ZdlPv", None, c_void_p)
    for node in reversed(list(_walk(root))):
        delete(ctypes.cast(node, c_void_p))


def _to_use(node: _Node, device_ids: Mapping[int, str] | None) -> BufferUse:
    name = ggml.buffer_type_name(node.buffer_type) or b""
    device = ggml.buffer_type_device(node.buffer_type)
    in_host = (
        ggml.buffer_type_is_host(node.buffer_type) or not device or ggml.device_type(device) == ggml.DEVICE_TYPE_CPU
    )
    device_id = None
    if not in_host:
        device_id = (device_ids or {}).get(device) or (ggml.device_name(device) or b"").decode()
    return BufferUse(
        buffer_type=name.decode(),
        device_id=device_id,
        bytes=ClassBytes(weights_bytes=node.weights_bytes, cache_bytes=node.cache_bytes, graph_bytes=node.graph_bytes),
    )
