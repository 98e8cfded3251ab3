"""Loads that requests of this gateway wait for: each asked of the scheduler once, for all requests that want it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from common.closing import closing
from common.errors import ModelUnavailable, PunaError
from common.spec import codecs
from common.spec.load_options import NO_LOAD_OPTIONS, LoadOptions
from common.telemetry.logs import get_logger
from gateway.converters.generation import LOADING, QUEUED
from gateway.core.models.routes import RouteInfo
from gateway.core.request.answers import LoadUpdate, Queued
from gateway.replicas.routes import RouteCache
from protos import scheduler_pb2
from scheduler.client import SchedulerClient

log = get_logger()

# A scheduler that names a replica which failed here has not noticed yet; it is asked again after a change or this long.
ASK_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadNeed:
    """Model, context and options to load. Requests with the same need share one load."""

    key: str
    model_name: str
    context_tokens: int | None
    options: LoadOptions = NO_LOAD_OPTIONS


class LoadListener(Protocol):
    """Owner of the requests that wait for loads."""

    def on_load_progress(self, need: LoadNeed, progress: Queued | LoadUpdate) -> None:
        """Handle the progress of a load."""

    def on_load_ready(self, need: LoadNeed, route: RouteInfo, *, was_loading: bool) -> bool:
        """Handle the end of a load: the model runs. Return True if no request waits for it any more."""

    def on_load_failed(self, need: LoadNeed, error: PunaError) -> None:
        """Handle a load that ended without a replica."""


@dataclass(slots=True, eq=False)
class _Job:
    task: asyncio.Task[None]
    moving: bool = True  # the scheduler is at it; False: it said "ready", and has shown no progress since


class LoadJobs:
    """The loads that requests of this gateway wait for."""

    def __init__(
        self, *, scheduler: SchedulerClient, routes: RouteCache, stall_s: float | None, listener: LoadListener
    ) -> None:
        self._scheduler = scheduler
        self._routes = routes
        self._stall_s = stall_s
        self._listener = listener
        self._jobs: dict[LoadNeed, _Job] = {}
        self._route_changed = asyncio.Event()
        routes.subscribe(self._route_changed.set)

    def start(self, need: LoadNeed, *, keep_alive_ms: int | None) -> None:
        """Load, unless that is happening already."""
        if need not in self._jobs:
            task = asyncio.create_task(self._run(need, keep_alive_ms), name=f"load {need.model_name}")
            self._jobs[need] = _Job(task=task)

    def stop(self, need: LoadNeed) -> None:
        """Stop waiting for a load. The scheduler finishes it for later requests."""
        if job := self._jobs.pop(need, None):
            job.task.cancel()

    def has(self, need: LoadNeed) -> bool:
        """Return True if requests of this gateway wait for such a load, or did."""
        return need in self._jobs

    def is_moving(self, need: LoadNeed) -> bool:
        """Return True while the scheduler works on it: that time does not count as waiting for a slot."""
        job = self._jobs.get(need)
        return job is not None and job.moving

    async def close(self) -> None:
        """Stop everything."""
        tasks = [job.task for job in self._jobs.values()]
        self._jobs.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def relay(
        self,
        *,
        model_name: str,
        context_tokens: int | None,
        keep_alive_ms: int | None,
        options: LoadOptions = NO_LOAD_OPTIONS,
        load_only: bool = False,
        at_once: bool = False,
        move_to: str = "",
    ) -> AsyncIterator[Queued | LoadUpdate | RouteInfo]:
        """Ask the scheduler for a replica; the last item is the route, which the cache then has too.

        `load_only`: no request will follow. `at_once`: earlier crashes and failed loads of the model are forgotten.
        `move_to`: a node, on which the replica takes the place of one elsewhere.

        Raises:
            ModelUnavailable: the load made no progress for too long; tell the client to come again.
            PunaError: what the scheduler raised.
        """
        request = scheduler_pb2.EnsureModelRequest(
            model_name=model_name,
            context_tokens=context_tokens,
            keep_alive_ms=keep_alive_ms,
            options=codecs.LOAD_OPTIONS.to_proto(options) if options != NO_LOAD_OPTIONS else None,
            load_only=load_only,
            at_once=at_once,
            move_to=move_to,
        )
        async with closing(self._scheduler.ensure_model(request)) as events:
            while True:
                match (event := await self._next(events)).WhichOneof("event"):
                    case "queued":
                        yield QUEUED.from_proto(event.queued)
                    case "loading":
                        yield LOADING.from_proto(event.loading)
                    case "ready":
                        yield self._routes.merge(event.ready.route)
                        return

    async def _next(self, events: AsyncIterator[scheduler_pb2.EnsureModelEvent]) -> scheduler_pb2.EnsureModelEvent:
        try:
            async with asyncio.timeout(self._stall_s):
                return await anext(events)
        except TimeoutError as error:
            raise ModelUnavailable("the model made no progress while loading", retry_after_s=5.0) from error
        except StopAsyncIteration as error:
            raise ModelUnavailable("the scheduler ended without a replica", retry_after_s=5.0) from error

    async def _run(self, need: LoadNeed, keep_alive_ms: int | None) -> None:
        job = self._jobs[need]
        error: PunaError | None = None
        try:
            while not await self._load_once(job, need, keep_alive_ms):
                pass
        except PunaError as caught:
            error = caught
        finally:
            if self._jobs.get(need) is job:  # a stopped job may have a successor
                del self._jobs[need]
        if error is not None:
            self._listener.on_load_failed(need, error)

    async def _load_once(self, job: _Job, need: LoadNeed, keep_alive_ms: int | None) -> bool:
        """Do one round; return True if every waiting request was served."""
        relay = self.relay(
            model_name=need.model_name,
            context_tokens=need.context_tokens,
            keep_alive_ms=keep_alive_ms,
            options=need.options,
        )
        async with closing(relay) as steps:
            async for step in steps:
                if not isinstance(step, RouteInfo):
                    job.moving = True
                    self._listener.on_load_progress(need, step)
                    continue
                was_loading, job.moving = job.moving, False
                # Cleared first: what the listener does not yet see must wake the wait below.
                self._route_changed.clear()
                if self._listener.on_load_ready(need, step, was_loading=was_loading):
                    return True
        try:
            async with asyncio.timeout(ASK_AGAIN_S):
                await self._route_changed.wait()
        except TimeoutError:
            log.debug("load.asked_again", model=need.model_name)
        return False
