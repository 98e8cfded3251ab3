"""std::map as libstdc++ lays it out: some of the engine's C++ functions answer with one, by value.

A C++ object with a destructor and a C structure of more than two registers are returned alike by every ABI of Linux:
the caller passes the address of the result, in the first argument's register on x86-64, in x8 on AArch64. libffi does
so for a structure, hence the same call works on every processor.
"""

import ctypes
import sys
from collections.abc import Sequence
from ctypes import c_int, c_size_t, c_void_p
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
    """The map itself; `root` is the header's parent link. A copy: the root's own parent link leads nowhere."""

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
    """Return a function that answers with a map; None where maps are laid out otherwise, or the library lacks it."""
    if sys.platform != "linux":  # libc++
        return None
    try:
        function: ggml.Function = ctypes.CFUNCTYPE(Map, *arguments)((symbol, library))
    except AttributeError:
        return None
    return function


def call(function: ggml.Function, node_type: type[AnyNode], *arguments: Any, nodes_max: int) -> list[AnyNode] | None:
    """Return the elements of a function's map. None: this C++ library lays maps out in another way."""
    answer = function(*arguments)
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
