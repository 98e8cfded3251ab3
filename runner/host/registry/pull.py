"""One pull from its first word to its last: the manifest, every blob, the checks, and only then the name."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from functools import partial

from common.changes import Changes
from common.errors import BadModelFile, InvalidRequest, PunaError, RegistryFailed
from common.telemetry.logs import get_logger
from protos import store_pb2
from runner.core.store.digests import digest_of, qualified
from runner.core.store.manifest import Layer, Manifest, MediaType, is_safetensors, parse_manifest
from runner.core.store.names import StoreName
from runner.host.registry.blob_jobs import BlobJobs
from runner.host.registry.client import RegistryClient, RegistryNotReached
from runner.host.registry.sources import BlobSource, PeerSource, RegistrySource
from runner.host.store.store import Store

log = get_logger()


class Board:
    """Progress of one pull for its listeners, in Ollama's words.

    Lines are kept in the order in which they first appeared; a listener that comes late, or reads slowly, gets the
    newest state of each, never a backlog.
    """

    def __init__(self) -> None:
        self.changes = Changes()
        self._lines: dict[str, tuple[int, store_pb2.StoreProgress]] = {}

    def show(self, line: store_pb2.StoreProgress) -> None:
        """Add a line, or the news of one that is there."""
        known = self._lines.get(line.status)
        if known is None or known[1] != line:
            self._lines[line.status] = (self.changes.version + 1, line)
            self.changes.notify()

    def since(self, version: int) -> Iterator[store_pb2.StoreProgress]:
        """Yield the lines that changed after a version, in their order."""
        return (line for changed, line in self._lines.values() if changed > version)


class Pull:
    """One model. `board` is what listeners see."""

    def __init__(
        self,
        name: StoreName,
        *,
        client: RegistryClient,
        peers: Sequence[PeerSource],
        store: Store,
        jobs: BlobJobs,
    ) -> None:
        self.board = Board()
        self._name = name
        self._client = client
        self._peers = peers
        self._store = store
        self._jobs = jobs
        self._used_peers: set[str] = set()

    async def run(self) -> None:
        """Have the model in the store, complete.

        Raises:
            ModelNotFound, InvalidRequest, RegistryFailed, DigestMismatch, DiskFull: nothing new has the name.
        """
        self._show("pulling manifest")
        content = await self._manifest()
        manifest = _checked(content)
        with self._store.pinned([layer.digest for layer in manifest.blobs()]):
            await self._fetch(manifest)
            self._show("verifying sha256 digest")
            await self._inspect(manifest)
            self._show("writing manifest")
            former = await asyncio.to_thread(self._store.former, self._name)
            if former is not None and former != content:
                self._show("removing unused layers")
            await self._store.write_manifest(self._name, content)
        log.info("model.pulled", model=self._name.short(), manifest=digest_of(content)[:12])
        self.board.show(store_pb2.StoreProgress(status="success", peers=sorted(self._used_peers)))

    async def _manifest(self) -> bytes:
        """Return the registry's manifest, the newest one; another node's where the registry is not reached.

        Discovery lists the nodes. What the registry refuses, no node can grant under the registry's name, and one that
        is not authenticated can grant nothing: the digests of a manifest prove the files, but nothing proves them.
        """
        try:
            return await self._client.manifest()
        except RegistryNotReached as error:
            known = [peer for peer in self._peers if peer.is_authenticated]
            for peer in known:
                with contextlib.suppress(PunaError):
                    content = await peer.manifest(self._name.full())
                    log.info("manifest.of_peer", model=self._name.short(), peer=peer.name, text=error.message)
                    self._used_peers.add(peer.name)
                    self._show(f"{self._client.host} is not reached, using the manifest of the node at {peer.name}")
                    return content
            if len(known) < len(self._peers):
                raise RegistryNotReached(
                    f"{error.message}; no manifest of another node stands in, because nodes show no certificates"
                    " (PUNA_TRUST is not set)"
                ) from error
            raise

    async def _fetch(self, manifest: Manifest) -> None:
        wanted: list[tuple[Layer, list[BlobSource]]] = []
        for layer in manifest.blobs():
            is_here = self._store.blobs.size(layer.digest) == layer.size_bytes
            wanted.append((layer, [] if is_here else await self._sources(layer)))
        await self._jobs.check_room(layer for layer, sources in wanted if sources)
        for layer, sources in wanted:
            if sources:
                self._used_peers |= await self._jobs.fetch(layer, sources, partial(self._show_blob, layer))
            else:
                self._show_blob(layer, layer.size_bytes)

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

    async def _inspect(self, manifest: Manifest) -> None:
        for kind in (MediaType.MODEL, MediaType.PROJECTOR, MediaType.ADAPTER):
            for layer in manifest.of(kind):
                try:
                    await self._store.inspect(layer.digest)
                except BadModelFile as error:
                    raise InvalidRequest(
                        f"{self._name.short()} cannot be used: {error.message}", param="model"
                    ) from error

    def _show_blob(self, layer: Layer, completed_bytes: int) -> None:
        line = store_pb2.StoreProgress(
            status=f"pulling {layer.digest[:12]}",
            digest=qualified(layer.digest),
            total_bytes=layer.size_bytes,
            completed_bytes=completed_bytes,
        )
        self.board.show(line)

    def _show(self, status: str) -> None:
        self.board.show(store_pb2.StoreProgress(status=status))


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
