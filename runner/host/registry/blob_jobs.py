"""The blobs that are on their way to this node's store: each once, however many models want it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from common.changes import Changes
from common.errors import DiskFull, InternalError, PunaError
from common.telemetry.logs import get_logger
from runner.core.store.manifest import Layer
from runner.host import metrics
from runner.host.files.blobs import BlobStore
from runner.host.registry.blob_download import BlobDownload, Pace
from runner.host.registry.partial_file import PartialFile, here_bytes
from runner.host.registry.sources import BlobSource

log = get_logger()


@dataclass(slots=True, kw_only=True, eq=False)
class BlobJob:
    """One blob that is being fetched; its users read this."""

    digest: str
    size_bytes: int
    changes: Changes = field(default_factory=Changes)
    download: BlobDownload | None = None
    users: int = 0
    task: asyncio.Task[None] | None = None

    @property
    def completed_bytes(self) -> int:
        """Return the number of bytes on disk."""
        return self.download.completed_bytes if self.download is not None else 0

    @property
    def is_over(self) -> bool:
        """It is here, or it failed."""
        return self.task is not None and self.task.done()

    def check(self) -> None:
        """Raise what it failed with.

        Raises:
            PunaError: see `BlobDownload.run`.
        """
        assert self.task is not None
        if self.task.cancelled():
            raise InternalError("the download was stopped")
        self.task.result()


class BlobJobs:
    """Owns the downloads. A download without users stops; its bytes stay."""

    def __init__(self, blobs: BlobStore, pace: Pace) -> None:
        self._blobs = blobs
        self._pace = pace
        self._jobs: dict[str, BlobJob] = {}
        self._stopping: dict[str, asyncio.Task[None]] = {}  # still have the file open

    def missing_bytes(self, digest: str, size_bytes: int) -> int:
        """Return the bytes that the disk still needs for a blob."""
        if self._blobs.size(digest) == size_bytes:
            return 0
        return max(0, size_bytes - here_bytes(self._blobs.partial_path(digest)))

    async def check_room(self, layers: Iterable[Layer]) -> None:
        """Check that the disk has room for the missing bytes of all these blobs, beside those that are fetched now.

        Raises:
            DiskFull: it has not.
        """
        wanted = [layer for layer in layers if layer.digest not in self._jobs]

        def check() -> None:
            self._blobs.check_room(sum(self.missing_bytes(layer.digest, layer.size_bytes) for layer in wanted))

        await asyncio.to_thread(check)

    async def fetch(self, layer: Layer, sources: Sequence[BlobSource], on_progress: Callable[[int], None]) -> set[str]:
        """Have a blob in the store; return the names of the nodes that sent bytes of it.

        `on_progress` gets the number of its bytes that are here.

        Raises:
            PunaError: see `BlobDownload.run`.
        """
        async with self._fetching(layer.digest, layer.size_bytes, sources) as job:
            seen = -1
            while not job.is_over:
                seen = await job.changes.beyond(seen)
                on_progress(job.completed_bytes)
            job.check()
            on_progress(layer.size_bytes)
            return job.download.peers if job.download is not None else set()

    @contextlib.asynccontextmanager
    async def _fetching(self, digest: str, size_bytes: int, sources: Sequence[BlobSource]) -> AsyncIterator[BlobJob]:
        """Join or start the job that fetches this blob. It is stopped when its last user leaves the context.

        The sources of the first caller are used; the bytes are the same everywhere.
        """
        job = self._jobs.get(digest)
        if job is None or job.size_bytes != size_bytes:
            job = self._jobs[digest] = BlobJob(digest=digest, size_bytes=size_bytes)
            job.task = asyncio.create_task(self._run(job, sources, self._stopping.get(digest)))
        job.users += 1
        try:
            yield job
        finally:
            job.users -= 1
            if job.users == 0 and job.task is not None:
                await self._stop(job, job.task)

    async def _stop(self, job: BlobJob, task: asyncio.Task[None]) -> None:
        if self._jobs.get(job.digest) is job:
            del self._jobs[job.digest]
        self._stopping[job.digest] = task
        task.cancel()
        await asyncio.wait({task})
        if self._stopping.get(job.digest) is task:
            del self._stopping[job.digest]

    async def _run(self, job: BlobJob, sources: Sequence[BlobSource], predecessor: asyncio.Task[None] | None) -> None:
        try:
            if predecessor is not None:
                await asyncio.wait({predecessor})
            with metrics.FETCHES.track_inprogress():
                await self._fetch(job, sources)
        except OSError as error:
            metrics.FETCH_FAILURES.labels(reason=DiskFull.reason).inc()
            raise DiskFull(f"the store cannot be written: {error.strerror}") from error
        except PunaError as error:
            metrics.FETCH_FAILURES.labels(reason=error.reason).inc()
            raise
        finally:
            if self._jobs.get(job.digest) is job:
                del self._jobs[job.digest]
            # The task is done only after this; a caller that waits looks again then.
            asyncio.get_running_loop().call_soon(job.changes.notify)

    async def _fetch(self, job: BlobJob, sources: Sequence[BlobSource]) -> None:
        if self._blobs.size(job.digest) == job.size_bytes:
            return
        with self._blobs.reservation(lambda: self.missing_bytes(job.digest, job.size_bytes)) as room:
            await asyncio.to_thread(room.admit)
            self._blobs.make_directory()
            partial = self._blobs.partial_path(job.digest)
            file = PartialFile(partial, digest=job.digest, size_bytes=job.size_bytes)
            try:
                job.download = BlobDownload(file, sources=sources, pace=self._pace, changes=job.changes)
                await job.download.run()
                await asyncio.to_thread(self._blobs.commit, job.digest, partial)
                file.forget()
            finally:
                await file.close()
        log.info("blob.fetched", digest=job.digest[:12], bytes=job.size_bytes)
