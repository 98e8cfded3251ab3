"""PullJobs on a store in a directory, for tests that need no whole host."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from pathlib import Path

from protos import store_pb2
from runner.core.registry.allowed import parse_registries
from runner.core.registry.parts import PartSizes
from runner.core.store.manifest import parse_manifest
from runner.core.store.names import StoreName
from runner.host.files.blobs import BlobStore
from runner.host.files.manifests import ManifestStore
from runner.host.registry.blob_download import Pace
from runner.host.registry.blob_jobs import BlobJobs
from runner.host.registry.client import Secrets
from runner.host.registry.jobs import PullJobs, PullSettings
from runner.host.registry.pull import StoreParts

KIB = 1024
# Parts that are small enough for a blob of a megabyte to have several.
PACE = Pace(
    sizes=PartSizes(parallel=4, min_bytes=64 * KIB, max_bytes=256 * KIB),
    stall_s=5.0,
    backoff_s=0.01,
    save_interval_s=0.01,
)


def random_bytes(count: int, *, seed: int = 1) -> bytes:
    """Bytes that no two blobs share."""
    return random.Random(seed).randbytes(count)


class Store:
    """A store and what its pulls did to it."""

    def __init__(
        self,
        directory: Path,
        registries: str,
        *,
        pace: Pace = PACE,
        secrets: Secrets | None = None,
        linger_s: float = 30.0,
    ) -> None:
        self.blobs = BlobStore(directory / "blobs")
        self.manifests = ManifestStore(directory / "manifests")
        self.inspected: list[str] = []
        self.pinned: set[str] = set()
        self.refusal: Exception | None = None
        parts = StoreParts(
            blobs=self.blobs,
            manifests=self.manifests,
            inspect=self._inspect,
            write_manifest=self._write,
            pinned=self._pin,
        )
        settings = PullSettings(
            registries=parse_registries(registries), secrets=secrets or Secrets(), pace=pace, linger_s=linger_s
        )
        self.blob_jobs = BlobJobs(self.blobs, pace)
        self.jobs = PullJobs(settings, parts, self.blob_jobs)

    async def _inspect(self, digest: str) -> None:
        assert self.blobs.has(digest)
        self.inspected.append(digest)
        if self.refusal is not None:
            raise self.refusal

    async def _write(self, name: StoreName, content: bytes) -> None:
        assert all(layer.digest in self.pinned for layer in parse_manifest(content).blobs())
        self.manifests.write(name, content)

    @contextlib.contextmanager
    def _pin(self, digests: Iterable[str]) -> Iterator[None]:
        self.pinned = set(digests)
        yield

    async def pull(
        self, name: str, *, insecure: bool = True, sources: Sequence[str] = ()
    ) -> list[store_pb2.StoreProgress]:
        """Every line until the end."""
        return [line async for line in self.jobs.pull(name, insecure, sources)]

    def partials(self) -> list[str]:
        """Unfinished files."""
        directory = self.blobs.directory
        return sorted(path.name for path in directory.iterdir() if "partial" in path.name) if directory.exists() else []


@contextlib.asynccontextmanager
async def open_store(  # as Store
    directory: Path,
    registries: str,
    *,
    pace: Pace = PACE,
    secrets: Secrets | None = None,
    linger_s: float = 30.0,
) -> AsyncIterator[Store]:
    """A store whose pulls are stopped at the end."""
    store = Store(directory, registries, pace=pace, secrets=secrets, linger_s=linger_s)
    try:
        yield store
    finally:
        async with asyncio.timeout(60):
            await store.jobs.close()
