"""PullJobs on a store in a directory, for tests that need no whole host."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from protos import store_pb2
from runner.core.registry.allowed import parse_registries
from runner.core.registry.parts import PartSizes
from runner.core.store.manifest import parse_manifest
from runner.core.store.names import StoreName
from runner.host.models.model_files import NodeModels
from runner.host.registry.blob_download import Pace
from runner.host.registry.blob_jobs import BlobJobs
from runner.host.registry.client import Secrets
from runner.host.registry.jobs import PullJobs, PullSettings
from runner.host.store.store import Store as NodeStore

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


class Store(NodeStore):
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
        super().__init__(NodeModels(directory, directory / "cache"), blob_bytes_max=2**40, prunes=True)
        self.inspected: list[str] = []
        self.refusal: Exception | None = None
        settings = PullSettings(
            registries=parse_registries(registries), secrets=secrets or Secrets(), pace=pace, linger_s=linger_s
        )
        self.blob_jobs = BlobJobs(self.blobs, pace)
        self.jobs = PullJobs(settings, self, self.blob_jobs)

    async def inspect(self, digest: str) -> None:
        """Note the digest; random bytes are no GGUF."""
        assert self.blobs.has(digest)
        self.inspected.append(digest)
        if self.refusal is not None:
            raise self.refusal

    async def write_manifest(self, name: StoreName, content: bytes) -> None:
        """Write what is pinned alone."""
        assert all(self._pinned[layer.digest] > 0 for layer in parse_manifest(content).blobs())
        self.manifests.write(name, content)

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
