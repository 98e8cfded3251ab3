"""What a projector holds, by device, in the words of mtmd.

Both functions answer with a std::map by value, as llama.cpp's own breakdown does (`runner.engine.memory`), and are only
there on x86-64 Linux. Elsewhere the file's size with a margin stands in.
Source: `mtmd_get_memory_usage` in mtmd.h and `clip_get_mem_usage` in clip.h of llama.cpp.
"""

import ctypes
import platform
import sys
from collections.abc import Iterator
from ctypes import POINTER, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import llama_cpp.mtmd_cpp as mtmd

from runner.engine import ggml
from runner.engine.projector import projector_parameters

_PLANNED = "_Z21mtmd_get_memory_usagePKc19mtmd_context_params"
_LOADED = "_Z18clip_get_mem_usagePK8clip_ctx"
_NODES_MAX = 16  # devices of one projector: one or two
# The graph of an image is small beside the weights of real encoders, but not nothing.
GRAPH_MARGIN = 0.25


class _Node(ctypes.Structure):
    """One element of the red-black tree: links, then key and value."""


_Node._fields_ = [
    ("color", c_int),
    ("parent", POINTER(_Node)),
    ("left", POINTER(_Node)),
    ("right", POINTER(_Node)),
    ("device", c_void_p),
    ("bytes", c_size_t),
]


class _Map(ctypes.Structure):
    """std::map<ggml_backend_dev_t, size_t>; `root` is the header's parent link."""

    _fields_ = [
        ("compare", c_size_t),
        ("header_color", c_int),
        ("root", POINTER(_Node)),
        ("leftmost", POINTER(_Node)),
        ("rightmost", POINTER(_Node)),
        ("count", c_size_t),
    ]


def planned_bytes(path: Path, *, device: int | None) -> dict[int | None, int]:
    """What a projector will hold, without reading its weights. By ggml device; None is host RAM.

    The graph is that of mtmd's own first image, which for encoders of any image size is smaller than the largest one.
    """
    function = _bind(_PLANNED, [ctypes.c_char_p, mtmd.mtmd_context_params])
    if function is not None:
        parameters = projector_parameters(device, threads=1)
        parameters.warmup = True  # sizes the graph; with these functions nothing is allocated
        counted = _by_device(_call(function, str(path).encode(), parameters))
        if counted:
            return counted
    return {device: round(path.stat().st_size * (1 + GRAPH_MARGIN))}


def held_bytes(projector_pointer: int, path: Path, *, device: int | None) -> dict[int | None, int]:
    """What a loaded projector holds after its largest image was encoded. By ggml device; None is host RAM."""
    function = _bind(_LOADED, [c_void_p])
    if function is not None:
        encoder = c_void_p.from_address(projector_pointer).value  # the first member of mtmd_context
        counted = _by_device(_call(function, encoder))
        if sum(counted.values()) >= path.stat().st_size // 2:  # else the member has moved
            return counted
    return planned_bytes(path, device=device)


def _bind(symbol: str, arguments: list[Any]) -> Any:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    try:
        return ctypes.CFUNCTYPE(c_void_p, POINTER(_Map), *arguments)((symbol, mtmd._libmtmd))
    except AttributeError:
        return None


def _call(function: Any, *arguments: Any) -> dict[int, int]:
    result = _Map()
    function(ctypes.byref(result), *arguments)
    nodes = list(_walk(result.root))
    counted = {node.contents.device: node.contents.bytes for node in nodes} if len(nodes) == result.count else {}
    delete = ggml.bind("_ZdlPv", None, c_void_p)
    for node in reversed(nodes):
        delete(ctypes.cast(node, c_void_p))
    return counted


def _walk(root: "ctypes._Pointer[_Node]") -> Iterator["ctypes._Pointer[_Node]"]:
    pending = [root] if root else []
    for _ in range(_NODES_MAX):
        if not pending:
            return
        current = pending.pop()
        yield current
        pending += [link for link in (current.contents.left, current.contents.right) if link]


def _by_device(counted: dict[int, int]) -> dict[int | None, int]:
    """CPU memory of any kind is host RAM."""
    result: dict[int | None, int] = {}
    for device, size in counted.items():
        key = None if ggml.device_type(device) == ggml.DEVICE_TYPE_CPU else device
        result[key] = result.get(key, 0) + size
    return result
