"""One log file per service; each start of the cluster begins a new one and keeps a few old ones."""

import asyncio
import errno
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

KEPT_RUNS = 3
# A log that grows beyond this within one run is numbered like that of an earlier run.
LOG_BYTES_MAX = 64 * 1024 * 1024
_LOOK_INTERVAL_S = 30.0
# How much of a log's end is read to say why a process could not start.
_TAIL_BYTES = 16 * 1024


def rotate_log(path: Path) -> None:
    """Rename the log of the last run to `.1`, shift the older ones, and drop the oldest."""
    _shift(path)
    if path.exists():
        path.replace(path.with_name(f"{path.name}.1"))


def last_lines(path: Path, *, count: int) -> list[str]:
    """Return so many lines at most that are not blank, the last one last."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line.strip() for line in lines if line.strip()][-count:]


def last_line(path: Path) -> str | None:
    """Return the last line that is not blank, or None."""
    return next(iter(last_lines(path, count=1)), None)


def shorten_log(path: Path, *, bytes_max: int = LOG_BYTES_MAX) -> None:
    """Begin anew once the file is too long. The writer keeps its descriptor, which appends to whatever is there.

    What it writes between the copy and the cut is lost. A disk without room for the copy gets room: no copy is kept.
    """
    if path.exists() and path.stat().st_size > bytes_max:
        copy = path.with_name(f"{path.name}.copy")
        try:
            shutil.copyfile(path, copy)
        except OSError as error:
            copy.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                os.truncate(path, 0)
            raise
        with path.open("r+b") as file:
            file.truncate()
        _shift(path)
        copy.replace(path.with_name(f"{path.name}.1"))


async def keep_logs_short(paths: Iterable[Path], warn: Callable[[str], None]) -> None:
    """Watch the lengths for as long as the cluster runs."""
    logs = tuple(paths)
    while True:
        await asyncio.sleep(_LOOK_INTERVAL_S)
        for path in logs:
            try:
                await asyncio.to_thread(shorten_log, path)
            except OSError as error:
                warn(f"cannot keep the old part of {path}: {error.strerror}")


def _shift(path: Path) -> None:
    """Give every numbered log the next number; the oldest goes."""
    for number in range(KEPT_RUNS, 1, -1):
        newer = path.with_name(f"{path.name}.{number - 1}")
        if newer.exists():
            newer.replace(path.with_name(f"{path.name}.{number}"))
