"""Reasons for a failed setup, and what to do. Pure: output of pip and compilers in, text out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

LINES_MAX = 12
COMPILER_ADVICE = "install a C++ compiler: apt-get install g++ (Fedora: gcc-c++, Alpine: build-base)"
VENV_ADVICE = "install Python's venv module: apt-get install python3-venv"
HEADERS_ADVICE = "install Python's headers: apt-get install python3-dev (Fedora: python3-devel)"
DISK_ADVICE = "free some disk space, or set TMPDIR to a folder on a larger disk, and run make again"
MEMORY_ADVICE = (
    "a compiler was killed, most likely because memory ran out: compile fewer files at once,"
    " CMAKE_BUILD_PARALLEL_LEVEL=1 make setup"
)
NETWORK_ADVICE = (
    "the package index was not reached: check the network, and the proxy and index settings of pip (pip config list),"
    " then run make again"
)
VERSION_ADVICE = (
    "the package index does not have this version for this Python and processor: check the index settings of pip"
    " (pip config list)"
)
HASH_ADVICE = (
    "a download is not the file that the lock names: a proxy or mirror changed it, or it broke off; run make again,"
    " or use another index"
)
CUDA_ADVICE = "install the CUDA toolkit, or leave -DGGML_CUDA=on out of CMAKE_ARGS (docs/gpu.md)"
_NETWORK = re.compile(
    r"name resolution|NewConnectionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError|Max retries"
    r"|Connection (refused|reset|broken|aborted)|Network is unreachable|timed out"
)
# The first that an error matches wins.
_CAUSES: tuple[tuple[str, str], ...] = (
    (r"No space left on device|Disk quota exceeded", DISK_ADVICE),
    (r"Killed signal terminated program|compiler error: Killed|^Killed|SIGKILL", MEMORY_ADVICE),
    (r"virtual memory exhausted|out of memory|Cannot allocate memory", MEMORY_ADVICE),
    (r"nvcc: not found|No CMAKE_CUDA_COMPILER|CUDA Toolkit not found|Could not find nvcc", CUDA_ADVICE),
    (r"No CMAKE_C(XX)?_COMPILER could be found|CMAKE_C(XX)?_COMPILER not set", COMPILER_ADVICE),
    (r"is not a full path and was not found in the PATH|is not able to compile a simple", COMPILER_ADVICE),
    (r"command '\S*(cc|\+\+|clang)\S*' failed: No such file", COMPILER_ADVICE),
    (r"Python\.h: No such file", HEADERS_ADVICE),
    (r"ensurepip is not available|No module named '?(venv|ensurepip)", VENV_ADVICE),
    (r"DO NOT MATCH THE HASHES", HASH_ADVICE),
    (_NETWORK.pattern, NETWORK_ADVICE),
    (r"No matching distribution found|Could not find a version", VERSION_ADVICE),
)
# Lines that say what is wrong, in the words of compilers, linkers, CMake, Ninja and pip.
_ERROR = re.compile(
    r"(^|\s)(fatal )?error:|undefined reference|multiple definition|\bld: |CMake Error|No space left|Killed"
    r"|^\s*(ERROR|\w*Error): |No matching distribution|command not found"
)
# They repeat that something has failed, and nothing about what.
_NOISE = re.compile(
    r"subprocess-exited-with-error|Failed to build|Failed building wheel|note: This error originates"
    r"|ninja: build stopped|collect2: error: ld returned|CalledProcessError|metadata-generation-failed"
    r"|\[end of output\]|\[\d+ lines of output\]|exit code: \d+|See above for output|hint: "
)
_CMAKE_TEXT = re.compile(r"^\s{4,}\S")


@dataclass(frozen=True, slots=True)
class Failure:
    """Failed command, as it is shown."""

    lines: tuple[str, ...]  # the last errors, oldest first
    advice: str  # empty: no known cause


def explain(output: Sequence[str]) -> Failure:
    """Find the errors in a command's output, and the cause if it is a known one."""
    errors = _errors(output) or [line for line in output if line.strip() and not _NOISE.search(line)]
    text = "\n".join(errors)
    advice = next((advice for cause, advice in _CAUSES if re.search(cause, text, re.MULTILINE)), "")
    if advice == VERSION_ADVICE and _NETWORK.search("\n".join(output)):
        advice = NETWORK_ADVICE  # pip warns of each attempt, and in the end only says that it has found no version
    return Failure(tuple(line.rstrip() for line in errors[-LINES_MAX:]), advice)


def _errors(output: Sequence[str]) -> list[str]:
    """Return the lines that name errors, each once; what CMake says stands indented below its own."""
    found: list[str] = []
    below_cmake = False
    for line in output:
        below_cmake = "CMake Error" in line or (below_cmake and (not line.strip() or bool(_CMAKE_TEXT.match(line))))
        is_error = below_cmake or bool(_ERROR.search(line))
        if is_error and line.strip() and not _NOISE.search(line) and line not in found:
            found.append(line)
    return found
