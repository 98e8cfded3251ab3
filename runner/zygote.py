"""`python -m runner zygote`: a process that has imported all that runners need, and forks into them.

It has one thread, opens no device, starts no backend and no gRPC, and takes requests of its host alone, through an
inherited socket. A fork becomes a runner as if it had been started by a command: session, environment, command line and
descriptors are its own, and it confines itself. It runs on when the zygote ends. See docs/decisions/0025-zygote.md.
"""

import argparse
import contextlib
import gc
import os
import select
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path

from runner.__main__ import MODES, main
from runner.core.host.forks import EXIT_STATUS, FORKED_MODES, READY, ForkRequest
from runner.forked import begin, leave, show_command

_DESCRIPTORS_MAX = 16
_IMPORTED_LATE = ("encodings.idna",)  # by the first resolution of a name


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
        leave(main())
    return 0


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
                return begin(content, host, given)
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
