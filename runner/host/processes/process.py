"""One runner process: spawned or found again, watched through a pidfd, ended with its whole process group."""

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
from pathlib import Path
from typing import Self

from common.errors import PlacementMismatch
from runner.core.host.forks import EXIT_STATUS

PROC = Path("/proc")
LOG_TAIL_BYTES = 16384  # an event with a traceback is some KiB
# From the end of a fork to the word of the process that reaps it.
REPORT_TIMEOUT_S = 2.0


def start_ticks(pid: int) -> int | None:
    """Return the start of a process in clock ticks since boot: with the pid it names one process. None: gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The command's name is in parentheses and may hold anything; field 3 follows the last one, field 22 is the start.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def take_lock(path: Path) -> int:
    """Lock a file that the runner inherits, so that no second one of the placement can start while it lives.

    Raises:
        PlacementMismatch: a process of this placement lives.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise PlacementMismatch("a process of this placement is still alive on this node") from error
    return descriptor


async def until_readable(descriptor: int) -> None:
    """Wait until a read of a pipe or socket does not wait. The descriptor stays the caller's.

    By hand: as a transport of uvloop it would be closed twice, the second time perhaps as another's.
    """
    readable = asyncio.Event()
    asyncio.get_running_loop().add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        asyncio.get_running_loop().remove_reader(descriptor)


class ProcessHandle:
    """A live or ended process. `exited` is set as soon as the kernel says so, `unreaped` if SIGKILL did not end it."""

    def __init__(self, pid: int, pidfd: int, *, is_child: bool, report: socket.socket | None = None) -> None:
        """Watch the process; of a fork, which is not ours to reap, `report` says how it ended."""
        self.pid = pid
        self.exited = asyncio.Event()
        self.unreaped = asyncio.Event()
        # Negative for a signal; None while it lives, for adopted processes and for forks that their zygote left.
        self.exit_code: int | None = None
        self._pidfd = pidfd
        self._is_child = is_child
        self._report = report
        asyncio.get_running_loop().add_reader(pidfd, self._on_exit)

    @property
    def is_fork(self) -> bool:
        """The zygote of this host forked it."""
        return self._report is not None

    @classmethod
    def adopt(cls, pid: int, ticks: int) -> Self | None:
        """Return the process that an earlier host started, or None if it is gone and the pid perhaps another's."""
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        # Compared after the pidfd is open: from here on the pid cannot change hands unnoticed.
        if start_ticks(pid) != ticks:
            os.close(pidfd)
            return None
        return cls(pid, pidfd, is_child=False)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process itself; nothing if it is gone."""
        if not self.exited.is_set():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill_group(self) -> None:
        """SIGKILL the process and everything in its group. The group bears its pid, because it leads its session."""
        if not self.exited.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the end; False if it still lives after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.exited.wait()
        except TimeoutError:
            return False
        return True

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        if self._is_child:
            # What the runner may have left in its group goes first: the group cannot be reused before we reap.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._reap(os.WEXITED)
        if self._report is None:
            self._end()
            return
        late = asyncio.get_running_loop().call_later(REPORT_TIMEOUT_S, self._on_report, self._report, None)
        asyncio.get_running_loop().add_reader(self._report, self._on_report, self._report, late)

    def _on_report(self, report: socket.socket, late: asyncio.TimerHandle | None) -> None:
        """Take the exit code of a fork; there is none if its zygote has ended, or does not run for now."""
        asyncio.get_running_loop().remove_reader(report)
        if late is not None:
            late.cancel()
        with contextlib.suppress(OSError), report:
            status = report.recv(EXIT_STATUS.size)
            if len(status) == EXIT_STATUS.size:
                (self.exit_code,) = EXIT_STATUS.unpack(status)
            else:
                self._reap(os.WEXITED | os.WNOHANG)  # process 1 of a container is the parent of all that lost theirs
        self._end()

    def _reap(self, options: int) -> None:
        with contextlib.suppress(ChildProcessError):
            ended = os.waitid(os.P_PIDFD, self._pidfd, options)
            if ended is not None:
                self.exit_code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def _end(self) -> None:
        os.close(self._pidfd)
        self.exited.set()


def find_runners_of(home: Path) -> dict[str, int]:
    """Pids of live runners whose command line names a socket or lock in `home`, by placement id.

    For the moment between a spawn and the note about it: a host that died there knows the placement only.
    """
    found: dict[str, int] = {}
    for entry in PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"--placement" in words and b"runner" in words and b"serve" in words:
                placement_id = words[words.index(b"--placement") + 1].decode(errors="replace")
                if _holds_lock(entry, home / f"{placement_id}.lock"):
                    found[placement_id] = int(entry.name)
    return found


def _holds_lock(process: Path, lock: Path) -> bool:
    with contextlib.suppress(OSError):
        wanted = lock.stat()
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                status = descriptor.stat()
                if (status.st_dev, status.st_ino) == (wanted.st_dev, wanted.st_ino):
                    return True
    return False


def read_log_tail(path: Path) -> str:
    """Return the last lines of a runner's log, whole ones."""
    try:
        with path.open("rb") as file:
            begin = max(0, path.stat().st_size - LOG_TAIL_BYTES)
            file.seek(begin)
            tail = file.read().decode(errors="replace")
    except OSError:
        return ""
    return tail.partition("\n")[2] if begin else tail
