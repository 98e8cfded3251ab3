"""`python -m runner zygote`: a process that has imported all that runners need, and forks into them.

It has one thread, opens no device, starts no backend and no gRPC, and takes requests of its host alone, through an
inherited socket. A fork becomes a runner as if it had been started by a command: session, environment, command line and
descriptors are its own, and it confines itself. It runs on when the zygote ends. See docs/decisions/0025-zygote.md.
"""

import argparse
import atexit
import contextlib
import ctypes
import fcntl
import gc
import mmap
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from runner.__main__ import MODES, main
from runner.core.host.forks import EXIT_STATUS, FORKED_MODES, GO, READY, ForkRequest

_DESCRIPTORS_MAX = 16
_IMPORTED_LATE = ("encodings.idna",)  # by the first resolution of a name
_SET_MEMORY_MAP, _WHOLE_MAP = 35, 14  # of prctl
_MEMORY_MAP = struct.Struct("=11QQIi")  # struct prctl_mm_map
_shown: list[mmap.mmap] = []  # the kernel reads it for as long as the process lives


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this mode."""
    parser.add_argument("--control", type=int, required=True, help="inherited socket on which the host asks")


def run(args: argparse.Namespace) -> int:
    """Fork for the host until it is gone; 0 then, 1 if this system cannot do it. A fork runs its mode and ends."""
    control = socket.socket(fileno=args.control)
    for module in (*(MODES[mode][0] for mode in FORKED_MODES), *_IMPORTED_LATE):
        import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a fork would otherwise write to every object, and copy its page
    try:
        show_command([sys.executable, "-m", "runner", *sys.argv[1:]], os.environ)
    except OSError as error:
        print(f"puna runner zygote: {error}", file=sys.stderr)
        return 1
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads != 1:
        print(f"puna runner zygote: {threads} threads after the imports; only one is safe to fork", file=sys.stderr)
        return 1
    request = _fork_on_request(control)
    if request is not None:
        sys.argv[1:] = request.words[3:]
        _leave(main())
    return 0


def _leave(status: int) -> NoReturn:
    """End this fork without taking the interpreter down: that would write to every object, and copy its page."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the reader is gone
            stream.flush()
    os._exit(status)


def _fork_on_request(control: socket.socket) -> ForkRequest | None:
    """Fork for each request, and report each end. Returns the request in a fork, None here when the host is gone."""
    runners: dict[int, tuple[int, socket.socket]] = {}  # by pidfd
    events = select.poll()
    events.register(control, select.POLLIN)
    control.send(READY)
    while True:
        for descriptor, _ in events.poll():
            if descriptor in runners:
                events.unregister(descriptor)
                _report_end(descriptor, *runners.pop(descriptor))
                continue
            flags = socket.MSG_CMSG_CLOEXEC
            message, received, _, _ = socket.recv_fds(control, 1, _DESCRIPTORS_MAX, flags)
            if not message:
                return None
            content, answer, *given = received
            host = socket.socket(fileno=answer)
            try:
                pid = os.fork()
            except OSError:
                pid = -1
            if pid == 0:
                for pidfd, (_, other) in runners.items():
                    os.close(pidfd)
                    other.close()
                control.close()
                return _begin(content, host, given)
            for taken in (content, *given):
                os.close(taken)
            if pid < 0:
                host.close()
                continue
            pidfd = os.pidfd_open(pid)
            runners[pidfd] = pid, host
            events.register(pidfd, select.POLLIN)


def _report_end(pidfd: int, pid: int, host: socket.socket) -> None:
    """Kill what a runner left in its group, reap it, and tell the host how it ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # before the reaping: until then the number of the group is not used again
    ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    os.close(pidfd)
    if ended is not None:
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        with contextlib.suppress(OSError), host:
            host.send(EXIT_STATUS.pack(status))


def _begin(content: int, host: socket.socket, given: Sequence[int]) -> ForkRequest:
    """Make this fork a process of its own. It ends at once if the host no longer waits for it."""
    os.setsid()
    try:
        own = os.pidfd_open(os.getpid())
        socket.send_fds(host, [str(os.getpid()).encode()], [own])
        os.close(own)
        is_wanted = host.recv(len(GO)) == GO
    except OSError:
        is_wanted = False
    if not is_wanted:
        os._exit(1)
    host.close()
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
    _shown.append(area)
