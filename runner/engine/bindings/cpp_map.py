"""std::map as libstdc++ lays it out: some of the engine's C++ functions answer with one, by value.

On x86-64 the caller passes the address of the result as a hidden first argument, which ctypes can do; elsewhere it
cannot.
"""

import ctypes
import platform
import sys
from collections.abc import Sequence
from ctypes import POINTER, c_int, c_size_t, c_void_p
from typing import Any, ClassVar, TypeVar

from runner.engine.bindings import ggml


class MapNode(ctypes.Structure):
    """One element of the red-black tree: links; subclasses add key and value."""

    _fields_: ClassVar[Sequence[tuple[str, Any]]] = (
        ("color", c_int),
        ("parent", c_void_p),
        ("left", c_void_p),
        ("right", c_void_p),
    )


AnyNode = TypeVar("AnyNode", bound=MapNode)


class Map(ctypes.Structure):
    """The map itself; `root` is the header's parent link."""

    _fields_ = [
        ("compare", c_size_t),
        ("header_color", c_int),
        ("root", c_void_p),
        ("leftmost", c_void_p),
        ("rightmost", c_void_p),
        ("count", c_size_t),
    ]


assert ctypes.sizeof(Map) == 48


def bind(library: ctypes.CDLL, symbol: str, *arguments: Any) -> ggml.Function | None:
    """Return a function that answers with a map; None where this platform cannot call it, or the library lacks it."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    try:
        function: ggml.Function = ctypes.CFUNCTYPE(c_void_p, POINTER(Map), *arguments)((symbol, library))
    except AttributeError:
        return None
    return function


def call(function: ggml.Function, node_type: type[AnyNode], *arguments: Any, nodes_max: int) -> list[AnyNode] | None:
    """Return the elements of a function's map. None: this C++ library lays maps out in another way."""
    answer = Map()
    function(ctypes.byref(answer), *arguments)
    pending = [answer.root] if answer.root else []
    addresses: list[int] = []
    elements: list[AnyNode] = []
    while pending and len(addresses) < nodes_max:
        addresses.append(pending.pop())
        node = node_type.from_buffer_copy(ctypes.string_at(addresses[-1], ctypes.sizeof(node_type)))
        elements.append(node)
        pending += [link for link in (node.left, node.right) if link]
    delete = ggml.bind("_ZdlPv", None, c_void_p)  # operator delete, children first
    for address in reversed(addresses):
        delete(address)
    return elements if len(elements) == answer.count else None
