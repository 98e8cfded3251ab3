"""An unfinished blob on disk, and the file beside it that remembers which bytes are here."""

import asyncio
import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from common.errors import DiskFull
from runner.core.registry.parts import Part, decode_state, encode_state
from runner.host.home import write_durably

STATE_SUFFIX = ".state"
HASH_BYTES = 1024 * 1024
_FULL = (errno.ENOSPC, errno.EDQUOT)
_In = ParamSpec("_In")
_Out = TypeVar("_Out")


def state_path(partial: Path) -> Path:
    """Return the path of the state file."""
    return partial.with_name(partial.name + STATE_SUFFIX)


def here_bytes(partial: Path) -> int:
    """Return the bytes that an unfinished blob takes on the disk."""
    try:
        return partial.lstat().st_blocks * 512
    except OSError:
        return 0


class PartialFile:
    """Unfinished blob. One thread does its disk work, one piece after the other, so no write is left at `close`."""

    def __init__(self, path: Path, *, digest: str, size_bytes: int) -> None:
        """Open or make the file.

        Raises:
            OSError: neither is possible; a link is not followed.
        """
        self.path = path
        self.digest = digest
        self.size_bytes = size_bytes
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="blob")
        self._sha256 = hashlib.sha256()

    def resume(self) -> tuple[Part, ...] | None:
        """Return the parts that an earlier process left; None: nothing that can be used."""
        if os.fstat(self._descriptor).st_size != self.size_bytes:
            return None
        try:
            content = state_path(self.path).read_bytes()
        except OSError:
            return None
        return decode_state(content, digest=self.digest, size_bytes=self.size_bytes)

    def begin(self) -> None:
        """Forget everything: a sparse file of the final size."""
        state_path(self.path).unlink(missing_ok=True)
        os.ftruncate(self._descriptor, 0)
        os.ftruncate(self._descriptor, self.size_bytes)
        self.rehash()

    def rehash(self) -> None:
        """Begin the hash with the first byte again."""
        self._sha256 = hashlib.sha256()

    async def write(self, data: bytes, offset: int) -> None:
        """Write all of it.

        Raises:
            DiskFull: no room.
            OSError: not writable.
        """
        await self._apart(_write, self._descriptor, data, offset)

    async def hash_range(self, start: int, stop: int) -> None:
        """Take bytes [start, stop) into the hash; they follow those that are in it."""
        await self._apart(self._hash, start, stop)

    def hex_digest(self) -> str:
        """Of what was hashed."""
        return self._sha256.hexdigest()

    async def save(self, parts: Sequence[Part]) -> None:
        """Remember these parts; their bytes are on the disk before the note of them is.

        Raises:
            DiskFull, OSError: as `write`.
        """
        content = encode_state(parts, digest=self.digest, size_bytes=self.size_bytes)
        await self._apart(_save, self._descriptor, state_path(self.path), content)

    async def close(self) -> None:
        """Wait for the thread, and close the file."""
        try:
            await asyncio.to_thread(self._thread.shutdown)
        finally:
            self._thread.shutdown()  # at once, unless this call was cancelled
            os.close(self._descriptor)

    def delete(self) -> None:
        """Remove file and note."""
        self.path.unlink(missing_ok=True)
        self.forget()

    def forget(self) -> None:
        """Remove the note: the blob is complete."""
        state_path(self.path).unlink(missing_ok=True)

    async def _apart(self, work: Callable[_In, _Out], *args: _In.args, **kwargs: _In.kwargs) -> _Out:
        with _disk_errors(self.path):
            return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: work(*args, **kwargs))

    def _hash(self, start: int, stop: int) -> None:
        while start < stop:
            data = os.pread(self._descriptor, min(HASH_BYTES, stop - start), start)
            if not data:
                raise OSError(errno.EIO, "the file became shorter", str(self.path))
            self._sha256.update(data)
            start += len(data)


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(f"no room left for {path.name}") from error
        raise


def _write(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _save(descriptor: int, path: Path, content: bytes) -> None:
    os.fdatasync(descriptor)
    write_durably(path, content)
