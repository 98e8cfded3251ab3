"""Maps that C++ functions return by value, from a library that the test compiles for this processor."""

import ctypes
import subprocess
from ctypes import c_bool, c_char_p, c_int, c_size_t, c_void_p

import pytest

from runner.engine.bindings import cpp_map

_SOURCE = r"""
#include <cstddef>
#include <map>

struct Counts { size_t weights, cache, graph; };
std::map<void *, Counts> counts(const struct Context * context) {
    std::map<void *, Counts> result;
    for (size_t i = 1; i <= (size_t) context; i++) result[(void *) (16 * i)] = {i, 2 * i, 3 * i};
    return result;
}

struct Parameters { bool first; int number; const char * text; void * last[6]; };
std::map<void *, size_t> planned(const char * name, Parameters parameters) {
    return {{(void *) 1, name[0]}, {(void *) 2, parameters.number}, {(void *) 3, (size_t) parameters.last[5]}};
}
"""


class CountsNode(cpp_map.MapNode):
    _fields_ = (("key", c_void_p), ("weights", c_size_t), ("cache", c_size_t), ("graph", c_size_t))


class SizeNode(cpp_map.MapNode):
    _fields_ = (("key", c_void_p), ("size", c_size_t))


class Parameters(ctypes.Structure):
    _fields_ = [("first", c_bool), ("number", c_int), ("text", c_char_p), ("last", c_void_p * 6)]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    directory = tmp_path_factory.mktemp("maps")
    (directory / "maps.cpp").write_text(_SOURCE)
    subprocess.run(["c++", "-shared", "-fPIC", "-O2", "-o", "libmaps.so", "maps.cpp"], cwd=directory, check=True)
    return ctypes.CDLL(str(directory / "libmaps.so"))


@pytest.mark.parametrize("count", [0, 1, 2, 7, 64])
def test_every_element_of_a_returned_map_is_read(library: ctypes.CDLL, count: int) -> None:
    function = cpp_map.bind(library, "_Z6countsPK7Context", c_void_p)
    assert function is not None
    nodes = cpp_map.call(function, CountsNode, count, nodes_max=64)
    assert nodes is not None
    found = sorted((node.key // 16, node.weights, node.cache, node.graph) for node in nodes)
    assert found == [(i, i, 2 * i, 3 * i) for i in range(1, count + 1)]


def test_a_structure_that_is_passed_by_value_arrives_beside_the_place_of_the_result(library: ctypes.CDLL) -> None:
    function = cpp_map.bind(library, "_Z7plannedPKc10Parameters", c_char_p, Parameters)
    assert function is not None
    parameters = Parameters(number=77)
    parameters.last[5] = 12345
    nodes = cpp_map.call(function, SizeNode, b"A", parameters, nodes_max=16)
    assert nodes is not None
    assert {node.key: node.size for node in nodes} == {1: ord("A"), 2: 77, 3: 12345}


def test_a_map_with_more_elements_than_expected_is_not_believed(library: ctypes.CDLL) -> None:
    function = cpp_map.bind(library, "_Z6countsPK7Context", c_void_p)
    assert function is not None
    assert cpp_map.call(function, CountsNode, 65, nodes_max=64) is None


def test_a_function_that_the_library_lacks_is_none(library: ctypes.CDLL) -> None:
    assert cpp_map.bind(library, "_Z7missingv") is None
