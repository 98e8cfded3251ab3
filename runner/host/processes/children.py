"""Short-lived children: a runner mode that answers on standard output and ends, with a deadline."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.core.host.environment import child_environment

OUTPUT_BYTES_MAX = 64 * 1024 * 1024  # the child is ended as soon as it prints more
STDERR_BYTES_KEPT = 64 * 1024
STDERR_LINES_KEPT = 5
READ_BYTES = 64 * 1024
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
    left: asyncio.subprocess.Process | None = None
    printed_too_much: bool = False

    def failure(self) -> str:
        """One line about why it failed."""
        if self.printed_too_much:
            return f"it printed more than {OUTPUT_BYTES_MAX} bytes and was ended"
        if self.exit_code is None:
            return "it did not answer in time"
        how = f"signal {-self.exit_code}" if self.exit_code < 0 else f"exit status {self.exit_code}"
        return f"{how}: {self.last_errors}" if self.last_errors else how


def runner_command(mode: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line of a runner mode with this interpreter."""
    return [sys.executable, "-m", "runner", mode, *arguments]


async def run_child(
    mode: str, arguments: Sequence[str], *, timeout_s: float, environment: Mapping[str, str] | None = None
) -> RunnerChildResult:
    """Run `python -m runner MODE …` in a process group of its own; the group is killed at the limit or on cancel.

    `environment` is set beside what every child gets.
    """
    process = await asyncio.create_subprocess_exec(
        *runner_command(mode, arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**child_environment(os.environ), **(environment or {})},
        start_new_session=True,
    )
    output, errors, exit_code, printed_too_much = b"", b"", None, False
    try:
        async with asyncio.timeout(timeout_s):
            output, errors = await _read_to_end(process)
            exit_code = await process.wait()
    except TimeoutError:
        output, errors = b"", b""
    except _TooMuchOutputError:
        printed_too_much = True
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REAP_S):
                    await process.communicate()  # what it had printed; its pipes close only when they were read
    if printed_too_much:
        exit_code = process.returncode or -signal.SIGKILL  # also if it has just ended by itself
    last = errors.decode(errors="replace").strip().splitlines()[-STDERR_LINES_KEPT:]
    return RunnerChildResult(
        exit_code=exit_code,
        output=output,
        last_errors=" | ".join(last),
        last_line=last[-1] if last else "",
        left=process if process.returncode is None else None,
        printed_too_much=printed_too_much,
    )


class _TooMuchOutputError(Exception):
    """The child printed more than OUTPUT_BYTES_MAX."""


async def _read_to_end(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    """Return all of standard output, and the end of standard error.

    Raises:
        _TooMuchOutputError: there is more output than allowed; the rest was not read.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.create_task(_read_end(process.stderr))
    try:
        output = bytearray()
        while piece := await process.stdout.read(READ_BYTES):
            output += piece
            if len(output) > OUTPUT_BYTES_MAX:
                raise _TooMuchOutputError
        return bytes(output), await errors
    finally:
        errors.cancel()
        await asyncio.wait({errors})


async def _read_end(stream: asyncio.StreamReader) -> bytes:
    end = b""
    while piece := await stream.read(READ_BYTES):
        end = (end + piece)[-STDERR_BYTES_KEPT:]
    return end
