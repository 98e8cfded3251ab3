"""Verification of blobs: each is read once, and one with another digest than its name is never loaded."""

import asyncio
import contextlib
import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.errors import BadModelFile
from common.telemetry.logs import get_logger
from runner.core.store.digests import file_name, parse_digest, qualified
from runner.host.files.blobs import BlobStore
from runner.host.files.file_digests import FileDigests
from runner.host.files.plain_files import FileStamp
from runner.host.home import sync_directory

log = get_logger()

PROGRESS_INTERVAL_S = 0.25


@dataclass(slots=True, eq=False)
class _Reading:
    """State of one blob that is being read, for all callers that wait for it."""

    done_bytes: int = 0
    is_stopped: bool = False
    task: asyncio.Task[None] | None = None

    def tell(self, done_bytes: int) -> None:
        """Note progress, from the thread that reads.

        Raises:
            OSError: the host stops.
        """
        if self.is_stopped:
            raise OSError(errno.ECANCELED, "the host stops")
        self.done_bytes = done_bytes


class Verifier:
    """Reads each blob once for each content. One with another digest than its name is moved to `quarantine`."""

    def __init__(
        self, blobs: BlobStore, digests: FileDigests, quarantine: Path, on_mismatch: Callable[[], None]
    ) -> None:
        """`on_mismatch` is called after a blob was moved away."""
        self._blobs = blobs
        self._digests = digests
        self.quarantine = quarantine
        self._on_mismatch = on_mismatch
        self._reading: dict[str, _Reading] = {}  # by digest

    def is_verified(self, digest: str) -> bool:
        """Return True if the blob was checked in its current state."""
        try:
            stamp = FileStamp.of(self._blobs.path(digest), follow=False)
        except OSError:
            return False
        return self._digests.known(stamp) == digest

    def written(self, digest: str) -> None:
        """Accept a committed blob whose digest was computed while it was written."""
        with contextlib.suppress(OSError):
            self._digests.note(FileStamp.of(self._blobs.path(digest), follow=False), digest)

    def stop(self) -> None:
        """Stop reading at the end of the process; large files are not read to their end."""
        for reading in self._reading.values():
            reading.is_stopped = True

    async def verify(self, digest: str, on_progress: Callable[[int], None] = lambda _: None) -> None:
        """Read the blob unless that was done, or is being done; `on_progress` gets the count of read bytes.

        Raises:
            BadModelFile: it is not here, cannot be read, or has another digest; then it is in quarantine.
        """
        digest = parse_digest(digest)  # in any spelling: a wrong verdict would put the blob away
        if self.is_verified(digest):
            return
        reading = self._reading.get(digest)
        if reading is None:
            reading = self._reading[digest] = _Reading()
            reading.task = asyncio.create_task(self._read(digest, reading), name=f"verify {digest[:12]}")
            reading.task.add_done_callback(_look_at)  # all callers may have left
        assert reading.task is not None, "begun in the same step"
        while not reading.task.done():
            await asyncio.wait({reading.task}, timeout=PROGRESS_INTERVAL_S)
            on_progress(reading.done_bytes)
        reading.task.result()

    async def _read(self, digest: str, reading: "_Reading") -> None:
        try:
            await self._compare(digest, reading)
        finally:
            del self._reading[digest]

    async def _compare(self, digest: str, reading: "_Reading") -> None:
        if not self._blobs.has(digest):
            raise BadModelFile(self.why_missing(digest))
        path = self._blobs.path(digest)
        found = await self._digests.of(FileStamp.of(path, follow=False), reading.tell)
        if found == digest:
            log.info("blob.verified", digest=digest[:12])
            return
        where = await asyncio.to_thread(self._put_away, digest)
        log.error("blob.mismatch", digest=digest, found=found, path=str(path), quarantine=where)
        self._on_mismatch()
        raise BadModelFile(f"digest mismatch, expected {qualified(digest)!r}, got {qualified(found)!r}{where}")

    def why_missing(self, digest: str) -> str:
        """Describe why a blob that a manifest names is missing."""
        if (self.quarantine / file_name(digest)).exists():
            return f"blob {qualified(digest)} had another digest and is in quarantine: {self.quarantine}"
        return f"blob {qualified(digest)} is missing"

    def _put_away(self, digest: str) -> str:
        """Move a blob to quarantine and return the new place for the message; empty if it could not be moved.

        It is not loaded in either case.
        """
        target = self.quarantine / file_name(digest)
        try:
            self.quarantine.mkdir(mode=0o700, exist_ok=True)
            self._blobs.path(digest).replace(target)
            sync_directory(self.quarantine)
        except OSError as error:
            log.warning("blob.not_moved", digest=digest[:12], text=str(error))
            return ""
        return f"; moved to {target}"


def _look_at(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
