"""The store of a node as one thing: what changes it, one change at a time, and nothing is lost that a name needs."""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common.clock import Clock
from common.errors import BadModelFile, InvalidRequest, ModelNotFound, PunaError
from common.paths import open_regular
from common.telemetry.logs import get_logger
from common.telemetry.metrics import Sample
from runner.core.store.digests import parse_digest, qualified
from runner.core.store.manifest import parse_manifest
from runner.core.store.names import StoreName
from runner.host import metrics
from runner.host.home import sync_directory
from runner.host.models.model_files import NodeModel, NodeModels
from runner.host.store.access import writing
from runner.host.store.uploads import Uploads

log = get_logger()

CHUNK_BYTES = 1024 * 1024
# Uploads come before the model that is made of them: so long they are waited for.
UNUSED_S = 24 * 3600.0
LOOK_FOR_UNUSED_S = 3600.0


class Store:
    """Around the models of a node. `turn` is held by whatever writes or deletes a name."""

    def __init__(self, models: NodeModels, *, blob_bytes_max: int, prunes: bool) -> None:
        """Without `prunes` blobs stay when nothing names them any more."""
        self.models = models
        self.blobs = models.blobs
        self.manifests = models.manifests
        self.uploads = Uploads(self.blobs, bytes_max=blob_bytes_max)
        self.turn = asyncio.Lock()
        self._prunes = prunes
        self._pinned: Counter[str] = Counter()

    def samples(self) -> Iterator[Sample]:
        """Yield the bytes of the models, two names of the same weights counted once, and of their file system."""
        sizes = {model.digest or model.name: model.size_bytes for model in self.models.models()}
        yield Sample(metrics.STORE_BYTES, sum(sizes.values()))
        yield Sample(metrics.STORE_BLOBS, len(self.blobs.digests()))
        try:
            disk = os.statvfs(self.models.directory)
        except OSError:
            return
        yield Sample(metrics.STORE_FREE, disk.f_bavail * disk.f_frsize)
        yield Sample(metrics.STORE_TOTAL, disk.f_blocks * disk.f_frsize)

    @contextmanager
    def pinned(self, digests: Iterable[str]) -> Iterator[None]:
        """Keep these blobs although no manifest names them yet."""
        held = list(digests)
        self._pinned.update(held)
        try:
            yield
        finally:
            self._pinned.subtract(held)
            self._pinned += Counter()  # what is no longer held leaves

    async def write_manifest(self, name: StoreName, content: bytes) -> None:
        """Have a name stand for this from now on, and drop what only its former content needed.

        Raises:
            DiskFull, PermissionDenied: the name is as it was.
        """
        async with self.turn:
            with writing(self.models.directory):
                former = await asyncio.to_thread(self.former, name)
                await asyncio.to_thread(self.manifests.write, name, content)
                if former is not None and former != content:
                    await asyncio.to_thread(self._prune, former)
        await self.models.rescan()

    async def inspect(self, digest: str) -> None:
        """Look at a GGUF of this store in a throw-away process.

        Raises:
            BadModelFile: nothing that the engine can read.
            ModelUnavailable: the look failed.
        """
        await self.models.inspector.describe_part(self.blobs.path(digest), digest)

    async def delete(self, name: StoreName) -> int:
        """Forget a name; the bytes that this freed. A plain file that has the name goes itself.

        Raises:
            ModelNotFound: nothing has this name.
            DiskFull, PermissionDenied: the store cannot be written.
        """
        async with self.turn:
            with writing(self.models.directory):
                freed = await asyncio.to_thread(self._delete_stored, name)
                if freed is None:
                    freed = await asyncio.to_thread(self._delete_plain, name)
        if freed is None:
            raise not_found(name)
        log.info("model.deleted", model=name.short(), freed_bytes=freed)
        await self.models.rescan()
        return freed

    def find_blob(self, digest: str) -> tuple[Path, int] | None:
        """Return the path of a content, as a blob or as a plain file, and its size."""
        size = self.blobs.size(digest)
        if size is not None:
            return self.blobs.path(digest), size
        path = self.models.plain_file(digest)
        try:
            return (path, path.stat().st_size) if path is not None else None
        except OSError:
            return None

    def _open(self, path: Path, digest: str) -> int:
        return self.blobs.open(digest) if path.parent == self.blobs.directory else open_regular(path)

    async def read_header(self, digest: str) -> bytes:
        """Read the header of a model, or of a blob, as JSON.

        Raises:
            ModelNotFound: neither is here.
            BadModelFile: it is no GGUF that the engine can read.
        """
        try:
            paths = self.models.find(digest).paths
        except ModelNotFound:
            found = self.find_blob(digest)
            beside = found[0] if found is not None else self.models.projector_path(digest)
            if beside is None:
                raise
            paths = (beside,)
        return await self.models.inspector.read_header(paths)

    async def read(self, digest: str, *, offset: int, max_bytes: int) -> AsyncIterator[tuple[bytes, int]]:
        """Pieces of a blob from an offset on, and its whole size. An empty blob is one empty piece.

        Raises:
            ModelNotFound: it is not here.
            InvalidRequest: the offset lies beyond its end.
        """
        found = await asyncio.to_thread(self.find_blob, digest)
        if found is None:
            raise ModelNotFound(f"blob {qualified(digest)} is not here")
        path, size = found
        if offset > size:
            raise InvalidRequest(f"the blob has {size} bytes, nothing lies at {offset}", param="offset")
        stop = min(size, offset + max_bytes) if max_bytes else size
        descriptor = await asyncio.to_thread(self._open, path, digest)
        try:
            if offset == stop:
                yield b"", size
            while offset < stop:
                piece = await asyncio.to_thread(os.pread, descriptor, min(CHUNK_BYTES, stop - offset), offset)
                if not piece:
                    raise BadModelFile(f"blob {qualified(digest)} ends at {offset} bytes, {size} were announced")
                yield piece, size
                offset += len(piece)
        finally:
            os.close(descriptor)

    async def manifest(self, name: StoreName) -> bytes:
        """As received.

        Raises:
            ModelNotFound: nothing of this name, or a plain file.
        """
        content = await asyncio.to_thread(self.former, name)
        if content is None:
            raise not_found(name)
        return content

    def plain(self, name: StoreName) -> NodeModel | None:
        """Return a plain file that has the name."""
        found = self.models.named(name)
        return found if found is not None and not found.is_stored else None

    async def drop_unused(self, now_unix_s: float) -> int:
        """Delete blobs that lie here for a day and that nothing names; the bytes that this freed.

        Deletes nothing while a model is made or fetched: its blobs may be here already.
        """
        if not self._prunes or self._pinned:
            return 0
        freed = 0
        async with self.turn:
            for digest in await asyncio.to_thread(self._unused, now_unix_s):
                if self._pinned:
                    break
                with contextlib.suppress(OSError):  # a store that is read-only keeps what it has
                    # Renamed in the step that found it unused; deleting the bytes may take long.
                    aside, size = self.uploads.put_aside(digest)
                    await asyncio.to_thread(aside.unlink)
                    freed += size
                    log.info("blob.unused", digest=digest[:12], freed_bytes=size)
        return freed

    def _unused(self, now_unix_s: float) -> list[str]:
        old = {digest for digest in self.blobs.digests() if now_unix_s >= self.blobs.since_unix_s(digest) + UNUSED_S}
        needed = self._needed() if old else None
        return sorted(old - needed) if needed is not None else []

    def former(self, name: StoreName) -> bytes | None:
        """Return the manifest that a name has now; None if there is none that can be read."""
        try:
            return self.manifests.read(name)
        except OSError:
            return None

    def _delete_stored(self, name: StoreName) -> int | None:
        content = self.former(name)
        if not self.manifests.delete(name):
            return None
        return self._prune(content) if content is not None else 0

    def _delete_plain(self, name: StoreName) -> int | None:
        found = self.plain(name)
        if found is None:
            return None
        freed = 0
        for path in found.paths:
            size = path.lstat().st_size
            path.unlink()
            freed += size
        for folder in {path.parent for path in found.paths}:
            sync_directory(folder)
        return freed

    def _prune(self, content: bytes) -> int:
        """Delete the blobs of a manifest that is gone, those that nothing else names. Bytes that are free again."""
        if not self._prunes:
            return 0
        try:
            candidates = {layer.digest for layer in parse_manifest(content).blobs()}
        except BadModelFile:
            return 0
        needed = self._needed()
        return sum(self.blobs.delete(digest) for digest in candidates - needed) if needed is not None else 0

    def _needed(self) -> set[str] | None:
        """Return the blobs that some name stands for, and those that are held; None: not every manifest can be read."""
        listing = self.manifests.listing()
        if listing.strange:
            log.warning("store.not_pruned", reason="not every manifest can be read", path=str(listing.strange[0]))
            return None
        needed = set(self._pinned)
        for name in listing.names:
            try:
                other = self.manifests.read(name)
                if other is not None:
                    needed |= {layer.digest for layer in parse_manifest(other).blobs()}
            except (OSError, PunaError):
                log.warning("store.not_pruned", reason="not every manifest can be read", model=name.short())
                return None
        return needed


async def watch_unused(store: Store, clock: Clock) -> None:
    """Drop unused blobs at intervals; runs for ever."""
    while True:
        await asyncio.sleep(LOOK_FOR_UNUSED_S)
        await store.drop_unused(clock.wall_unix_s())


def not_found(name: StoreName) -> ModelNotFound:
    """Build the error for an unknown model name."""
    return ModelNotFound(f"model '{name.short()}' not found", param="model")


def parse_wanted(digest: str) -> str:
    """Parse the digest that a caller named.

    Raises:
        InvalidRequest: it is none.
    """
    try:
        return parse_digest(digest)
    except ValueError as error:
        raise InvalidRequest(f"invalid digest: {error}", param="digest") from error
