"""The engine's own count of what a context holds: exact bytes by buffer type and class.

llama.cpp answers through a C++ function that returns a std::map by value (`cpp_map.py`). Where the C++ library
is not GNU's, nothing is counted: models are placed by estimates, and a runner that loaded one has no report.
Source: `llama_get_memory_breakdown` in llama-ext.h of llama.cpp.
"""

from collections.abc import Mapping
from ctypes import c_size_t, c_void_p

from runner.core.layout.memory_report import BufferUse, ClassBytes
from runner.engine.bindings import cpp_map, ggml

_SYMBOL = "_Z26llama_get_memory_breakdownPK13llama_context"
_NODES_MAX = 64  # buffer types of one context: a handful


class BreakdownUnavailable(Exception):
    """This machine or this build cannot tell. The caller says that it does not know."""


class _Node(cpp_map.MapNode):
    """Of a std::map<ggml_backend_buffer_type_t, llama_memory_breakdown_data>."""

    _fields_ = (
        ("buffer_type", c_void_p),
        ("weights_bytes", c_size_t),
        ("cache_bytes", c_size_t),
        ("graph_bytes", c_size_t),
    )


def buffer_types(context: int) -> list[int]:
    """Addresses of every ggml_backend_buffer_type that a context uses.

    Raises:
        BreakdownUnavailable: see there.
    """
    return [int(node.buffer_type) for node in _read_nodes(context)]


def read_breakdown(
    context: int, device_ids: Mapping[int, str], *, graphs: Mapping[int, int] | None = None
) -> list[BufferUse]:
    """Return the buffers of a llama_context, also of one whose model was loaded with `no_alloc`.

    Args:
        context: address of the llama_context; its engine thread must not be in a call.
        device_ids: id of each device pointer; others have the engine's names. CPU memory of any kind, also
            pinned memory of GPUs, is host RAM.
        graphs: bytes of graphs by buffer type, where they are known better than the engine counts them.

    Raises:
        BreakdownUnavailable: see there.
    """
    return [_to_use(node, device_ids, graphs) for node in _read_nodes(context)]


def _read_nodes(context: int) -> list[_Node]:
    function = cpp_map.bind(ggml.library, _SYMBOL, c_void_p)
    if function is None:
        raise BreakdownUnavailable("the engine cannot count memory on this machine")
    nodes = cpp_map.call(function, _Node, context, nodes_max=_NODES_MAX)
    if nodes is None:
        raise BreakdownUnavailable("the C++ library lays out std::map in an unknown way")
    return nodes


def _to_use(node: _Node, device_ids: Mapping[int, str], graphs: Mapping[int, int] | None) -> BufferUse:
    name = ggml.buffer_type_name(node.buffer_type) or b""
    device = ggml.buffer_type_device(node.buffer_type)
    in_host = (
        ggml.buffer_type_is_host(node.buffer_type) or not device or ggml.device_type(device) == ggml.DEVICE_TYPE_CPU
    )
    device_id = None
    if not in_host:
        device_id = device_ids.get(device) or (ggml.device_name(device) or b"").decode()
    return BufferUse(
        buffer_type=name.decode(),
        device_id=device_id,
        bytes=ClassBytes(
            weights_bytes=node.weights_bytes,
            cache_bytes=node.cache_bytes,
            graph_bytes=node.graph_bytes if graphs is None else graphs.get(node.buffer_type, 0),
        ),
    )
