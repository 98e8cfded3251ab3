"""Uploads of blobs: written piece by piece, named when the digest is right."""

import asyncio
import hashlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from common.errors import InvalidRequest, RequestTooLarge
from runner.core.store.digests import qualified
from runner.host.files.blobs import PARTIAL_SUFFIX, BlobStore, Reservation
from runner.host.store.access import writing

PREFIX = "upload-"
ROOM_STEP_BYTES = 8 * 1024 * 1024  # reserved at a time while a blob of unknown length comes in


@dataclass(slots=True)
class _Progress:
    """Bytes of one upload."""

    expected: int  # announced, or reserved so far
    written: int = 0

    def left_bytes(self) -> int:
        """Return what will still be written."""
        return max(0, self.expected - self.written)


async def _ready() -> None:
    """Nothing waits for the admission."""


class Uploads:
    """Writes into a blob store. Any number at the same time, also of one digest: the first to be complete counts."""

    def __init__(self, blobs: BlobStore, *, bytes_max: int) -> None:
        """`bytes_max` is the longest blob that is taken."""
        self._blobs = blobs
        self._bytes_max = bytes_max

    def put_aside(self, digest: str) -> tuple[Path, int]:
        """Take a blob out of the store: where it lies until it is deleted, as an upload that broke off, and its size.

        Raises:
            OSError: it is not here, or the store cannot be written.
        """
        aside = self._blobs.directory / f"{PREFIX}{uuid.uuid4().hex}{PARTIAL_SUFFIX}"
        return self._blobs.path(digest).rename(aside), aside.lstat().st_size

    async def receive(
        self,
        digest: str,
        announced_bytes: int,
        pieces: AsyncIterator[bytes],
        *,
        on_admitted: Callable[[], Awaitable[None]] = _ready,
    ) -> int:
        """Take in a blob; its size. `on_admitted` is called once its room is reserved, before `pieces` is read.

        An `announced_bytes` of 0 is an unknown length.

        Raises:
            InvalidRequest: the content has another digest or another length than announced; nothing is kept.
            RequestTooLarge: longer than any blob may be.
            DiskFull: no room for it.
            PermissionDenied: the store cannot be written.
        """
        self._check_length(announced_bytes)
        progress = _Progress(announced_bytes)
        with self._blobs.reservation(progress.left_bytes) as room, writing(self._blobs.directory):
            await asyncio.to_thread(room.admit)
            await asyncio.to_thread(self._blobs.make_directory)
            await on_admitted()
            path = self._blobs.directory / f"{PREFIX}{uuid.uuid4().hex}{PARTIAL_SUFFIX}"
            try:
                await self._write(path, digest, announced_bytes, pieces, progress, room)
                return progress.written
            finally:
                # Shielded: a call that breaks off may be cancelled twice, and a thread that has not begun never would.
                await asyncio.shield(asyncio.to_thread(path.unlink, missing_ok=True))

    async def _write(  # of one upload
        self,
        path: Path,
        digest: str,
        announced_bytes: int,
        pieces: AsyncIterator[bytes],
        progress: _Progress,
        room: Reservation,
    ) -> None:
        hashed = hashlib.sha256()
        with await asyncio.to_thread(path.open, "xb") as file:
            async for piece in pieces:
                received = progress.written + len(piece)
                self._check_length(received)
                if announced_bytes and received > announced_bytes:
                    raise InvalidRequest(
                        f"the blob is longer than the announced {announced_bytes} bytes", param="digest"
                    )
                if received > progress.expected:
                    progress.expected = received + ROOM_STEP_BYTES
                    await asyncio.to_thread(room.admit)
                await asyncio.to_thread(_append, file, hashed, piece)
                progress.written = received  # these bytes are missing on the disk from now on
        if announced_bytes and progress.written != announced_bytes:
            raise InvalidRequest(
                f"the blob has {progress.written} bytes, {announced_bytes} were announced", param="digest"
            )
        found = hashed.hexdigest()
        if found != digest:
            raise InvalidRequest(
                f'digest mismatch, expected "{qualified(digest)}", got "{qualified(found)}"', param="digest"
            )
        await asyncio.to_thread(self._blobs.commit, digest, path)

    def _check_length(self, count: int) -> None:
        if count > self._bytes_max:
            raise RequestTooLarge(f"a blob has at most {self._bytes_max} bytes (PUNA_BLOB_MAX_BYTES)")


def _append(file: BinaryIO, hashed: "hashlib._Hash", piece: bytes) -> None:
    hashed.update(piece)
    file.write(piece)
