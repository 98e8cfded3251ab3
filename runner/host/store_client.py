"""Client of a node's model store for gateways and other hosts: domain errors instead of gRPC ones."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator

from common.errors import InvalidRequest
from common.grpc.client import ChannelBook, ask, call_metadata
from common.grpc.errors import domain_errors, received
from protos import store_pb2, store_pb2_grpc

CALL_TIMEOUT_S = 30.0
# A blob of this size or less goes in one message.
CHUNK_BYTES = 1024 * 1024
# In the initial metadata of PutBlob: the node wants the content.
TAKES_KEY = "puna-takes"


class StoreClient(ChannelBook):
    """Commands to stores by address. Channels are opened when first used and closed by `close` or `forget`."""

    def pull(self, address: str, request: store_pb2.PullRequest) -> AsyncGenerator[store_pb2.StoreProgress, None]:
        """Have the node fetch a model; its progress until "success". Leaving the iteration stops listening only.

        Raises:
            PermissionDenied, ModelNotFound, InvalidRequest, RegistryFailed, DigestMismatch, DiskFull: as they say.
            ModelUnavailable: the node cannot be reached; try another one.
        """
        return received(self._stub(address).Pull(request, metadata=call_metadata()))

    def create(self, address: str, request: store_pb2.CreateRequest) -> AsyncGenerator[store_pb2.StoreProgress, None]:
        """Have the node make a model; its progress until "success".

        Raises:
            ModelNotFound: the node lacks the model or a blob that this one is made of.
            InvalidRequest, DiskFull: as they say.
            ModelUnavailable: the node cannot be reached; try another one.
        """
        return received(self._stub(address).Create(request, metadata=call_metadata()))

    async def copy(self, address: str, *, source: str, destination: str) -> None:
        """Give a model of the node a second name.

        Raises:
            ModelNotFound, InvalidRequest: as they say.
        """
        request = store_pb2.CopyRequest(source=source, destination=destination)
        await ask(self._stub(address).Copy, request, timeout_s=CALL_TIMEOUT_S)

    async def delete(self, address: str, name: str) -> int:
        """Have the node forget a name; the bytes that this freed.

        Raises:
            ModelNotFound, InvalidRequest: as they say.
        """
        request = store_pb2.DeleteRequest(name=name)
        return (await ask(self._stub(address).Delete, request, timeout_s=CALL_TIMEOUT_S)).freed_bytes

    async def stat_blob(self, address: str, digest: str) -> int | None:
        """Return the size of a blob; None if the node does not have it.

        Raises:
            InvalidRequest: no digest.
        """
        request = store_pb2.StatBlobRequest(digest=digest)
        response = await ask(self._stub(address).StatBlob, request, timeout_s=CALL_TIMEOUT_S)
        return response.size_bytes if response.present else None

    async def put_blob(
        self, address: str, digest: str, content: AsyncIterable[bytes], *, size_bytes: int = 0
    ) -> store_pb2.PutBlobResponse:
        """Send a blob. `content` is read no faster than the node takes it; pieces may have any size.

        Raises:
            InvalidRequest: the content has another digest or length, or raised; nothing is kept.
            DiskFull, RequestTooLarge: as they say.
            ModelUnavailable: the node cannot be reached.
        """
        begun = asyncio.Event()

        async def requests() -> AsyncIterator[store_pb2.PutBlobRequest]:
            yield store_pb2.PutBlobRequest(digest=digest, size_bytes=size_bytes)
            # What the node refuses, or has already, is not sent: its answer would be lost among what is on its way.
            await begun.wait()
            async for piece in content:
                for start in range(0, len(piece), CHUNK_BYTES):
                    if call.done():
                        return
                    yield store_pb2.PutBlobRequest(data=piece[start : start + CHUNK_BYTES])

        call = self._stub(address).PutBlob(requests(), metadata=call_metadata())
        try:
            with domain_errors():
                if (TAKES_KEY, "1") in tuple(await call.initial_metadata()):
                    begun.set()
                response: store_pb2.PutBlobResponse = await call
            return response
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # This task was not cancelled: gRPC cancels its own call when `content` raises, and says no more about it.
            raise InvalidRequest("the content ended before it was whole") from None
        finally:
            begun.set()
            call.cancel()

    def read_blob(
        self, address: str, digest: str, *, offset: int = 0, max_bytes: int = 0
    ) -> AsyncGenerator[store_pb2.BlobChunk, None]:
        """Return a stream of a blob from an offset on. The first chunk has its whole size.

        Raises:
            ModelNotFound: the node does not have it.
            InvalidRequest: the offset lies beyond its end, or no digest.
        """
        request = store_pb2.ReadBlobRequest(digest=digest, offset=offset, max_bytes=max_bytes)
        return received(self._stub(address).ReadBlob(request, metadata=call_metadata()))

    async def read_header(self, address: str, digest: str) -> bytes:
        """Return the header of a model or blob as JSON {"metadata", "tensors"}.

        Raises:
            ModelNotFound: the node has neither.
            BadModelFile: it is no GGUF.
        """
        request = store_pb2.ReadHeaderRequest(digest=digest)
        call = self._stub(address).ReadHeader(request, timeout=CALL_TIMEOUT_S, metadata=call_metadata())
        return b"".join([chunk.json async for chunk in received(call)])

    async def read_manifest(self, address: str, name: str) -> bytes:
        """Return the manifest of a name as the node received it.

        Raises:
            ModelNotFound: the node has none.
        """
        request = store_pb2.ReadManifestRequest(name=name)
        return (await ask(self._stub(address).ReadManifest, request, timeout_s=CALL_TIMEOUT_S)).manifest

    def _stub(self, address: str) -> "store_pb2_grpc.ModelStoreAsyncStub":
        return store_pb2_grpc.ModelStoreStub(self.channel(address))
