"""The sha256 of files, computed once for each content and kept on disk."""

import asyncio
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import orjson

from common.errors import BadModelFile
from common.paths import open_regular
from runner.host.files.file_threads import SILENCE_S, FileStep, FileThreads
from runner.host.files.plain_files import FileStamp
from runner.host.home import write_durably

READ_BYTES = 1024 * 1024
KEPT_MAX = 50_000  # a cache: the oldest go first


class FileDigests:
    """A verdict belongs to a device, an inode, a size and a time of change. May be used from any thread."""

    def __init__(self, path: Path, *, silence_s: float = SILENCE_S) -> None:
        """`path` is where it is kept; a file of which nothing comes for `silence_s` is given up for now."""
        self._path = path
        self._lock = threading.Lock()
        self._digests = _read(path)
        self._threads = FileThreads(silence_s=silence_s)

    def known(self, stamp: FileStamp) -> str | None:
        """Return the digest of this content, if it was computed before."""
        return self._digests.get(stamp.cache_key())

    def note(self, stamp: FileStamp, digest: str) -> None:
        """Keep a digest that was computed elsewhere. A disk that cannot be written costs another computation."""
        with self._lock:
            self._digests[stamp.cache_key()] = digest
            while len(self._digests) > KEPT_MAX:
                del self._digests[next(iter(self._digests))]
            try:
                write_durably(self._path, orjson.dumps(self._digests))
            except OSError:
                return

    async def check_answers(self, stamp: FileStamp) -> None:
        """Find out that a file can be read at all.

        Raises:
            BadModelFile: it cannot.
            ModelUnavailable: it does not answer.
        """
        try:
            await self._threads.read_first(stamp.path)
        except OSError as error:
            raise BadModelFile(f"{stamp.path}: {error.strerror}") from error

    async def of(self, stamp: FileStamp, on_progress: Callable[[int], None] = lambda _: None) -> str:
        """Compute the digest of this content. `on_progress` gets the count of read bytes, in a thread.

        Raises:
            BadModelFile: it cannot be read.
            ModelUnavailable: it does not answer.
        """
        known = self.known(stamp)
        if known is not None:
            return known
        try:
            digest, unchanged = await self._threads.run(stamp.path, lambda step: _compute(stamp, on_progress, step))
        except OSError as error:
            raise BadModelFile(f"{stamp.path}: {error.strerror}") from error
        if unchanged:
            await asyncio.to_thread(self.note, stamp, digest)
        return digest


def _compute(stamp: FileStamp, on_progress: Callable[[int], None], step: FileStep) -> tuple[str, bool]:
    """Return the digest, and True if the file did not change meanwhile."""
    hashed, piece, count = hashlib.sha256(), bytearray(READ_BYTES), 0
    view = memoryview(piece)
    with os.fdopen(open_regular(stamp.path), "rb", buffering=0) as file:
        while read := file.readinto(piece):
            hashed.update(view[:read])
            count += read
            step.at(stamp.path)
            on_progress(count)
    return hashed.hexdigest(), FileStamp.of(stamp.path) == stamp


def _read(path: Path) -> dict[str, str]:
    try:
        kept = orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}  # a cache: what is lost is computed again
    return {str(key): str(value) for key, value in kept.items()} if isinstance(kept, dict) else {}
