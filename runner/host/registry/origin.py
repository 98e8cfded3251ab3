"""Fetch of a model from the nodes that have it: all of it to load it, its headers alone to count its memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import orjson

from common.errors import (
    BadModelFile,
    DiskFull,
    InvalidRequest,
    ModelNotFound,
    PermissionDenied,
    PunaError,
    RegistryFailed,
)
from common.model_names import DEFAULT_HOST, DEFAULT_NAMESPACE, DEFAULT_TAG
from common.telemetry.logs import get_logger
from protos import host_pb2
from runner.core.model import model_files as core_files
from runner.core.store.digests import digest_of
from runner.core.store.manifest import CONFIG_TYPE, Layer, Manifest, MediaType, parse_manifest, write_manifest
from runner.core.store.names import StoreName
from runner.host.models.model_files import OnProgress, shifted
from runner.host.registry.blob_jobs import BlobJobs
from runner.host.registry.headers import HeaderFiles
from runner.host.registry.jobs import PullJobs
from runner.host.registry.sources import BlobSource, PeerSource, RegistrySource
from runner.host.store.store import Store
from runner.host.store_client import StoreClient

log = get_logger()

SOURCES_MAX = 16
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Origin:
    """Facts from nodes about the model, and the nodes themselves."""

    peers: Sequence[PeerSource]
    manifest: Manifest
    content: bytes
    is_stored: bool  # the manifest is theirs; else it was made here for their plain files
    weights: tuple[Layer, ...]  # in the order in which they are loaded


def origins_of(request: host_pb2.MeasureRequest | host_pb2.StartRequest) -> list[host_pb2.ModelOrigin]:
    """Return the sources of the models that the node lacks: of the model itself, then of its draft model."""
    own = [request.origin] if request.HasField("origin") else []
    return [*own, request.draft_origin] if request.HasField("draft_origin") else own


class Origins:
    """Fetches from other hosts into the store of this one."""

    def __init__(self, store: Store, jobs: BlobJobs, headers: HeaderFiles, pulls: PullJobs) -> None:
        """Ask the registries of `pulls` last, where they have the name."""
        self._store = store
        self._jobs = jobs
        self._headers = headers
        self._pulls = pulls

    async def fetch(self, origins: Sequence[host_pb2.ModelOrigin], on_progress: OnProgress) -> None:
        """Fetch whole models into the store, under their names; a model's draft model is one of its own.

        Raises:
            RegistryFailed: no node that has one answers; the bytes received so far stay.
            DigestMismatch, DiskFull: as they say.
        """
        async with contextlib.AsyncExitStack() as stack:
            models = [(origin, await stack.enter_async_context(self._asking(origin))) for origin in origins]
            blobs = [layer for _, found in models for layer in found.manifest.blobs()]
            stack.enter_context(self._store.pinned([layer.digest for layer in blobs]))
            await self._jobs.check_room(blobs)
            before, total = 0, sum(layer.size_bytes for layer in blobs)
            for origin, found in models:
                await self._fetch_blobs(origin, found, shifted(on_progress, before, total))
                before += sum(layer.size_bytes for layer in found.manifest.blobs())
                await self._store.write_manifest(self._free_name(origin, found), found.content)
                log.info("model.fetched", model=origin.name, digests=[digest[:12] for digest in origin.blob_digests])
        await self._store.models.scan()

    async def headers(self, origin: host_pb2.ModelOrigin, *, projector_digest: str = "") -> core_files.ModelFiles:
        """Return files of the true sizes with nothing but the headers: enough to count the memory of the model.

        Raises:
            RegistryFailed: no node that has it answers.
            BadModelFile: their file is no GGUF.
        """
        async with self._asking(origin) as found:
            first, *more = [await self._headers.of(layer, found.peers) for layer in found.weights]
            projector = next((one for one in found.manifest.layers if one.digest == projector_digest), None)
            adapters = [
                core_files.AdapterFile(path=await self._headers.of(layer, found.peers), scale=layer.scale)
                for layer in found.manifest.of(MediaType.ADAPTER)
            ]
            return core_files.ModelFiles(
                model=first,
                more=tuple(more),
                projector=await self._headers.of(projector, found.peers) if projector is not None else None,
                adapters=tuple(adapters),
            )

    @contextlib.asynccontextmanager
    async def _asking(self, origin: host_pb2.ModelOrigin) -> AsyncIterator[_Origin]:
        stores = StoreClient("node")
        peers = [PeerSource(stores, address) for address in list(dict.fromkeys(origin.addresses))[:SOURCES_MAX]]
        try:
            yield await (_stored(origin, peers) if origin.manifest_digest else self._plain(origin, peers))
        finally:
            await stores.close()

    async def _plain(self, origin: host_pb2.ModelOrigin, peers: Sequence[PeerSource]) -> _Origin:
        """Make a manifest for plain files of other nodes."""
        layers = [
            Layer(
                media_type=MediaType.PROJECTOR if digest == origin.projector_digest else MediaType.MODEL,
                digest=digest,
                size_bytes=await _size(peers, digest),
            )
            for digest in origin.blob_digests
        ]
        config = orjson.dumps({"model_format": "gguf"})
        named = Layer(media_type=CONFIG_TYPE, digest=digest_of(config), size_bytes=len(config))
        await asyncio.to_thread(self._write_small, named.digest, config)
        manifest = Manifest(config=named, layers=tuple(layers))
        weights = tuple(layer for layer in layers if layer.media_type == MediaType.MODEL)
        if not weights:
            raise RegistryFailed(f"no node lists the files of {origin.name}")
        content = write_manifest(named, layers)
        return _Origin(peers=peers, manifest=manifest, content=content, is_stored=False, weights=weights)

    async def _fetch_blobs(self, origin: host_pb2.ModelOrigin, found: _Origin, on_bytes: Callable[[int], None]) -> None:
        sources: list[BlobSource] = list(found.peers)
        if found.is_stored:
            with contextlib.suppress(PermissionDenied, InvalidRequest):
                client = self._pulls.client(StoreName.parse(origin.name), insecure=False)
                sources.append(RegistrySource(client))
        before = 0
        for layer in found.manifest.blobs():
            if self._store.blobs.size(layer.digest) != layer.size_bytes:
                await self._jobs.fetch(layer, sources, partial(_add, on_bytes, before))
            before += layer.size_bytes
            on_bytes(before)

    def _free_name(self, origin: host_pb2.ModelOrigin, found: _Origin) -> StoreName:
        """Return the name that the model has there, unless it stands for another one here."""
        try:
            name = StoreName.parse(origin.name)
            known = self._store.manifests.read(name)
        except (InvalidRequest, OSError):
            known, name = b"", StoreName(DEFAULT_HOST, DEFAULT_NAMESPACE, "unnamed", DEFAULT_TAG)
        if known is None or known == found.content:
            return name
        return StoreName(DEFAULT_HOST, DEFAULT_NAMESPACE, f"fetched-{found.weights[0].digest[:12]}", DEFAULT_TAG)

    def _write_small(self, digest: str, content: bytes) -> None:
        if self._store.blobs.has(digest):
            return
        partial = self._store.blobs.partial_path(digest)
        try:
            self._store.blobs.make_directory()
            partial.write_bytes(content)
            self._store.blobs.commit(digest, partial)
        except OSError as error:
            raise DiskFull(f"the store cannot be written: {error.strerror}") from error


def _add(on_bytes: Callable[[int], None], before: int, done: int) -> None:
    on_bytes(before + done)


async def _stored(origin: host_pb2.ModelOrigin, peers: Sequence[PeerSource]) -> _Origin:
    """Read the manifest from the first node that still has it."""

    async def read(peer: PeerSource) -> tuple[bytes, Manifest]:
        content = await peer.manifest(origin.name)
        if digest_of(content) != origin.manifest_digest:
            raise ModelNotFound(f"{origin.name} stands for something else by now")
        return content, parse_manifest(content)

    content, manifest = await _first_answer(peers, origin.name, read)
    order = {digest: index for index, digest in enumerate(origin.blob_digests)}
    # A projector may be listed as a model, as hubs do: what is loaded as weights comes first in the list of blobs.
    weights = [one for one in manifest.of(MediaType.MODEL) if one.digest != origin.projector_digest]
    weights.sort(key=lambda one: order.get(one.digest, len(order)))
    if not weights:
        raise BadModelFile("the manifest names no model")
    return _Origin(peers=peers, manifest=manifest, content=content, is_stored=True, weights=tuple(weights))


async def _size(peers: Sequence[PeerSource], digest: str) -> int:
    return await _first_answer(peers, f"blob {digest[:12]}", lambda peer: peer.size(digest))


async def _first_answer(
    peers: Sequence[PeerSource], title: str, ask: Callable[[PeerSource], Awaitable[Answer]]
) -> Answer:
    """Return the answer of the first node that has one.

    Raises:
        RegistryFailed: none has; `title` names what was asked for.
    """
    errors = []
    for peer in peers:
        try:
            return await ask(peer)
        except PunaError as error:
            errors.append(f"{peer.name}: {error.message}")
    raise RegistryFailed(f"{title} could not be fetched: {'; '.join(errors) or 'no node has it'}")
