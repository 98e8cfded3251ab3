"""Blobs on disk: files named by their sha256, read-only once they are complete."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

from common.errors import DiskFull
from common.paths import open_regular
from runner.core.store.digests import file_name
from runner.host.home import sync_directory

PARTIAL_SUFFIX = ".puna-partial"  # others mark theirs otherwise; those are left alone
# Left free for everything else on the disk: logs, Redis, the system.
HEADROOM_BYTES = 256 * 1024 * 1024
HEADROOM_SHARE = 0.01
STEP_BYTES_MIN = 64 * 1024 * 1024
STEPS = 1024


class BlobStore:
    """`directory` is made when something is first written."""

    def __init__(self, directory: Path) -> None:
        """`directory` is blobs/ of the store."""
        self.directory = directory
        self._reservations: set[Reservation] = set()
        self._admission = Lock()  # the disk is asked off the event loop, by several threads
        self.on_commit: Callable[[str], None] = lambda _digest: None  # hears the digest of each complete blob

    def path(self, digest: str) -> Path:
        """Return the path of a blob, present or not.

        Raises:
            ValueError: no digest.
        """
        return self.directory / file_name(digest)

    def has(self, digest: str) -> bool:
        """Return True if the blob is here, complete."""
        return self.size(digest) is not None

    def size(self, digest: str) -> int | None:
        """Its bytes; None if it is not here, or is no file of its own (links are not followed)."""
        try:
            status = self.path(digest).lstat()
        except OSError:
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def since_unix_s(self, digest: str) -> float:
        """Since when it lies here as it is: a copy that keeps the time of its original is as new as it looks here."""
        status = self.path(digest).lstat()
        return max(status.st_mtime, status.st_ctime)

    def partial_path(self, digest: str) -> Path:
        """Return the path at which a blob grows."""
        return self.directory / (file_name(digest) + PARTIAL_SUFFIX)

    def make_directory(self) -> None:
        """Have a folder to write into.

        Raises:
            OSError: it cannot be made.
        """
        self.directory.mkdir(parents=True, exist_ok=True)

    def free_bytes(self) -> int:
        """Return the bytes that nothing has reserved, without the headroom; 0 if that cannot be read."""
        free, total = self.room()
        return max(0, free - max(HEADROOM_BYTES, int(total * HEADROOM_SHARE)) - self.reserved_bytes())

    def reserved_bytes(self) -> int:
        """Return the bytes that uploads and downloads in progress will still write."""
        return sum(reservation.left_bytes() for reservation in tuple(self._reservations))

    def reservation(self, left_bytes: Callable[[], int]) -> "Reservation":
        """Return a reservation, not yet admitted, for a writer that will still write so many bytes."""
        return Reservation(self, left_bytes)

    def admit(self, reservation: "Reservation") -> None:
        """Count a reservation from now on, or check that one that has grown still fits.

        Raises:
            DiskFull: less room than that; it is not counted.
        """
        with self._admission:
            self._reservations.discard(reservation)
            if not reservation.is_over:
                self.check_room(reservation.left_bytes())
                self._reservations.add(reservation)

    def release(self, reservation: "Reservation") -> None:
        """Stop counting a reservation, for good."""
        with self._admission:
            reservation.is_over = True
            self._reservations.discard(reservation)

    def offered(self) -> tuple[int, int]:
        """Return free and total bytes for reports: in steps, so that not every written byte is a change."""
        total = self.room()[1]
        step = max(STEP_BYTES_MIN, total // STEPS)
        free = self.free_bytes() if os.access(self._existing(), os.W_OK) else 0
        return free // step * step, total

    def _existing(self) -> Path:
        directory = self.directory
        while not directory.exists() and directory != directory.parent:
            directory = directory.parent
        return directory

    def room(self) -> tuple[int, int]:
        """Free and total bytes of the file system that the blobs lie on."""
        directory = self._existing()
        try:
            status = os.statvfs(directory)
        except OSError:
            return 0, 0
        return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize

    def check_room(self, bytes_needed: int) -> None:
        """Refuse what the disk cannot take beside what is reserved.

        Raises:
            DiskFull: less room than that, with headroom for others.
        """
        free = self.free_bytes()
        if bytes_needed > free:
            raise DiskFull(
                f"no room for {bytes_needed} bytes in {self.directory}: {free} may be written,"
                f" {self.reserved_bytes()} are reserved for uploads and downloads in progress; delete models or wait"
            )

    def commit(self, digest: str, partial: Path) -> None:
        """Make a complete file the blob; the caller has checked its digest. Durable when it returns.

        Raises:
            OSError: the disk is full or the directory cannot be written.
        """
        descriptor = os.open(partial, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.fchmod(descriptor, 0o444)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        partial.replace(self.path(digest))
        sync_directory(self.directory)
        self.on_commit(digest)

    def open(self, digest: str) -> int:
        """Open a blob for reading; return the descriptor. Links are not followed.

        Raises:
            OSError: it is not here, or is no file.
        """
        return open_regular(self.path(digest), os.O_NOFOLLOW)

    def read(self, digest: str) -> bytes:
        """All of a small blob.

        Raises:
            OSError: it is not here, or is no file.
        """
        with os.fdopen(self.open(digest), "rb") as file:
            return file.read()

    def digests(self) -> list[str]:
        """Every complete blob, sorted. Files of other names are not ours."""
        try:
            names = [path.name for path in self.directory.iterdir()]
        except OSError:
            return []
        digests = []
        for name in names:
            digits = name.removeprefix("sha256-")
            try:
                if file_name(digits) == name and self.has(digits):
                    digests.append(digits)
            except ValueError:
                continue
        return sorted(digests)

    def delete(self, digest: str) -> int:
        """Remove a blob; its size, 0 if it was not here.

        Raises:
            OSError: the directory cannot be written.
        """
        size = self.size(digest)
        if size is None:
            return 0
        self.path(digest).unlink(missing_ok=True)
        return size


class Reservation:
    """Room for the bytes that one writer will still write; within its context from `admit` on.

    The context may end while `admit` runs in a thread: then it admits nothing.
    """

    def __init__(self, blobs: BlobStore, left_bytes: Callable[[], int]) -> None:
        self._blobs = blobs
        self.left_bytes = left_bytes
        self.is_over = False

    def admit(self) -> None:
        """Reserve what is left to write.

        Raises:
            DiskFull: there is no room.
        """
        self._blobs.admit(self)

    def __enter__(self) -> Self:
        """Return it, with nothing reserved yet."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Release what is reserved."""
        self._blobs.release(self)
