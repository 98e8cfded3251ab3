"""At most one supervisor per home."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class HomeInUse(Exception):
    """Another supervisor has the home."""


@contextmanager
def home_lock(home: Path) -> Iterator[None]:
    """Hold the home for as long as the block runs; the kernel releases it when the process dies, however it dies.

    Raises:
        HomeInUse: another process holds it.
    """
    with (home / "run" / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HomeInUse from error
        yield


def is_locked(home: Path) -> bool:
    """Return True while a supervisor has the home."""
    if not (home / "run" / "lock").exists():
        return False
    try:
        with home_lock(home):
            return False
    except HomeInUse:
        return True
