"""Users of runners: where a host can give each process that reads hostile files a user of its own."""

import os
from pathlib import Path

from common.sandbox.confinement import RUNNER_USERS, SEPARATION


def separation_fault(process: Path = Path("/proc/self")) -> str:
    """Say why the runners of a host that is this process share its user; empty: each gets its own."""
    if os.geteuid() != 0:
        return "it is not root"
    try:
        status = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines())
        maps = [(process / f"{kind}_map").read_text() for kind in ("uid", "gid")]
    except OSError as error:
        return str(error)
    held = int(status["CapEff"], 16)
    if lacking := [name for name, number in SEPARATION.items() if not held >> number & 1]:
        return f"it lacks {', '.join(lacking)}"
    if not all(map(_covers, maps)):
        return f"its user namespace lacks users {RUNNER_USERS[0]} to {RUNNER_USERS[-1]}"
    return ""


def _covers(text: str) -> bool:
    """Return True if the map of a user namespace has all users of runners."""
    ranges = [tuple(map(int, line.split())) for line in text.splitlines()]
    return any(start <= RUNNER_USERS[0] and RUNNER_USERS[-1] < start + count for start, _, count in ranges)
