"""Starts of runners: forked from the zygote where that is possible, else by their command."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from common.errors import InternalError
from runner.core.host.environment import child_environment
from runner.host import metrics
from runner.host.processes.process import PROC, ProcessHandle, until_readable
from runner.host.processes.zygote import zygote_in_use

HELLO_BYTES_MAX = 4096
READ_BYTES = 64 * 1024
# The kernel should end runners before it ends what watches over them.
OOM_SCORE_ADJUSTMENT = 500


class SpawnedRunner:
    """A process that this host started, and the pipe on which it says hello."""

    def __init__(self, process: ProcessHandle, hello: int) -> None:
        self.process = process
        self._hello = hello

    async def hello(self, timeout_s: float) -> bytes:
        """Return the one line that a runner prints once it listens; empty if it ended or kept silent."""
        line = bytearray()
        try:
            async with asyncio.timeout(timeout_s):
                while (part := await read_piece(self._hello)) and len(line) < HELLO_BYTES_MAX:
                    line += part
                    if b"\n" in part:
                        break
        except TimeoutError:
            return b""
        finally:
            os.close(self._hello)
        return bytes(line)


async def read_piece(pipe: int) -> bytes:
    """Wait for the next piece of a pipe; empty at its end."""
    await until_readable(pipe)
    return os.read(pipe, READ_BYTES)


async def spawn(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    stdout: int,
    stderr: int,
    stdin: int | None = None,
    inherited: Sequence[int] = (),
) -> ProcessHandle:
    """Start a runner in a session of its own. It gets copies of the descriptors; without `stdin` it reads nothing.

    `environment` is set beside what every child gets.

    Raises:
        InternalError: the system refuses to start processes.
    """
    try:
        with contextlib.ExitStack() as held:
            if stdin is None:
                stdin = held.enter_context(open(os.devnull, "rb")).fileno()  # noqa: ASYNC230, PTH123  # never waits
            process: ProcessHandle | None = None
            if (zygote := zygote_in_use()) is not None:
                streams = (stdin, stdout, stderr)
                process = await zygote.fork(command, variables=environment, streams=streams, inherited=inherited)
            if process is None:
                child = subprocess.Popen(  # noqa: ASYNC220  # the wait for exec is short
                    command,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    env={**child_environment(os.environ), **environment},
                    pass_fds=inherited,
                    start_new_session=True,
                )
                process = ProcessHandle(child.pid, os.pidfd_open(child.pid), is_child=True)
                child.returncode = 0  # ProcessHandle reaps; without this Popen would try, too, when it is collected
    except OSError as error:
        raise InternalError(f"cannot start a runner: {error}") from error
    metrics.PROCESS_STARTS.labels(how=start_kind(process)).inc()
    return process


def start_kind(process: ProcessHandle) -> str:
    """Return the label of metrics for how a process was started."""
    return "forked" if process.is_fork else "spawned"


def open_log(path: Path) -> IO[bytes]:
    """Open the log of a runner.

    Raises:
        InternalError: the file system refuses.
    """
    try:
        return path.open("ab")
    except OSError as error:
        raise InternalError(f"cannot start a runner: {error}") from error


async def spawn_runner(
    command: Sequence[str], *, log_path: Path, inherited: Sequence[int], environment: Mapping[str, str]
) -> SpawnedRunner:
    """Start a runner that survives this host. It gets copies of the inherited descriptors, its lock among them.

    Raises:
        InternalError: as `spawn`.
    """
    hello, said = os.pipe()
    try:
        with open_log(log_path) as log_file:
            process = await spawn(
                command, environment=environment, stdout=said, stderr=log_file.fileno(), inherited=inherited
            )
    except BaseException:
        os.close(hello)
        raise
    finally:
        os.close(said)
    with contextlib.suppress(OSError):
        (PROC / str(process.pid) / "oom_score_adj").write_text(str(OOM_SCORE_ADJUSTMENT))
    return SpawnedRunner(process, hello)
