"""Short-lived children: a runner mode that answers on standard output and ends, with a deadline."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.core.host.environment import child_environment

OUTPUT_BYTES_MAX = 64 * 1024 * 1024
STDERR_LINES_KEPT = 5
REAP_S = 5.0  # a child that reads a file which does not answer ends when the file does, killed or not


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerChildResult:
    """Result of a child. `exit_code` is negative for a signal, None if it was killed at its time limit.

    `left` is a child that the kernel does not let go.
    """

    exit_code: int | None
    output: bytes
    last_errors: str
    last_line: str = ""  # of standard error
    left: asyncio.subprocess.Process | None = None

    def failure(self) -> str:
        """One line about why it failed."""
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
    try:
        async with asyncio.timeout(timeout_s):
            output, errors = await process.communicate()
        exit_code = process.returncode
    except TimeoutError:
        output, errors, exit_code = b"", b"", None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REAP_S):
                    await process.wait()
    last = errors.decode(errors="replace").strip().splitlines()[-STDERR_LINES_KEPT:]
    return RunnerChildResult(
        exit_code=exit_code,
        output=output[:OUTPUT_BYTES_MAX],
        last_errors=" | ".join(last),
        last_line=last[-1] if last else "",
        left=process if process.returncode is None else None,
    )
