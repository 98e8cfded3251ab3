"""Pulls by name: one job each, however many listen. The job stops some time after the last of them has left."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import httpx

from common.errors import DiskFull, PunaError, ShuttingDown
from common.telemetry.logs import get_logger
from protos import store_pb2
from runner.core.registry.allowed import AllowedRegistry, find_registry
from runner.core.store.names import StoreName
from runner.host import metrics
from runner.host.registry.blob_download import Pace
from runner.host.registry.blob_jobs import BlobJobs
from runner.host.registry.client import RegistryClient, Secrets
from runner.host.registry.pull import Pull
from runner.host.registry.sources import PeerSource
from runner.host.registry.transport import RegistryTransport
from runner.host.store.store import Store
from runner.host.store_client import StoreClient

log = get_logger()

CONNECT_TIMEOUT_S = 10.0
PROGRESS_INTERVAL_S = 0.1  # between messages to a listener
JOBS_MAX = 64
USER_AGENT = "puna"


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSettings:
    """Settings of pulls: allowed sources and limits."""

    registries: Sequence[AllowedRegistry]
    secrets: Secrets = field(default_factory=Secrets)
    pace: Pace = field(default_factory=Pace)
    linger_s: float = 30.0  # how long a pull continues without listeners


@dataclass(slots=True, kw_only=True, eq=False)
class _Job:
    pull: Pull
    peers: StoreClient
    listeners: int = 0
    task: asyncio.Task[None] | None = None
    ending: asyncio.Task[None] | None = None


class PullJobs:
    """Owner of all pulls of a node."""

    def __init__(self, settings: PullSettings, store: Store, blob_jobs: BlobJobs) -> None:
        self._settings = settings
        self._store = store
        self._blob_jobs = blob_jobs
        self._jobs: dict[StoreName, _Job] = {}
        timeout = httpx.Timeout(CONNECT_TIMEOUT_S, read=settings.pace.stall_s, pool=None)
        self._http = httpx.AsyncClient(
            transport=RegistryTransport(connect_timeout_s=CONNECT_TIMEOUT_S),
            timeout=timeout,
            headers={"User-Agent": USER_AGENT},
            follow_redirects=False,
        )
        self._closed = False

    async def pull(
        self, name: str, insecure: bool, sources: Sequence[str]
    ) -> AsyncGenerator[store_pb2.StoreProgress, None]:
        """Join or start the pull of a name; yields its progress, "success" last.

        Raises:
            InvalidRequest: no name of a model, or the registry refuses it.
            PermissionDenied: the registry is not on the list, or not without TLS.
            ModelNotFound, RegistryFailed, DigestMismatch, DiskFull: the pull failed; the name is as it was.
        """
        wanted = StoreName.parse(name)
        job = self._join(wanted, insecure=insecure, sources=sources)
        try:
            board, sent = job.pull.board, 0
            while True:
                assert job.task is not None
                is_over = job.task.done()
                seen, lines = board.changes.version, list(board.since(sent))
                for line in lines:
                    yield line
                sent = seen
                if is_over:
                    if job.task.cancelled():
                        raise ShuttingDown("the pull was stopped")
                    job.task.result()
                    return
                await board.changes.beyond(seen)
                if not job.task.done():
                    await asyncio.sleep(PROGRESS_INTERVAL_S)
        finally:
            self._leave(wanted.key, job)

    async def close(self) -> None:
        """Stop every pull; what is here of them stays."""
        self._closed = True
        tasks = [task for job in self._jobs.values() for task in (job.ending, job.task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.aclose()

    def client(self, name: StoreName, *, insecure: bool) -> RegistryClient:
        """Return a client of the registry of a name.

        Raises:
            PermissionDenied: the registry is not on the list, or not without TLS.
        """
        registry = find_registry(self._settings.registries, name.host)
        return RegistryClient(self._http, registry, name, self._settings.secrets, insecure=insecure)

    def _join(self, name: StoreName, *, insecure: bool, sources: Sequence[str]) -> _Job:
        key = name.key
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = self._start(name, insecure=insecure, sources=sources)
        if job.ending is not None:
            job.ending.cancel()
            job.ending = None
        job.listeners += 1
        return job

    def _start(self, name: StoreName, *, insecure: bool, sources: Sequence[str]) -> _Job:
        if self._closed or len(self._jobs) >= JOBS_MAX:
            raise ShuttingDown("this node takes no more pulls now", retry_after_s=1.0)
        client = self.client(name, insecure=insecure)
        stores = StoreClient("node")
        peers = [PeerSource(stores, address) for address in dict.fromkeys(sources)]
        job = _Job(pull=Pull(name, client=client, peers=peers, store=self._store, jobs=self._blob_jobs), peers=stores)
        job.task = asyncio.create_task(self._run(name, job))
        return job

    async def _run(self, name: StoreName, job: _Job) -> None:
        try:
            with metrics.PULLS.track_inprogress():
                await job.pull.run()
        except PunaError as error:
            log.warning("pull.failed", model=name.short(), reason=error.reason, text=error.message)
            raise
        except OSError as error:
            log.warning("pull.failed", model=name.short(), reason=DiskFull.reason, text=str(error))
            raise DiskFull(f"the store cannot be written: {error.strerror}") from error
        finally:
            if self._jobs.get(name.key) is job:
                del self._jobs[name.key]
            if job.ending is not None:
                job.ending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await job.peers.close()
            asyncio.get_running_loop().call_soon(job.pull.board.changes.notify)

    def _leave(self, key: StoreName, job: _Job) -> None:
        job.listeners -= 1
        if job.listeners == 0 and job.task is not None:
            if job.task.done():
                job.task.cancelled() or job.task.exception()  # retrieved, so that asyncio logs nothing
            else:
                job.ending = asyncio.create_task(self._end_later(key, job, job.task))

    async def _end_later(self, key: StoreName, job: _Job, task: asyncio.Task[None]) -> None:
        await asyncio.sleep(self._settings.linger_s)
        log.info("pull.abandoned", after_s=self._settings.linger_s)
        job.ending = None
        if self._jobs.get(key) is job:
            del self._jobs[key]
        task.cancel()
