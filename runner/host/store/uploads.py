"""Uploads of blobs: written piece by piece, named when the digest is right."""

import asyncio
import contextlib
import hashlib
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

from common.errors import InvalidRequest, RequestTooLarge
from runner.core.store.digests import qualified
from runner.host.files.blobs import PARTIAL_SUFFIX, BlobStore
from runner.host.store.access import writing

PREFIX = "upload-"
ROOM_CHECK_BYTES = 64 * 1024 * 1024  # how often the disk is asked while a blob of unknown length comes in


class Uploads:
    """Writes into a blob store. Any number at the same time, also of one digest: the first to be complete counts."""

    def __init__(self, blobs: BlobStore, *, bytes_max: int) -> None:
        """`bytes_max` is the longest blob that is taken."""
        self._blobs = blobs
        self._bytes_max = bytes_max

    def remove_leftovers(self) -> None:
        """Remove files of uploads that a former process did not finish."""
        for path in self._blobs.directory.glob(f"{PREFIX}*{PARTIAL_SUFFIX}"):
            with contextlib.suppress(OSError):
                path.unlink()

    def put_aside(self, digest: str) -> tuple[Path, int]:
        """Take a blob out of the store: where it lies until it is deleted, as an upload that broke off, and its size.

        Raises:
            OSError: it is not here, or the store cannot be written.
        """
        aside = self._blobs.directory / f"{PREFIX}{uuid.uuid4().hex}{PARTIAL_SUFFIX}"
        return self._blobs.path(digest).rename(aside), aside.lstat().st_size

    async def check(self, announced_bytes: int) -> None:
        """Refuse at once what cannot be taken in.

        Raises:
            RequestTooLarge, DiskFull, PermissionDenied: as `receive`.
        """
        self._check_length(announced_bytes)
        await asyncio.to_thread(self._blobs.check_room, announced_bytes)
        with writing(self._blobs.directory):
            await asyncio.to_thread(self._blobs.make_directory)

    async def receive(self, digest: str, announced_bytes: int, pieces: AsyncIterator[bytes]) -> int:
        """Take in a blob; its size.

        Raises:
            InvalidRequest: the content has another digest or another length than announced; nothing is kept.
            RequestTooLarge: longer than any blob may be.
            DiskFull: no room for it.
            PermissionDenied: the store cannot be written.
        """
        await self.check(announced_bytes)
        with writing(self._blobs.directory):
            path = self._blobs.directory / f"{PREFIX}{uuid.uuid4().hex}{PARTIAL_SUFFIX}"
            try:
                return await self._write(path, digest, announced_bytes, pieces)
            finally:
                # Shielded: a call that breaks off may be cancelled twice, and a thread that has not begun never would.
                await asyncio.shield(asyncio.to_thread(path.unlink, missing_ok=True))

    async def _write(self, path: Path, digest: str, announced_bytes: int, pieces: AsyncIterator[bytes]) -> int:
        hashed, written, checked = hashlib.sha256(), 0, 0
        with await asyncio.to_thread(path.open, "xb") as file:
            async for piece in pieces:
                written += len(piece)
                self._check_length(written)
                if announced_bytes and written > announced_bytes:
                    raise InvalidRequest(
                        f"the blob is longer than the announced {announced_bytes} bytes", param="digest"
                    )
                if not announced_bytes and written - checked >= ROOM_CHECK_BYTES:
                    checked = written
                    await asyncio.to_thread(self._blobs.check_room, ROOM_CHECK_BYTES)
                await asyncio.to_thread(_append, file, hashed, piece)
        if announced_bytes and written != announced_bytes:
            raise InvalidRequest(f"the blob has {written} bytes, {announced_bytes} were announced", param="digest")
        found = hashed.hexdigest()
        if found != digest:
            raise InvalidRequest(
                f'digest mismatch, expected "{qualified(digest)}", got "{qualified(found)}"', param="digest"
            )
        await asyncio.to_thread(self._blobs.commit, digest, path)
        return written

    def _check_length(self, count: int) -> None:
        if count > self._bytes_max:
            raise RequestTooLarge(f"a blob has at most {self._bytes_max} bytes (PUNA_BLOB_MAX_BYTES)")


def _append(file: BinaryIO, hashed: "hashlib._Hash", piece: bytes) -> None:
    hashed.update(piece)
    file.write(piece)
