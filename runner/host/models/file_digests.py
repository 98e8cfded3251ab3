"""The sha256 of files, computed once for each content and kept on disk."""

import asyncio
import hashlib
import threading
from collections.abc import Callable
from pathlib import Path

import orjson

from common.errors import BadModelFile
from runner.host.home import write_durably
from runner.host.models.plain_files import FileStamp

READ_BYTES = 1024 * 1024
KEPT_MAX = 50_000  # a cache: the oldest go first


class FileDigests:
    """A verdict belongs to a device, an inode, a size and a time of change. May be used from any thread."""

    def __init__(self, path: Path) -> None:
        """`path` is where it is kept."""
        self._path = path
        self._lock = threading.Lock()
        self._digests = _read(path)

    def known(self, stamp: FileStamp) -> str | None:
        """The digest of this content, if it was computed before."""
        return self._digests.get(stamp.cache_key())

    def note(self, stamp: FileStamp, digest: str) -> None:
        """Remember what somebody else computed. A disk that cannot be written costs another computation."""
        with self._lock:
            self._digests[stamp.cache_key()] = digest
            while len(self._digests) > KEPT_MAX:
                del self._digests[next(iter(self._digests))]
            try:
                write_durably(self._path, orjson.dumps(self._digests))
            except OSError:
                return

    async def of(self, stamp: FileStamp, told: Callable[[int], None] = lambda _: None) -> str:
        """The digest of this content. `told` hears in a thread how many bytes of it are read.

        Raises:
            BadModelFile: it cannot be read.
        """
        known = self.known(stamp)
        if known is not None:
            return known
        try:
            digest, unchanged = await asyncio.to_thread(_compute, stamp, told)
        except OSError as error:
            raise BadModelFile(f"{stamp.path}: {error.strerror}") from error
        if unchanged:
            await asyncio.to_thread(self.note, stamp, digest)
        return digest


def _compute(stamp: FileStamp, told: Callable[[int], None]) -> tuple[str, bool]:
    """The digest, and whether nobody wrote meanwhile."""
    hashed, piece, count = hashlib.sha256(), bytearray(READ_BYTES), 0
    view = memoryview(piece)
    with stamp.path.open("rb", buffering=0) as file:
        while read := file.readinto(piece):
            hashed.update(view[:read])
            count += read
            told(count)
    return hashed.hexdigest(), FileStamp.of(stamp.path) == stamp


def _read(path: Path) -> dict[str, str]:
    try:
        kept = orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}  # a cache: what is lost is computed again
    return {str(key): str(value) for key, value in kept.items()} if isinstance(kept, dict) else {}
