"""Short-lived children: a runner mode that answers on standard output and ends, with a deadline."""

import asyncio
import functools
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from common.errors import InternalError
from common.sandbox.confinement import OWN_USER
from common.sandbox.own_users import separation_fault
from common.telemetry.logs import get_logger
from runner.__main__ import CONFINED
from runner.host.processes.process import ProcessHandle
from runner.host.processes.spawning import read_piece, spawn

log = get_logger()

OUTPUT_BYTES_MAX = 64 * 1024 * 1024  # the child is ended as soon as it prints more
STDERR_BYTES_KEPT = 64 * 1024
STDERR_LINES_KEPT = 5
REAP_S = 5.0  # a child that reads a file which does not answer ends when the file does, killed or not


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerChildResult:
    """Result of a child. `exit_code` is negative for a signal, None if it was killed at its time limit.

    `left` is a child that the kernel does not let go. `printed_too_much`: it was killed for that; `output` is empty.
    """

    exit_code: int | None
    output: bytes
    last_errors: str
    last_line: str = ""  # of standard error
    left: ProcessHandle | None = None
    printed_too_much: bool = False

    def failure(self) -> str:
        """One line about why it failed."""
        if self.printed_too_much:
            return f"it printed more than {OUTPUT_BYTES_MAX} bytes and was ended"
        if self.exit_code is None:
            return "it did not answer in time"
        how = f"signal {-self.exit_code}" if self.exit_code < 0 else f"exit status {self.exit_code}"
        if self.exit_code == -signal.SIGKILL:
            how += " (it used up its processor time, or the machine its memory)"
        return f"{how}: {self.last_errors}" if self.last_errors else how


def runner_command(mode: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line of a runner mode with this interpreter."""
    own_user = [OWN_USER] if mode in CONFINED and has_own_users() else []
    return [sys.executable, "-m", "runner", mode, *own_user, *arguments]


@functools.cache
def has_own_users() -> bool:
    """Return True if each runner of this process is a user of its own."""
    fault = separation_fault()
    if fault and os.geteuid() == 0:
        log.warning("runners.share_user", text=fault)
    return not fault


def _open_pipes() -> list[int]:
    """Open two pipes; each has its reading end first."""
    opened: list[int] = []
    try:
        for _ in range(2):
            opened += os.pipe()
    except OSError as error:
        for descriptor in opened:
            os.close(descriptor)
        raise InternalError(f"cannot start a runner: {error}") from error
    return opened


async def run_child(
    mode: str, arguments: Sequence[str], *, timeout_s: float, environment: Mapping[str, str] | None = None
) -> RunnerChildResult:
    """Run `python -m runner MODE …` in a process group of its own; the group is killed at the limit or on cancel.

    `environment` is set beside what every child gets.

    Raises:
        InternalError: the system refuses to start processes.
    """
    output_pipe, output_end, errors_pipe, errors_end = _open_pipes()
    output, errors, printed_too_much, was_late = b"", b"", False, False
    try:
        try:
            command = runner_command(mode, arguments)
            process = await spawn(command, environment=environment or {}, stdout=output_end, stderr=errors_end)
        finally:
            os.close(output_end)
            os.close(errors_end)
        try:
            async with asyncio.timeout(timeout_s):
                output, errors = await _read_to_end(output_pipe, errors_pipe)
                await process.exited.wait()
        except TimeoutError:
            output, errors, was_late = b"", b"", True
        except _TooMuchOutputError:
            printed_too_much = True
        finally:
            process.kill_group()
            await process.wait(REAP_S)
    finally:
        os.close(output_pipe)
        os.close(errors_pipe)
    exit_code = None if was_late else process.exit_code
    if printed_too_much:
        exit_code = process.exit_code or -signal.SIGKILL  # also if it has just ended by itself
    elif process.exit_code is None and not was_late:  # a fork whose zygote has ended, too: its result is not certain
        return await run_child(mode, arguments, timeout_s=timeout_s, environment=environment)
    last = errors.decode(errors="replace").strip().splitlines()[-STDERR_LINES_KEPT:]
    return RunnerChildResult(
        exit_code=exit_code,
        output=output,
        last_errors=" | ".join(last),
        last_line=last[-1] if last else "",
        left=None if process.exited.is_set() else process,
        printed_too_much=printed_too_much,
    )


class _TooMuchOutputError(Exception):
    """The child printed more than OUTPUT_BYTES_MAX."""


async def _read_to_end(output_pipe: int, errors_pipe: int) -> tuple[bytes, bytes]:
    """Return all of standard output, and the end of standard error.

    Raises:
        _TooMuchOutputError: there is more output than allowed; the rest was not read.
    """
    errors = asyncio.create_task(_read_end(errors_pipe))
    try:
        output = bytearray()
        while piece := await read_piece(output_pipe):
            output += piece
            if len(output) > OUTPUT_BYTES_MAX:
                raise _TooMuchOutputError
        return bytes(output), await errors
    finally:
        errors.cancel()
        await asyncio.wait({errors})


async def _read_end(pipe: int) -> bytes:
    end = b""
    while piece := await read_piece(pipe):
        end = (end + piece)[-STDERR_BYTES_KEPT:]
    return end
