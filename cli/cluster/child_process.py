"""One child process in a session of its own."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from cli.cluster.process_table import ProcessEntry, read_process

# Where the packages lie: a directory named like one of them in the user's current directory must not be run instead.
PACKAGES = Path(__file__).resolve().parents[2]


class ChildProcess:
    """Started through `cli.child`, so that it gets SIGTERM when this process dies.

    The exit is noticed through a pidfd and the child is reaped here only: until then its pid and group belong to it,
    and a signal cannot hit another process.
    """

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        """Use `start`."""
        self._popen = popen
        self._pidfd = os.pidfd_open(popen.pid)
        self._exited = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._pidfd, self._exited.set)
        entry = read_process(popen.pid)
        assert entry is not None, "an unreaped child is in the table"
        self.entry: ProcessEntry = entry

    @classmethod
    def start(cls, command: tuple[str, ...], *, environment: Mapping[str, str], log: Path) -> Self:
        """Start a command; it reads nothing, and what it writes is appended to the log."""
        shim = [sys.executable, "-m", "cli.child", str(os.getpid()), "--"]
        with log.open("ab") as output:
            return cls(
                subprocess.Popen(
                    [*shim, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=dict(environment),
                    cwd=PACKAGES,
                    # A Ctrl-C of the terminal goes to the foreground group; the supervisor alone shall get it.
                    start_new_session=True,
                )
            )

    @property
    def pid(self) -> int:
        """Of the process and of its group."""
        return self._popen.pid

    async def wait(self) -> int:
        """Wait for the exit; kill what is left of its group; return the status (negative: minus the signal)."""
        await self._exited.wait()
        self.kill_group()
        status = self._popen.wait()
        self._forget()
        return status

    def terminate(self) -> None:
        """Ask the process to stop. It alone: it knows how to stop what it started."""
        self._signal(os.kill, signal.SIGTERM)

    def kill_group(self) -> None:
        """End the process and everything in its group at once."""
        self._signal(os.killpg, signal.SIGKILL)

    def _signal(self, send: Callable[[int, int], None], number: signal.Signals) -> None:
        # A returncode says that the child was reaped: its pid may be another process's by now.
        if self._popen.returncode is None:
            with suppress(ProcessLookupError):
                send(self._popen.pid, number)

    def _forget(self) -> None:
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
