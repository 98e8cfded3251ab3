"""Append lines to an audit log that several processes share. Each line has the hash of the line before it.

FILE            the newest lines; a file that was moved away, or was cut to nothing, is begun anew and goes on with the
                chain
FILE.1, …       older lines: FILE is renamed once it has FILE_BYTES_MAX
FILE.lock       the lock of the writers, and the last hash: how a new file knows the chain of the one before
"""

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from common.audit.chain import last_hash, seal

FILE_BYTES_MAX = 64 * 1024 * 1024
# Older files that are kept beside the newest one.
KEPT_FILES = 9
LOCKED_WITHIN_S = 1.5
_LOCK_RETRY_S = 0.005
_TAIL_BYTES = 64 * 1024
_STATE_BYTES_MAX = 256
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


def stamped(entry: Mapping[str, object], wall_unix_s: float) -> dict[str, object]:
    """Return an entry with its time, without the fields that have no value."""
    moment = datetime.fromtimestamp(wall_unix_s, UTC).isoformat(timespec="milliseconds")
    return {"time": moment, **{name: value for name, value in entry.items() if value not in (None, "", [])}}


@dataclass(frozen=True, slots=True)
class AuditFile:
    """One log. Holds nothing open, so every process sees what the others wrote, moved or removed."""

    path: Path

    def check(self) -> None:
        """Open the log as a writer would.

        Raises:
            OSError: it cannot be written.
        """
        with self._locked(), _opened(self.path, os.O_APPEND):
            pass

    def append(self, entry: Mapping[str, object], *, is_durable: bool = True) -> None:
        """Append a line, all of it or nothing. `is_durable`: it is on the disk when this returns.

        Raises:
            OSError: it cannot be written, or another process keeps the lock.
        """
        with self._locked() as lock:
            with _opened(self.path, os.O_APPEND) as file:
                last, size = _take_up(file, lock)
                line, digest = seal(entry, last)
                _write(file, line, size, is_durable=is_durable)
                os.pwrite(lock, _state(digest, os.fstat(file)), 0)
            if size + len(line) >= FILE_BYTES_MAX:
                with suppress(OSError):  # the next line tries it again
                    self._shift()

    @contextmanager
    def _locked(self) -> Iterator[int]:
        with _opened(self.path.with_name(f"{self.path.name}.lock")) as lock:
            deadline_s = time.monotonic() + LOCKED_WITHIN_S
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > deadline_s:
                        raise OSError("another process keeps its lock") from error
                    time.sleep(_LOCK_RETRY_S)
            yield lock

    def _shift(self) -> None:
        """Give every older file the next number, the oldest goes, and the newest becomes the first."""
        for number in range(KEPT_FILES, 0, -1):
            newer = self.path.with_name(f"{self.path.name}.{number - 1}") if number > 1 else self.path
            if newer.exists():
                newer.replace(self.path.with_name(f"{self.path.name}.{number}"))


@contextmanager
def _opened(path: Path, more: int = 0) -> Iterator[int]:
    descriptor = os.open(path, _FLAGS | more, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write(file: int, line: bytes, size: int, *, is_durable: bool) -> None:
    try:
        if os.write(file, line) != len(line):
            raise OSError("no room for the whole line")
        if is_durable:
            os.fsync(file)
    except OSError:
        with suppress(OSError):
            os.ftruncate(file, size)
        raise


def _take_up(file: int, lock: int) -> tuple[str, int]:
    """Return the hash of the last line, and the size of the file. A line that a crash cut off is removed.

    The state in the lock counts for the file as the last writer left it, and for one that has no line yet.
    """
    status = os.fstat(file)
    known = os.pread(lock, _STATE_BYTES_MAX, 0).decode(errors="replace")
    stated, _, place = known.strip().partition(" ")
    if status.st_size == 0 or place == _place(status):
        return stated, status.st_size
    start = max(0, status.st_size - _TAIL_BYTES)
    tail = os.pread(file, _TAIL_BYTES, start)
    whole = tail[: tail.rfind(b"\n") + 1]
    os.ftruncate(file, start + len(whole))
    lines = whole.splitlines()
    return last_hash(lines[-1]) if lines else stated, start + len(whole)


def _place(status: os.stat_result) -> str:
    return f"{status.st_dev} {status.st_ino} {status.st_size}"


def _state(digest: str, status: os.stat_result) -> bytes:
    return f"{digest} {_place(status)}".ljust(_STATE_BYTES_MAX - 1).encode() + b"\n"
