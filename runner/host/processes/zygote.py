"""The host's zygote: started, asked for forks, replaced when it ends. See docs/decisions/0025-zygote.md."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.telemetry.logs import get_logger
from runner.core.host.environment import child_environment
from runner.core.host.forks import READY, ForkRequest, can_fork
from runner.host.processes.forking import FORK_TIMEOUT_S, request_fork
from runner.host.processes.process import ProcessHandle, read_log_tail
from runner.host.processes.stopping import REAP_TIMEOUT_S

log = get_logger()

# Interpreter and imports; disks may be cold.
READY_TIMEOUT_S = 60.0
# From the end of one to the start of the next; longer each time that one ends before it is ready.
RESTART_S_MIN, RESTART_S_MAX = 0.1, 300.0


class Zygote:
    """One process at a time. While there is none, `fork` returns None and runners are started by their command."""

    def __init__(self, log_path: Path) -> None:
        self.ready = asyncio.Event()
        self.process: ProcessHandle | None = None
        self._log_path = log_path
        self._control: socket.socket | None = None

    async def run(self) -> None:
        """Have a zygote for ever; cancelling ends it."""
        pause_s = RESTART_S_MIN
        while True:
            try:
                pause_s = RESTART_S_MIN if await self._live_once() else min(2 * pause_s, RESTART_S_MAX)
            except OSError as error:
                pause_s = min(2 * pause_s, RESTART_S_MAX)
                log.warning("zygote.not_started", text=str(error))
            log.warning("zygote.ended", again_in_s=pause_s, text=read_log_tail(self._log_path).strip())
            await asyncio.sleep(pause_s)

    def renew(self) -> None:
        """Replace the process, which holds libraries as they were when it started."""
        if self.process is not None:
            self.process.kill_group()

    async def fork(
        self,
        command: Sequence[str],
        *,
        variables: Mapping[str, str],
        streams: tuple[int, int, int],
        inherited: Sequence[int] = (),
    ) -> ProcessHandle | None:
        """Fork a runner with these standard streams; None: start it by its command.

        Without a fork nothing of the request is ever run: a fork waits until it is heard of, and ends otherwise.
        `variables` are set beside what every child gets.
        """
        control = self._control
        if control is None or not can_fork(command, interpreter=sys.executable, own_variables=variables):
            return None
        environment = {**child_environment(os.environ), **variables}
        request = ForkRequest(words=list(command), environment=environment, places=list(inherited))
        try:
            fork = await request_fork(control, request, given=(*streams, *inherited))
        except TimeoutError:
            log.error("zygote.hung", waited_s=FORK_TIMEOUT_S)
            self.renew()
            return None
        except OSError as error:
            log.warning("zygote.refused", text=str(error))
            return None
        return ProcessHandle(fork.pid, fork.pidfd, is_child=False, report=fork.answer) if fork is not None else None

    async def _live_once(self) -> bool:
        """Start a zygote and wait for its end; True if it has been ready."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            with theirs:
                process = self._start(theirs)
            with contextlib.suppress(TimeoutError, OSError):
                async with asyncio.timeout(READY_TIMEOUT_S):
                    is_ready = await asyncio.get_running_loop().sock_recv(ours, len(READY)) == READY
                if is_ready:
                    self._control = ours
                    self.ready.set()
                    log.info("zygote.ready", pid=process.pid)
                    await process.exited.wait()
            return self.ready.is_set()
        finally:
            self._control = None
            self.ready.clear()
            if self.process is not None:
                self.process.kill_group()
                await self.process.wait(REAP_TIMEOUT_S)
            self.process = None
            ours.close()

    def _start(self, control: socket.socket) -> ProcessHandle:
        words = ["-m", "runner", "zygote", "--control", str(control.fileno())]
        with self._log_path.open("wb") as log_file:
            child = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                env=child_environment(os.environ),
                pass_fds=[control.fileno()],
                start_new_session=True,
            )
        self.process = ProcessHandle(child.pid, os.pidfd_open(child.pid), is_child=True)
        child.returncode = 0  # ProcessHandle reaps
        return self.process


_in_use: list[Zygote] = []  # of this process: one, unless it is turned off


def use_zygote(zygote: Zygote) -> None:
    """Let this process's children be forked from now on."""
    _in_use[:] = [zygote]


def zygote_in_use() -> Zygote | None:
    """Return the zygote of this process."""
    return _in_use[0] if _in_use else None
