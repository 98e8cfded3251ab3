"""Checks of the machine before minutes are spent: compilers, Python's modules, disk space."""

import importlib.util
import shlex
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.setup.failures import COMPILER_ADVICE, DISK_ADVICE, VENV_ADVICE

# Of a build with GCC on x86-64: the unpacked source with its objects, and everything that is installed.
BUILD_BYTES = 1_000_000_000
VENV_BYTES = 1_000_000_000
_COMPILERS = {"CC": ("cc", "gcc", "clang"), "CXX": ("c++", "g++", "clang++")}


class NotReady(Exception):
    """The machine lacks something; the text says what, and how to get it."""


def check_modules() -> None:
    """Check that this Python can make a virtual environment; Debian keeps the modules in a package of their own.

    Raises:
        NotReady: it cannot.
    """
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        raise NotReady(f"this Python has no module {missing[0]}: {VENV_ADVICE}")


def check_space(folder: Path, *, needs_bytes: int) -> None:
    """Check that a folder's disk has room.

    Raises:
        NotReady: it has not.
    """
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needs_bytes:
        free, needed = (f"{size / 1e9:.1f} GB" for size in (free_bytes, needs_bytes))
        raise NotReady(f"{folder} has {free} free, the build needs {needed}: {DISK_ADVICE}")


def check_build_space(venv: Path) -> None:
    """Check the disks that a build writes to.

    Raises:
        NotReady: one is too small.
    """
    temporary = Path(tempfile.gettempdir())
    if temporary.stat().st_dev == venv.parent.stat().st_dev:
        check_space(venv.parent, needs_bytes=BUILD_BYTES + VENV_BYTES)
        return
    check_space(temporary, needs_bytes=BUILD_BYTES)
    check_space(venv.parent, needs_bytes=VENV_BYTES)


def choose_compilers(
    environment: Mapping[str, str],
    *,
    which: Callable[[str], str | None] = shutil.which,
    built_with: Callable[[str], str | None] = sysconfig.get_config_var,
) -> dict[str, str]:
    """Return CC and CXX as far as the build would not find a compiler without them.

    The build takes the compilers that this Python was built with, which other machines may lack.

    Raises:
        NotReady: there is none.
    """
    chosen: dict[str, str] = {}
    for name, usual in _COMPILERS.items():
        if name in environment:
            if not _is_there(environment[name], which):
                raise NotReady(f"{name}={environment[name]} is not installed: {COMPILER_ADVICE}, or unset {name}")
        elif not _is_there(built_with(name) or "", which):
            found = next((compiler for compiler in usual if which(compiler)), None)
            if found is None:
                raise NotReady(f"there is no C++ compiler ({', '.join(usual)}): {COMPILER_ADVICE}")
            chosen[name] = found
    return chosen


def _is_there(command: str, which: Callable[[str], str | None]) -> bool:
    words = shlex.split(command)
    return bool(words) and which(words[0]) is not None
