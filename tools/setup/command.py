"""Commands whose output is read line by line, and which end with their whole group."""

import os
import re
import selectors
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

TICK_S = 1.0
STOP_WITHIN_S = 15.0
_READ_BYTES = 1 << 16
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def run_command(
    command: Sequence[str], *, folder: Path, environment: Mapping[str, str], heard: Callable[[str | None], None]
) -> int:
    """Run a command and return its exit status, as a shell counts it. `heard` gets each line, and None each second.

    On Ctrl-C the command and all that it started end first: pip removes its temporary folders.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        process_group=0,
    )
    try:
        for line in _lines(process):
            heard(line)
        status = process.wait()
    finally:
        _end(process)
    return status if status >= 0 else 128 - status


def _lines(process: "subprocess.Popen[bytes]") -> Iterator[str | None]:
    assert process.stdout is not None
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not selector.select(TICK_S):
                yield None
                continue
            read = os.read(process.stdout.fileno(), _READ_BYTES)
            *whole, rest = (rest + read).split(b"\n")
            if not read and rest:
                whole = [rest]
            for line in whole:
                yield _COLOURS.sub("", line.decode(errors="replace").rstrip("\r"))
            if not read:
                return


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        try:
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=STOP_WITHIN_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.stdout is not None:
        process.stdout.close()
