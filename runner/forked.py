"""Turn a fork into the process of a command, and end it as one. See docs/decisions/0025-zygote.md."""

import atexit
import contextlib
import ctypes
import fcntl
import mmap
import os
import socket
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from runner.core.host.forks import GO, ForkRequest

_SET_MEMORY_MAP, _WHOLE_MAP, _SET_NAME = 35, 14, 15  # of prctl
_MEMORY_MAP = struct.Struct("=11QQIi")  # struct prctl_mm_map
_shown: list[mmap.mmap] = []  # the kernel reads it for as long as the process lives


def begin(content: int, asker: socket.socket, given: Sequence[int]) -> ForkRequest:
    """Make this fork a process of its own. It ends at once if its asker has given up.

    Args:
        content: file of the encoded request.
        asker: hears of this fork, see `runner.host.processes.forking`.
        given: descriptors, in the order of the request.
    """
    os.setsid()
    try:
        own = os.pidfd_open(os.getpid())
        socket.send_fds(asker, [str(os.getpid()).encode()], [own])
        os.close(own)
        is_wanted = asker.recv(len(GO)) == GO
    except OSError:
        is_wanted = False
    if not is_wanted:
        os._exit(1)
    asker.close()
    with os.fdopen(content, "rb") as file:
        request = ForkRequest.decode(file.read())
    _place(given, (0, 1, 2, *request.places))
    os.environ.clear()
    os.environ.update(request.environment)
    show_command(request.words, request.environment)
    return request


def _place(given: Sequence[int], places: Sequence[int]) -> None:
    """Give each descriptor its number; none of them may overwrite another one that is still to be moved."""
    above = max(*given, *places) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above) for descriptor in given]
    for descriptor in given:
        os.close(descriptor)
    for descriptor, place in zip(moved, places, strict=True):
        os.dup2(descriptor, place)
        os.close(descriptor)


def show_command(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Show this command line and environment in /proc, where operators, and the host after a restart, look for runners.

    Source: PR_SET_MM_MAP in prctl(2); it needs no privilege.

    Raises:
        OSError: the kernel was built without it.
    """
    line = b"".join(os.fsencode(word) + b"\0" for word in words)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    area = mmap.mmap(-1, len(line) + len(variables), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.write(line + variables)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    figures = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    # Fields 26 and on of proc_pid_stat(5); the first in `figures` is field 3.
    code_start, code_end, stack, data_start, data_end, brk_start = (int(figures[n]) for n in (23, 24, 25, 42, 43, 44))
    library = ctypes.CDLL(None, use_errno=True)
    library.sbrk.restype = ctypes.c_void_p
    brk = library.sbrk(ctypes.c_ssize_t(0))
    places = (start, start + len(line), start + len(line), start + len(area))
    chosen = _MEMORY_MAP.pack(
        *(code_start, code_end, data_start, data_end, brk_start, brk, stack, *places),
        *(0, 0, -1),  # the auxiliary vector and the program stay
    )
    if library.prctl(_SET_MEMORY_MAP, _WHOLE_MAP, chosen, ctypes.c_size_t(len(chosen)), ctypes.c_size_t(0)):
        number = ctypes.get_errno()
        raise OSError(number, f"the command line cannot be changed: {os.strerror(number)}")
    library.prctl(_SET_NAME, os.fsencode(Path(words[0]).name), 0, 0, 0)
    _shown.append(area)


def leave(status: int) -> NoReturn:
    """End this fork without taking the interpreter down: that would write to every object, and copy its page."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that an interpreter waits for
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the reader is gone
            stream.flush()
    os._exit(status)
