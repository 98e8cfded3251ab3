"""Sources of a blob's bytes: a registry, or the store of another host."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

from common.errors import InvalidRequest, ModelNotFound, ModelUnavailable, PunaError, RegistryFailed
from common.network import UNIX_PREFIX
from common.trust.identity import own_identity
from runner.core.registry.parts import RangeAnswer, judge_answer, range_header
from runner.core.store.digests import qualified
from runner.host.registry.client import RegistryClient
from runner.host.store_client import StoreClient

PEER_TIMEOUT_S = 5.0


class RangesUnknownError(Exception):
    """This source sends a blob from its first byte only: fetch it anew, in one piece."""


class BlobChangedError(Exception):
    """This source has other bytes than before: what is here of the blob is worthless."""


class RegistrySource:
    """A registry, over HTTP. `kind` is a label of metrics."""

    kind = "registry"

    def __init__(self, client: RegistryClient) -> None:
        self.name = client.host
        self._client = client

    async def size(self, digest: str) -> int | None:
        """Return the bytes of the blob; None: it is there, of unknown size.

        Raises:
            PunaError: it is not there, or the registry does not answer.
        """
        return await self._client.blob_size(digest)

    async def read(self, digest: str, *, start: int, stop: int, size: int) -> AsyncGenerator[bytes, None]:
        """Yield bytes [start, stop) of a blob of `size` bytes, in order; fewer if the connection ends early.

        A whole blob is asked for without a range.

        Raises:
            RangesUnknownError, BlobChangedError: see there.
            PunaError: not to be had here.
        """
        is_whole = (start, stop) == (0, size)
        headers = {} if is_whole else {"Range": range_header(start, stop)}
        async with self._client.open_blob(digest, headers) as answer:
            if answer.headers.get("content-encoding", "identity") != "identity":
                raise RegistryFailed(f"{self.name} compresses the blob {digest[:12]}")
            content_range = answer.headers.get("content-range", "")
            judged = judge_answer(answer.status_code, content_range, start=start, stop=stop, size=size)
            match judged:
                case RangeAnswer.REFUSED:
                    raise await self._client.failure(answer, f"blob {digest[:12]}")
                case RangeAnswer.CHANGED:
                    raise BlobChangedError(f"{self.name}: status {answer.status_code}, {content_range[:100]!r}")
                case RangeAnswer.WHOLE if not is_whole:
                    raise RangesUnknownError(self.name)
            length = answer.headers.get("content-length", "")
            if judged is RangeAnswer.WHOLE and length.isdecimal() and int(length) != size:
                raise BlobChangedError(f"{self.name}: {length} bytes, {size} were announced")
            async for chunk in answer.aiter_raw():
                yield chunk


class PeerSource:
    """The store of another host, over gRPC. `kind` is a label of metrics."""

    kind = "node"

    def __init__(self, stores: StoreClient, address: str) -> None:
        self.name = address
        self._stores = stores

    @property
    def is_authenticated(self) -> bool:
        """True if only a node of the cluster can answer here: it shows a certificate, or its socket is this user's."""
        return self.name.startswith(UNIX_PREFIX) or own_identity() is not None

    async def size(self, digest: str) -> int:
        """Return the bytes of the blob.

        Raises:
            ModelNotFound: it is not there.
            ModelUnavailable: the host does not answer.
        """
        async with _answering(self.name):
            size = await self._stores.stat_blob(self.name, digest)
        if size is None:
            raise ModelNotFound(f"{self.name} has no blob {digest[:12]}")
        return size

    async def manifest(self, name: str) -> bytes:
        """Return the manifest of a name, as the peer received it.

        Raises:
            ModelNotFound: it has none.
            ModelUnavailable: it does not answer.
        """
        async with _answering(self.name):
            return await self._stores.read_manifest(self.name, name)

    async def read(self, digest: str, *, start: int, stop: int, size: int) -> AsyncGenerator[bytes, None]:
        """Yield bytes [start, stop) of a blob of `size` bytes, as `RegistrySource.read`."""
        is_first = True
        chunks = self._stores.read_blob(self.name, digest, offset=start, max_bytes=stop - start)
        try:
            async with contextlib.aclosing(chunks) as received:
                async for chunk in received:
                    if is_first and chunk.size_bytes != size:
                        raise BlobChangedError(f"{self.name}: {chunk.size_bytes} bytes, {size} were announced")
                    is_first = False
                    yield chunk.data
        except InvalidRequest as error:  # it is shorter than it was
            raise BlobChangedError(f"{self.name}: {error.message}") from error


BlobSource = RegistrySource | PeerSource


@contextlib.asynccontextmanager
async def _answering(address: str) -> AsyncIterator[None]:
    """Limit the time for a host's answer."""
    try:
        async with asyncio.timeout(PEER_TIMEOUT_S):
            yield
    except TimeoutError:
        raise ModelUnavailable(f"{address} does not answer") from None


def describe(digest: str, errors: dict[str, PunaError]) -> str:
    """Describe why no source had a blob."""
    causes = "; ".join(f"{name}: {error.message}" for name, error in errors.items())
    return f"{qualified(digest)} could not be fetched: {causes}"
