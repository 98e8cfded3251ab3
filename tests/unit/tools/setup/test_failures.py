"""A failed setup ends with the errors, and with what to install or change."""

import pytest

from tools.setup.failures import (
    COMPILER_ADVICE,
    CUDA_ADVICE,
    DISK_ADVICE,
    HASH_ADVICE,
    HEADERS_ADVICE,
    LINES_MAX,
    MEMORY_ADVICE,
    NETWORK_ADVICE,
    VENV_ADVICE,
    VERSION_ADVICE,
    explain,
)

RETRY = (
    "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'NewConnectionError(': Failed to"
    " establish a new connection: [Errno -3] Temporary failure in name resolution')': /simple/anyio/"
)
NO_VERSION = "ERROR: Could not find a version that satisfies the requirement anyio==4.9 (from versions: none)"
CMAKE = """
  CMake Error at CMakeLists.txt:3 (project):
    No CMAKE_CXX_COMPILER could be found.

    Tell CMake where to find the compiler by setting either the environment
    variable "CXX" or the CMake cache entry CMAKE_CXX_COMPILER.

  -- Configuring incomplete, errors occurred!
""".splitlines()


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("  c++: fatal error: Killed signal terminated program cc1plus", MEMORY_ADVICE),
        ("  cc1plus: error: out of memory allocating 65536 bytes", MEMORY_ADVICE),
        ("  fatal error: error writing to /tmp/ccX.s: No space left on device", DISK_ADVICE),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", DISK_ADVICE),
        ("  redis.c:1:10: fatal error: Python.h: No such file or directory", HEADERS_ADVICE),
        ("The virtual environment was not created successfully because ensurepip is not available.", VENV_ADVICE),
        ("/usr/bin/python3: No module named venv", VENV_ADVICE),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", HASH_ADVICE),
        ("  error: command 'g++' failed: No such file or directory", COMPILER_ADVICE),
        (NO_VERSION, VERSION_ADVICE),
    ],
)
def test_a_known_cause_has_its_remedy(line: str, advice: str) -> None:
    failure = explain(["Collecting a", line, "error: subprocess-exited-with-error"])
    assert failure.advice == advice
    assert line.strip() in [shown.strip() for shown in failure.lines]


def test_what_cmake_says_below_its_error_belongs_to_it() -> None:
    failure = explain(["  -- The C compiler identification is GNU", *CMAKE, "ninja: build stopped: x"])
    assert failure.advice == COMPILER_ADVICE
    assert "    No CMAKE_CXX_COMPILER could be found." in failure.lines
    assert not any("identification" in line or "incomplete" in line for line in failure.lines)


def test_a_compiler_of_cuda_has_its_own_remedy() -> None:
    lines = [
        "  CMake Error at ggml/src/ggml-cuda/CMakeLists.txt:2 (enable_language):",
        "    No CMAKE_CUDA_COMPILER could be found.",
    ]
    assert explain(lines).advice == CUDA_ADVICE


def test_an_index_that_was_not_reached_is_not_a_missing_version() -> None:
    assert explain([RETRY, NO_VERSION]).advice == NETWORK_ADVICE


def test_a_download_that_was_repeated_is_not_why_a_build_failed() -> None:
    failure = explain(
        [RETRY, "  x.cpp:3:1: error: expected ';' before '}' token", "ERROR: Failed building wheel for x"]
    )
    assert failure.advice == ""
    assert failure.lines == ("  x.cpp:3:1: error: expected ';' before '}' token",)


def test_the_last_errors_are_shown_each_once() -> None:
    errors = [f"  x.cpp:{line}:1: error: number {line}" for line in range(40)]
    output = [part for error in errors for part in (f"[{1}/9] Building", error, error, "   12 |  code")]
    failure = explain(output)
    assert list(failure.lines) == errors[-LINES_MAX:]


def test_without_any_error_the_last_lines_are_shown() -> None:
    output = [f"line {number}" for number in range(40)] + ["", "      [end of output]"]
    assert explain(output).lines[-1] == "line 39"
    assert explain([]).lines == ()
