"""One runner process: spawned or found again, watched through a pidfd, ended with its whole process group."""

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Self

from common.errors import InternalError, PlacementMismatch
from runner.core.host.environment import child_environment

PROC = Path("/proc")
HELLO_BYTES_MAX = 4096
LOG_TAIL_BYTES = 16384  # an event with a traceback is some KiB
# The kernel should end runners before it ends what watches over them.
OOM_SCORE_ADJUSTMENT = 500


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


class ProcessHandle:
    """A live or ended process. `exited` is set as soon as the kernel says so, `unreaped` if SIGKILL did not end it."""

    def __init__(self, pid: int, pidfd: int, *, is_child: bool) -> None:
        self.pid = pid
        self.exited = asyncio.Event()
        self.unreaped = asyncio.Event()
        self.exit_code: int | None = None  # negative for a signal; None while it lives, and for adopted processes
        self._pidfd = pidfd
        self._is_child = is_child
        asyncio.get_running_loop().add_reader(pidfd, self._on_exit)

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
            ended = os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
            if ended is not None:
                self.exit_code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        os.close(self._pidfd)
        self.exited.set()


class SpawnedRunner:
    """A process that this host started, and the pipe on which it says hello."""

    def __init__(self, process: ProcessHandle, hello: int) -> None:
        self.process = process
        self._hello = hello

    async def hello(self, timeout_s: float) -> bytes:
        """Return the one line that a runner prints once it listens; empty if it ended or kept silent."""
        # By hand: as a transport of uvloop the descriptor would be closed twice, the second time perhaps as another's.
        loop = asyncio.get_running_loop()
        complete = asyncio.Event()
        line = bytearray()

        def read() -> None:
            part = os.read(self._hello, HELLO_BYTES_MAX)
            line.extend(part)
            if not part or b"\n" in part or len(line) > HELLO_BYTES_MAX:
                complete.set()

        loop.add_reader(self._hello, read)
        try:
            async with asyncio.timeout(timeout_s):
                await complete.wait()
        except TimeoutError:
            return b""
        finally:
            loop.remove_reader(self._hello)
            os.close(self._hello)
        return bytes(line)


def spawn(
    command: Sequence[str],
    *,
    log_path: Path,
    environment: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> tuple[ProcessHandle, subprocess.Popen[bytes]]:
    """Start a runner in a session of its own, with a pipe for what it says.

    `environment` is set beside what every child gets.

    Raises:
        InternalError: the system refuses to start processes.
    """
    try:
        with log_path.open("ab") as log_file:
            child = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=log_file,
                env={**child_environment(os.environ), **environment},
                pass_fds=pass_fds,
                start_new_session=True,
            )
    except OSError as error:
        raise InternalError(f"cannot start a runner: {error}") from error
    process = ProcessHandle(child.pid, os.pidfd_open(child.pid), is_child=True)
    child.returncode = 0  # ProcessHandle reaps; without this Popen would try, too, when it is collected
    return process, child


def take_pipe(pipe: IO[bytes] | None) -> int:
    """Return a descriptor of our own for a pipe to a child; Popen's file is closed here and now."""
    assert pipe is not None, "the child was started with it"
    with pipe:
        return os.dup(pipe.fileno())


def spawn_runner(
    command: Sequence[str], *, log_path: Path, inherited: Sequence[int], environment: Mapping[str, str]
) -> SpawnedRunner:
    """Start a runner that survives this host. The inherited descriptors, its lock among them, pass to it.

    Raises:
        InternalError: as `spawn`.
    """
    try:
        process, child = spawn(command, log_path=log_path, environment=environment, pass_fds=inherited)
    finally:
        for descriptor in inherited:
            os.close(descriptor)
    with contextlib.suppress(OSError):
        (PROC / str(child.pid) / "oom_score_adj").write_text(str(OOM_SCORE_ADJUSTMENT))
    return SpawnedRunner(process, take_pipe(child.stdout))


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
