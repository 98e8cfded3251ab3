"""puna.v1.ModelStore over gRPC."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

from grpc import aio

from common.errors import InvalidRequest, ModelNotFound, PunaError
from protos import store_pb2, store_pb2_grpc
from runner.core.store.names import StoreName
from runner.host.store.create import Creation
from runner.host.store.store import CHUNK_BYTES, Store, parse_wanted
from runner.host.store_client import TAKES_KEY

DRAINED_BYTES_MAX = 64 * 1024 * 1024
DRAIN_S = 2.0

Context = aio.ServicerContext[Any, Any]
# Name, whether plain HTTP is asked for, addresses of other hosts.
Puller = Callable[[str, bool, Sequence[str]], AsyncGenerator[store_pb2.StoreProgress, None]]


class ModelStoreServicer(store_pb2_grpc.ModelStoreServicer):
    """Requests to the store's own words and back."""

    def __init__(self, store: Store, pull: Puller) -> None:
        self._store = store
        self._pull = pull

    async def Pull(self, request: store_pb2.PullRequest, context: Context) -> AsyncIterator[store_pb2.StoreProgress]:
        """Fetch a model."""
        async with contextlib.aclosing(self._pull(request.name, request.insecure, list(request.sources))) as steps:
            async for progress in steps:
                yield progress

    async def Create(
        self, request: store_pb2.CreateRequest, context: Context
    ) -> AsyncIterator[store_pb2.StoreProgress]:
        """Make a model."""
        async for status in Creation(self._store, request).run():
            yield store_pb2.StoreProgress(status=status)

    async def Copy(self, request: store_pb2.CopyRequest, context: Context) -> store_pb2.CopyResponse:
        """Make a second name."""
        source, target = StoreName.parse(request.source), StoreName.parse(request.destination)
        try:
            content = await self._store.manifest(source)
        except ModelNotFound:
            copy = store_pb2.CreateRequest(name=request.destination, from_model=request.source)
            async for _ in Creation(self._store, copy).run():
                pass  # a plain file has no manifest yet
        else:
            await self._store.write_manifest(target, content)
        return store_pb2.CopyResponse()

    async def Delete(self, request: store_pb2.DeleteRequest, context: Context) -> store_pb2.DeleteResponse:
        """Forget a name."""
        return store_pb2.DeleteResponse(freed_bytes=await self._store.delete(StoreName.parse(request.name)))

    async def StatBlob(self, request: store_pb2.StatBlobRequest, context: Context) -> store_pb2.StatBlobResponse:
        """Return the presence and size of a blob."""
        found = self._store.find_blob(parse_wanted(request.digest))
        return store_pb2.StatBlobResponse(present=found is not None, size_bytes=found[1] if found is not None else 0)

    async def PutBlob(
        self, request_iterator: AsyncIterator[store_pb2.PutBlobRequest], context: Context
    ) -> store_pb2.PutBlobResponse:
        """Receive a blob."""
        first = await anext(aiter(request_iterator), None)
        if first is None:
            raise InvalidRequest("the first message names a digest", param="digest")
        digest = parse_wanted(first.digest)
        size = self._store.blobs.size(digest)
        if size is not None:
            return store_pb2.PutBlobResponse(existed=True, size_bytes=size)

        is_begun = False

        async def begin() -> None:
            nonlocal is_begun
            is_begun = True
            # The sender waits for this word before it sends the content.
            await context.send_initial_metadata(((TAKES_KEY, "1"),))

        async def pieces() -> AsyncIterator[bytes]:
            if first.data:
                yield first.data
            async for request in request_iterator:
                yield request.data

        try:
            written = await self._store.uploads.receive(digest, first.size_bytes, pieces(), on_admitted=begin)
        except PunaError:
            if is_begun:
                await _drain(request_iterator)
            raise
        return store_pb2.PutBlobResponse(existed=False, size_bytes=written)

    async def ReadBlob(
        self, request: store_pb2.ReadBlobRequest, context: Context
    ) -> AsyncIterator[store_pb2.BlobChunk]:
        """Send the content of a blob."""
        digest = parse_wanted(request.digest)
        total = True
        async for piece, size in self._store.read(digest, offset=request.offset, max_bytes=request.max_bytes):
            yield store_pb2.BlobChunk(data=piece, size_bytes=size if total else 0)
            total = False

    async def ReadHeader(
        self, request: store_pb2.ReadHeaderRequest, context: Context
    ) -> AsyncIterator[store_pb2.HeaderChunk]:
        """Stream the header of a GGUF."""
        content = await self._store.read_header(parse_wanted(request.digest))
        for start in range(0, len(content), CHUNK_BYTES):
            yield store_pb2.HeaderChunk(json=content[start : start + CHUNK_BYTES])

    async def ReadManifest(
        self, request: store_pb2.ReadManifestRequest, context: Context
    ) -> store_pb2.ReadManifestResponse:
        """Return a manifest as received."""
        return store_pb2.ReadManifestResponse(manifest=await self._store.manifest(StoreName.parse(request.name)))


async def _drain(request_iterator: AsyncIterator[store_pb2.PutBlobRequest]) -> None:
    """Read on for a moment: an answer before the end of the upload would not reach the client."""
    left = DRAINED_BYTES_MAX
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            async for request in request_iterator:
                left -= len(request.data)
                if left < 0:
                    return
