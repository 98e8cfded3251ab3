"""One log file per service; each start of the cluster begins a new one and keeps a few old ones."""

from pathlib import Path

KEPT_RUNS = 3
# How much of a log's end is read to say why a process could not start.
_TAIL_BYTES = 16 * 1024


def rotate_log(path: Path) -> None:
    """Number the file of the last run as `.1`, shift the older ones, drop the oldest."""
    for number in range(KEPT_RUNS, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        newer = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        if newer.exists():
            newer.replace(older)


def last_line(path: Path) -> str | None:
    """The last line with something in it, or None."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.strip() for line in reversed(lines) if line.strip()), None)
