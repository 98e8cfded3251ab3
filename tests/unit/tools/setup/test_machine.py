"""Missing packages are named before minutes are spent."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tools.setup.failures import COMPILER_ADVICE, DISK_ADVICE
from tools.setup.machine import NotReady, check_modules, check_space, choose_compilers


def which(*installed: str) -> Callable[[str], str | None]:
    return lambda name: f"/usr/bin/{name}" if name in installed else None


def built_with(**compilers: str) -> Callable[[str], str | None]:
    return compilers.get


def test_the_compilers_that_the_build_finds_itself_are_left_to_it() -> None:
    found = choose_compilers(
        {}, which=which("gcc", "g++"), built_with=built_with(CC="gcc -pthread", CXX="g++ -pthread")
    )
    assert found == {}


def test_compilers_of_another_machine_are_replaced() -> None:
    built = built_with(CC="/opt/build/bin/clang", CXX="/opt/build/bin/clang++")
    assert choose_compilers({}, which=which("gcc", "c++"), built_with=built) == {"CC": "gcc", "CXX": "c++"}


def test_a_machine_without_a_compiler_is_told_the_package() -> None:
    with pytest.raises(NotReady, match="g\\+\\+") as raised:
        choose_compilers({}, which=which("gcc"), built_with=built_with(CC="gcc", CXX="g++"))
    assert COMPILER_ADVICE in str(raised.value)


def test_a_compiler_that_was_named_and_is_missing_is_named_back() -> None:
    with pytest.raises(NotReady, match="CXX=g\\+\\+-99"):
        choose_compilers({"CXX": "g++-99"}, which=which("gcc", "g++"), built_with=built_with(CC="gcc", CXX="g++"))


def test_a_wrapper_in_front_of_a_compiler_is_a_compiler() -> None:
    environment = {"CC": "ccache gcc", "CXX": "ccache g++"}
    assert choose_compilers(environment, which=which("ccache"), built_with=built_with()) == {}


def test_a_full_disk_is_told_with_its_bytes(tmp_path: Path) -> None:
    check_space(tmp_path, needs_bytes=1)
    with pytest.raises(NotReady, match=r"GB free, the build needs 1000000\.0 GB") as raised:
        check_space(tmp_path, needs_bytes=10**15)
    assert DISK_ADVICE in str(raised.value)


def test_this_python_has_what_an_environment_needs() -> None:
    check_modules()
