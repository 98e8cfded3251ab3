"""Memory of a projector by device, as mtmd reports it.

Both functions answer with a std::map by value (`cpp_map.py`). Where that cannot be had, the file's size with a margin
stands in.
Source: `mtmd_get_memory_usage` in mtmd.h and `clip_get_mem_usage` in clip.h of llama.cpp.
"""

import ctypes
from ctypes import POINTER, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import llama_cpp.mtmd_cpp as mtmd

from runner.engine.bindings import cpp_map, ggml
from runner.engine.media.projector import projector_parameters

_PLANNED = "_Z21mtmd_get_memory_usagePKc19mtmd_context_params"
_LOADED = "_Z18clip_get_mem_usagePK8clip_ctx"
_NODES_MAX = 16  # devices of one projector: one or two
# The graph of an image is small beside the weights of real encoders, but not nothing.
GRAPH_MARGIN = 0.25


class _Node(cpp_map.MapNode):
    """Of a std::map<ggml_backend_dev_t, size_t>."""

    _fields_ = (("device", c_void_p), ("bytes", c_size_t))


def planned_bytes(path: Path, *, device: int | None) -> dict[int | None, int]:
    """Return the bytes that a projector will take, without reading its weights. By ggml device; None is host RAM.

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
    """Return the bytes of a loaded projector after its largest image was encoded. By ggml device; None is host RAM."""
    function = _bind(_LOADED, [c_void_p])
    if function is not None:
        encoder = c_void_p.from_address(projector_pointer).value  # the first member of mtmd_context
        counted = _by_device(_call(function, encoder))
        if sum(counted.values()) >= path.stat().st_size // 2:  # else the member has moved
            return counted
    return planned_bytes(path, device=device)


def _bind(symbol: str, arguments: list[Any]) -> Any:
    if not cpp_map.maps_can_be_returned():
        return None
    try:
        return ctypes.CFUNCTYPE(c_void_p, POINTER(cpp_map.Map), *arguments)((symbol, mtmd._libmtmd))
    except AttributeError:
        return None


def _call(function: Any, *arguments: Any) -> dict[int, int]:
    result = cpp_map.Map()
    function(ctypes.byref(result), *arguments)
    return {node.device: node.bytes for node in cpp_map.take_elements(result, _Node, nodes_max=_NODES_MAX) or ()}


def _by_device(counted: dict[int, int]) -> dict[int | None, int]:
    """CPU memory of any kind is host RAM."""
    result: dict[int | None, int] = {}
    for device, size in counted.items():
        key = None if ggml.device_type(device) == ggml.DEVICE_TYPE_CPU else device
        result[key] = result.get(key, 0) + size
    return result
