"""Short-lived processes of the runner, as a host starts them; what crashes there crashes alone."""

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from cli.cluster.child_process import PACKAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildResult:
    """Result of a child process. A negative `exit_code` is a signal, None a process that had to be killed."""

    exit_code: int | None
    objects: list[dict[str, Any]]  # JSON lines, or one document
    last_line: str  # of standard error


def run_runner(*words: str, within_s: float, stdin: str = "") -> ChildResult:
    """`python -m runner WORDS…`."""
    command = [sys.executable, "-m", "runner", *words]
    try:
        ended = subprocess.run(
            command, cwd=PACKAGES, input=stdin, capture_output=True, text=True, timeout=within_s, check=False
        )
    except subprocess.TimeoutExpired:
        return ChildResult(exit_code=None, objects=[], last_line=f"no end within {within_s:.0f} s")
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    return ChildResult(
        exit_code=ended.returncode, objects=_objects(ended.stdout), last_line=lines[-1].strip() if lines else ""
    )


def _objects(text: str) -> list[dict[str, Any]]:
    try:
        return [json.loads(text)]
    except ValueError:
        pass
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break  # what follows was cut
    return found
