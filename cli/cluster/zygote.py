"""The process from which `puna up` forks its services, so that they share what all of them import.

It is forked itself before the supervisor has a thread or a loop, has one thread, and calls nothing of gRPC's core. A
service is forked twice: what forked it ends at once, so it becomes a child of the supervisor, which is a subreaper, as
if the supervisor had started its command. The zygote may end; services are started by their commands then. See
docs/decisions/0028-forked-services.md.
"""

import ctypes
import gc
import os
import runpy
import select
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from runner.core.host.forks import ForkRequest
from runner.forked import begin, leave, show_command
from runner.host.processes.forking import request_fork
from runner.host.processes.process import ProcessHandle

# Where the packages lie: a directory named like one of them in the user's current directory must not be run instead.
PACKAGES = Path(__file__).resolve().parents[2]
# Beside what commands import: what every service does.
_IMPORTED = ("common.service", "common.metrics_page")
_SET_PARENT_DEATH_SIGNAL = 1  # of prctl
_GIVEN = 5  # content, answer, and the standard streams


class ServiceZygote:
    """The supervisor's end. While the zygote does not answer, `start` returns None."""

    def __init__(self, control: socket.socket) -> None:
        """`control`: each message of it is a request."""
        self._control: socket.socket | None = control

    async def start(
        self, command: Sequence[str], *, environment: Mapping[str, str], streams: tuple[int, int, int]
    ) -> ProcessHandle | None:
        """Fork a service of `python -m MODULE …` with these standard streams; None: start it by its command."""
        if self._control is None or list(command[:2]) != [sys.executable, "-m"]:
            return None
        request = ForkRequest(words=list(command), environment=dict(environment))
        try:
            fork = await request_fork(self._control, request, given=streams)
        except OSError:  # among them TimeoutError
            self.close()
            return None
        if fork is None:
            return None
        fork.answer.close()
        return ProcessHandle(fork.pid, fork.pidfd, is_child=True)

    def close(self) -> None:
        """Have no services forked any more; the process ends."""
        if self._control is not None:
            self._control.close()
        self._control = None


def fork_zygote() -> ServiceZygote | None:
    """Fork the zygote; None: this process has threads already, so that a fork would not be safe."""
    if _threads() > 1:
        return None
    supervisor = os.getpid()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        ours.setblocking(False)
        return ServiceZygote(ours)
    try:
        ours.close()
        fault = _prepare(theirs)
        if fault:
            print(f"puna: services share no memory: {fault}", file=sys.stderr)
        else:
            _serve(theirs, supervisor)
    except BaseException:  # noqa: BLE001  # the stack above is the supervisor's
        traceback.print_exc()
    os._exit(1)


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208  # names are all that is wanted


def _prepare(control: socket.socket) -> str:
    """Make this fork a process of its own, with what services import; return why it cannot fork them, or nothing."""
    os.setsid()  # a Ctrl-C of the terminal is the supervisor's
    os.closerange(3, control.fileno())
    os.closerange(control.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    os.chdir(PACKAGES)
    sys.path[0] = str(PACKAGES)
    for module in _IMPORTED:
        import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a fork would otherwise write to every object, and copy its page
    try:
        show_command([sys.executable, "-m", "cli.cluster.zygote"], os.environ)
    except OSError as error:
        return str(error)
    return "" if _threads() == 1 else "the imports started threads; only one is safe to fork"


def _serve(control: socket.socket, supervisor: int) -> NoReturn:
    """Fork for each request until the supervisor is gone."""
    while True:
        message, received, _, _ = socket.recv_fds(control, 1, _GIVEN, socket.MSG_CMSG_CLOEXEC)
        if not message:
            os._exit(0)
        try:
            between = os.fork()
        except OSError:  # the system refuses processes for now; the supervisor hears that there is none
            between = -1
        if not between:
            _fork_again(control, received, supervisor)
        if between > 0:
            os.waitpid(between, 0)
        for descriptor in received:
            os.close(descriptor)


def _fork_again(control: socket.socket, received: Sequence[int], supervisor: int) -> NoReturn:
    """Fork the service and end, so that the supervisor becomes its parent."""
    own = os.pidfd_open(os.getpid())
    if os.fork():
        os._exit(0)
    control.close()
    parent = select.poll()
    parent.register(own, select.POLLIN)
    parent.poll()  # until it has ended, which has given this process its next parent
    os.close(own)
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != supervisor:
        os._exit(1)
    content, answer, *streams = received
    leave(_run(begin(content, socket.socket(fileno=answer), streams)))


def _run(request: ForkRequest) -> int:
    """Run the module as `python -m` does; return its exit status."""
    sys.argv[1:] = request.words[3:]
    try:
        runpy.run_module(request.words[2], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0
