"""One pull from its first word to its last: the manifest, every blob, the checks, and only then the name."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from common.errors import BadModelFile, InvalidRequest, PunaError, RegistryFailed
from common.telemetry.logs import get_logger
from runner.core.registry import progress
from runner.core.registry.progress import Board, Line
from runner.core.store.digests import digest_of
from runner.core.store.manifest import Layer, Manifest, MediaType, is_safetensors, parse_manifest
from runner.core.store.names import StoreName
from runner.host.files.blobs import BlobStore
from runner.host.files.manifests import ManifestStore
from runner.host.registry.blob_jobs import BlobJobs
from runner.host.registry.client import RegistryClient
from runner.host.registry.sources import BlobSource, PeerSource, RegistrySource

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreParts:
    """Parts of its node's store that a pull uses."""

    blobs: BlobStore
    manifests: ManifestStore
    # A GGUF by its digest, looked at in a throw-away process. Raises BadModelFile.
    inspect: Callable[[str], Awaitable[None]]
    # Have a name stand for this manifest, show it, and drop what only its former content needed.
    write_manifest: Callable[[StoreName, bytes], Awaitable[None]]
    # Blobs that stay although no manifest names them yet.
    pinned: Callable[[Iterable[str]], AbstractContextManager[None]]


class Pull:
    """One model. `board` is what listeners see; `changed` is called with every news."""

    def __init__(
        self,
        name: StoreName,
        *,
        client: RegistryClient,
        peers: Sequence[PeerSource],
        store: StoreParts,
        jobs: BlobJobs,
        changed: Callable[[], None],
    ) -> None:
        self.board = Board()
        self._name = name
        self._client = client
        self._peers = peers
        self._store = store
        self._jobs = jobs
        self._changed = changed

    async def run(self) -> None:
        """Have the model in the store, complete.

        Raises:
            ModelNotFound, InvalidRequest, RegistryFailed, DigestMismatch, DiskFull: nothing new has the name.
        """
        self._show(Line(status=progress.PULLING_MANIFEST))
        content = await self._manifest()
        manifest = _checked(content)
        with self._store.pinned([layer.digest for layer in manifest.blobs()]):
            await self._fetch(manifest)
            self._show(Line(status=progress.VERIFYING))
            await self._inspect(manifest)
            self._show(Line(status=progress.WRITING_MANIFEST))
            former = await asyncio.to_thread(self._former)
            if former is not None and former != content:
                self._show(Line(status=progress.REMOVING_UNUSED))
            await self._store.write_manifest(self._name, content)
        log.info("model.pulled", model=self._name.short(), manifest=digest_of(content)[:12])
        self._show(Line(status=progress.SUCCESS))

    async def _manifest(self) -> bytes:
        """Return the registry's manifest, the newest one; another host's where the registry is not reached."""
        try:
            return await self._client.manifest()
        except RegistryFailed as error:
            for peer in self._peers:
                with contextlib.suppress(PunaError):
                    content = await peer.manifest(self._name.full())
                    log.info("manifest.of_peer", model=self._name.short(), peer=peer.name, text=error.message)
                    return content
            raise

    async def _fetch(self, manifest: Manifest) -> None:
        wanted: list[tuple[Layer, list[BlobSource]]] = []
        for layer in manifest.blobs():
            is_here = self._store.blobs.size(layer.digest) == layer.size_bytes
            wanted.append((layer, [] if is_here else await self._sources(layer)))
        await asyncio.to_thread(self._check_room, [layer for layer, sources in wanted if sources])
        for layer, sources in wanted:
            if sources:
                await self._fetch_blob(layer, sources)
            else:
                self._show_blob(layer, layer.size_bytes)

    def _check_room(self, layers: Sequence[Layer]) -> None:
        missing = sum(self._jobs.missing_bytes(layer.digest, layer.size_bytes) for layer in layers)
        self._store.blobs.check_room(missing)

    async def _sources(self, layer: Layer) -> list[BlobSource]:
        """Return the sources of a blob in the announced size: other hosts first, the registry last.

        Raises:
            PunaError: no source has it; the error of the registry.
        """
        found: list[BlobSource] = []
        for peer in self._peers:
            with contextlib.suppress(PunaError):
                if await peer.size(layer.digest) == layer.size_bytes:
                    found.append(peer)
        registry = RegistrySource(self._client)
        try:
            size = await registry.size(layer.digest)
        except PunaError as error:
            if not found:
                raise
            log.info("blob.of_peers_only", digest=layer.digest[:12], text=error.message)
            return found
        if size is not None and size != layer.size_bytes:
            if not found:
                raise RegistryFailed(
                    f"{registry.name} has {size} bytes as the blob {layer.digest[:12]}, its manifest says"
                    f" {layer.size_bytes}"
                )
            return found
        return [*found, registry]

    async def _fetch_blob(self, layer: Layer, sources: Sequence[BlobSource]) -> None:
        async with self._jobs.fetching(layer.digest, layer.size_bytes, sources) as job:
            seen = -1
            while not job.is_over:
                seen = await job.changes.beyond(seen)
                self._show_blob(layer, job.completed_bytes)
            job.check()

    async def _inspect(self, manifest: Manifest) -> None:
        for kind in (MediaType.MODEL, MediaType.PROJECTOR, MediaType.ADAPTER):
            for layer in manifest.of(kind):
                try:
                    await self._store.inspect(layer.digest)
                except BadModelFile as error:
                    raise InvalidRequest(
                        f"{self._name.short()} cannot be used: {error.message}", param="model"
                    ) from error

    def _former(self) -> bytes | None:
        try:
            return self._store.manifests.read(self._name)
        except OSError:
            return None

    def _show_blob(self, layer: Layer, completed_bytes: int) -> None:
        self._show(progress.pulling(layer.digest, total_bytes=layer.size_bytes, completed_bytes=completed_bytes))

    def _show(self, line: Line) -> None:
        self.board.show(line)
        self._changed()


def _checked(content: bytes) -> Manifest:
    """Return the manifest of a model that can be loaded.

    Raises:
        RegistryFailed: it is none.
        InvalidRequest: it is one of something else.
    """
    try:
        manifest = parse_manifest(content)
    except BadModelFile as error:
        raise RegistryFailed(error.message) from error
    if is_safetensors(manifest.layers):
        raise InvalidRequest("the model's weights are safetensors; only GGUF models can be loaded", param="model")
    if not manifest.of(MediaType.MODEL):
        raise InvalidRequest("the name stands for something that holds no GGUF model", param="model")
    return manifest
