"""Dispatcher: gives queued requests slots of replicas; the acting half of `gateway.core.dispatch.admission`.

One dispatcher owns every queue. Requests wait here, not at a runner, until a slot is free (late binding); a model that
no running replica can serve is loaded through the scheduler, once for all requests that wait for it.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field

from common.clock import Clock
from common.errors import ModelUnavailable, PunaError, QueueFull
from common.spec.load_options import NO_LOAD_OPTIONS, LoadOptions
from gateway import metrics
from gateway.core.dispatch.admission import (
    BUSY_TEXT,
    DrainRate,
    Grant,
    Waiter,
    check_bytes,
    check_room,
    needs_load,
    plan_grants,
    retry_after_s,
)
from gateway.core.dispatch.fairness import NO_CLAIM, NOTHING_ELSEWHERE, Shares, SlotClaim, WaitingCounts
from gateway.core.dispatch.replica_choice import ReplicaCandidate, ReplicaNeed, choose_replica
from gateway.core.dispatch.resume import Suspicion
from gateway.core.dispatch.shared_usage import SharedUsage
from gateway.core.models.routes import RouteInfo
from gateway.core.request.answers import LoadUpdate, Queued
from gateway.replicas.load_jobs import LoadJobs, LoadNeed
from gateway.replicas.replicas import Connection, ReplicaPool
from gateway.replicas.routes import RouteCache
from runner.client import RunnerClient
from scheduler.client import SchedulerClient

# Each report of a position wakes a request: many that wait would take more processor time than the answers.
POSITIONS_S = 0.4
# A free slot is left to a tenant that waits at another gateway for so long: runners report twice in this time.
LEFT_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRequest:
    """Request for a slot of a replica."""

    key: str  # normalised model name
    model_name: str
    need: ReplicaNeed
    keep_alive_ms: int | None = None
    options: LoadOptions = NO_LOAD_OPTIONS
    claim: SlotClaim = NO_CLAIM
    body_bytes: int = 0  # of the prompt that is kept meanwhile
    was_admitted: bool = False  # its replica was lost: it has waited its turn already
    suspicion: Suspicion | None = field(default=None, compare=False)  # of a suspect, as `need` says

    @property
    def load_need(self) -> LoadNeed:
        """Return the load that would serve it."""
        return LoadNeed(
            key=self.key, model_name=self.model_name, context_tokens=self.need.context_tokens, options=self.options
        )


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request in a queue. `connection` is its slot once it has one, `error` why it will never get one."""

    number: int
    request: SlotRequest
    deadline_s: float
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    progress: Queued | LoadUpdate | None = None
    connection: Connection | None = None
    error: PunaError | None = None
    relaxed: bool = False  # the scheduler gave less than was asked for; any replica will do
    joined_s: float = 0.0

    @property
    def waiter(self) -> Waiter:
        need = self.request.need
        relaxed = ReplicaNeed(avoided=need.avoided, is_suspect=need.is_suspect) if self.relaxed else need
        return Waiter(number=self.number, need=relaxed, claim=self.request.claim)

    def tell(self, progress: Queued | LoadUpdate) -> None:
        """Report where the request stands; only the newest matters."""
        if progress != self.progress:
            self.progress = progress
            self.wake.set()


@dataclass(slots=True, eq=False)
class _ModelQueue:
    """The requests that wait for one model, oldest first, whose turn it is, and how quickly its requests end."""

    waiting: dict[int, _Waiting] = field(default_factory=dict)  # by number
    counts: WaitingCounts = field(default_factory=WaitingCounts)  # of them
    drain: DrainRate = field(default_factory=DrainRate)
    shares: Shares = field(default_factory=Shares)
    reported_s: float = 0.0  # positions, to all
    left: asyncio.TimerHandle | None = None  # ends the moment in which free slots are left to other gateways

    def add(self, waiting: _Waiting) -> None:
        """Let a request wait."""
        self.waiting[waiting.number] = waiting
        self.counts.add(waiting.request.claim)

    def remove(self, waiting: _Waiting) -> None:
        """Let it wait no longer, if it does."""
        if self.waiting.pop(waiting.number, None) is not None:
            self.counts.add(waiting.request.claim, -1)

    def is_preceded(self, request: SlotRequest) -> bool:
        """Return True if a free slot is to be left to a tenant at another gateway."""
        return not request.was_admitted and self.shares.is_preceded(request.claim)

    def stop_leaving(self) -> None:
        """Leave no slot any more."""
        if self.left is not None:
            self.left.cancel()
            self.left = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """One model's queue as clients see it. `drain_rate`: requests that end per second; None: too few have."""

    model: str
    depth: int
    oldest_wait_s: float
    drain_rate: float | None


class Dispatcher:
    """Owns the queues, the connections to replicas and the loads in progress. Lives on the event loop."""

    def __init__(
        self,
        *,
        routes: RouteCache,
        scheduler: SchedulerClient,
        clock: Clock,
        queue_max: int,
        queue_wait_s: float,
        load_stall_s: float | None,
        connect: Callable[[str, str], RunnerClient] = RunnerClient,
    ) -> None:
        """`connect` opens the client of a replica, from its address and its peer."""
        self.routes = routes
        self._clock = clock
        self._queue_max = queue_max
        self._queue_wait_s = queue_wait_s
        self._queues: dict[str, _ModelQueue] = {}
        self._next_number = 0
        self._waiting_bytes = 0
        self.usage = SharedUsage()
        self.loads = LoadJobs(scheduler=scheduler, routes=routes, stall_s=load_stall_s, listener=self)
        self.pool = ReplicaPool(
            on_change=self._dispatch_all, clock=clock, is_current=lambda: routes.is_current, connect=connect
        )
        routes.subscribe(self._on_routes)

    def check_room(self, key: str, claim: SlotClaim) -> None:
        """Refuse a request that would find the queue full, before it is prepared.

        Raises:
            QueueFull: tell the client when to come again.
        """
        queue = self._queues.get(key)
        if queue is not None and queue.waiting:
            self._check_room(queue, claim, 0, self._candidates(key))

    def acquire_at_once(self, request: SlotRequest) -> Connection | None:
        """Take a free slot if no request waits for one; None: `acquire` it. The caller must `release` it."""
        queue = self._queue(request.key)
        if queue.waiting or queue.is_preceded(request):
            return None
        replica_key = choose_replica(self._candidates(request.key), request.need, request.claim.band)
        if replica_key is None:
            return None
        self._give(queue, request)
        return self.pool.take(replica_key, request.suspicion)

    async def acquire(self, request: SlotRequest) -> AsyncIterator[Queued | LoadUpdate | Connection]:
        """Wait for a slot; the last item is the connection, and the caller must `release` it.

        Raises:
            QueueFull: the queue is full, or the wait took too long.
            PunaError: the model cannot be loaded; the scheduler's own error.
        """
        waiting = self._join(request)
        sent: Queued | LoadUpdate | None = None
        try:
            self._dispatch(request.key)
            while waiting.connection is None:
                await self._wake_or_deadline(waiting)
                if waiting.error is not None:
                    raise waiting.error
                if waiting.connection is None and waiting.progress is not None and waiting.progress != sent:
                    sent = waiting.progress
                    yield sent
            connection, waiting.connection = waiting.connection, None
            yield connection
        finally:
            self._leave(waiting)

    def release(self, request: SlotRequest, connection: Connection, *, used_tokens: int | None = None) -> None:
        """Release a slot; None: the request used as many tokens as it claimed."""
        queue = self._queue(request.key)
        if used_tokens is not None:
            self._settle(queue, request, used_tokens)
        queue.drain = queue.drain.after_end(self._clock.now_s())
        self.pool.give_back(connection, request.suspicion)

    def depths(self) -> dict[str, int]:
        """Count the waiting requests per model key."""
        return {key: len(queue.waiting) for key, queue in self._queues.items() if queue.waiting}

    def waits_s(self) -> dict[str, tuple[int, float]]:
        """Return waiting requests, loads included, and the longest wait, by model name. Any thread may call it."""
        now_s = self._clock.now_s()
        waits = {}
        for queue in list(self._queues.values()):
            if waiting := list(queue.waiting.values()):
                waits[waiting[0].request.model_name] = len(waiting), now_s - min(one.joined_s for one in waiting)
        return waits

    def queue_reports(self) -> list[QueueState]:
        """List the state of every queue that was ever used, by model."""
        waits = self.waits_s()
        found = []
        for key, queue in self._queues.items():
            name = next((one.request.model_name for one in queue.waiting.values()), None) or self._name_of(key)
            if name:
                waiting, oldest_s = waits.get(name, (0, 0.0))
                interval_s = queue.drain.interval_s
                rate = 1 / interval_s if interval_s else None
                found.append(QueueState(model=name, depth=waiting, oldest_wait_s=oldest_s, drain_rate=rate))
        return sorted(found, key=lambda report: report.model)

    def _name_of(self, key: str) -> str:
        route = self.routes.by_key(key)
        return route.model.name if route is not None else ""

    def oldest_waits_s(self) -> dict[str, tuple[int, float]]:
        """Return requests that wait for a slot of an existing replica, and the longest wait, by model name."""
        now_s = self._clock.now_s()
        waits: dict[str, tuple[int, float]] = {}
        for key, queue in self._queues.items():
            candidates = self._candidates(key)
            slow = [one for one in queue.waiting.values() if not needs_load(one.waiter, candidates)]
            if slow:
                waits[slow[0].request.model_name] = (len(slow), now_s - min(one.joined_s for one in slow))
        return waits

    async def close(self) -> None:
        """Stop loads and close connections."""
        for queue in self._queues.values():
            queue.stop_leaving()
        await self.loads.close()
        await self.pool.close()

    def on_load_progress(self, need: LoadNeed, progress: Queued | LoadUpdate) -> None:
        """Pass the progress of a load on to the requests that wait for it."""
        for waiting in self._waiting_for(need):
            waiting.tell(progress)

    def on_load_ready(self, need: LoadNeed, route: RouteInfo, *, was_loading: bool) -> bool:
        """Handle the end of a load: the model runs. Return True if no request waits for it any more.

        What the scheduler calls ready is as much as there will be.
        """
        for waiting in self._waiting_for(need):
            waiting.relaxed = not any(
                waiting.request.need.suits(
                    context_tokens=replica.context_tokens,
                    layers_on_devices=replica.layers_on_devices,
                    layers_total=route.model.layer_count + 1,
                )
                for replica in route.replicas
            )
            if was_loading:
                waiting.deadline_s = self._clock.now_s() + self._queue_wait_s
        self._dispatch(need.key)
        candidates = self._candidates(need.key)
        return not any(needs_load(waiting.waiter, candidates) for waiting in self._waiting_for(need))

    def on_load_failed(self, need: LoadNeed, error: PunaError) -> None:
        """Handle a load that ended without a replica."""
        candidates = self._candidates(need.key)
        for waiting in self._waiting_for(need):
            if needs_load(waiting.waiter, candidates):
                waiting.error = error
                waiting.wake.set()

    def _join(self, request: SlotRequest) -> _Waiting:
        queue = self._queue(request.key)
        candidates = self._candidates(request.key)
        if not request.was_admitted:
            self._check_room(queue, request.claim, request.body_bytes, candidates)
        self._next_number += 1
        waiting = _Waiting(
            number=self._next_number,
            request=request,
            deadline_s=self._clock.now_s() + self._queue_wait_s,
            joined_s=self._clock.now_s(),
        )
        queue.add(waiting)
        self._waiting_bytes += request.body_bytes
        return waiting

    def _check_room(
        self, queue: _ModelQueue, claim: SlotClaim, body_bytes: int, candidates: list[ReplicaCandidate]
    ) -> None:
        retry_s = self._retry_after_s(queue, candidates)
        check_bytes(waiting=self._waiting_bytes, more=body_bytes, retry_after_s=retry_s)
        elsewhere = sum(len(other.waiting) for other in self._queues.values()) - len(queue.waiting)
        check_room(
            claim,
            queue.counts,
            slots_total=sum(candidate.slots_total for candidate in candidates),
            queue_max=self._queue_max - elsewhere,
            retry_after_s=retry_s,
        )

    def _leave(self, waiting: _Waiting) -> None:
        request = waiting.request
        self._waiting_bytes -= request.body_bytes
        queue = self._queue(request.key)
        queue.remove(waiting)
        if waiting.connection is not None:  # granted, but the request was cancelled before it noticed
            self.pool.give_back(waiting.connection, request.suspicion)
            self._settle(queue, request, 0)
            queue.drain = queue.drain.after_cancel()
        if self.loads.has(request.load_need) and not self._waiting_for(request.load_need):
            self.loads.stop(request.load_need)
        self._dispatch(request.key)

    async def _wake_or_deadline(self, waiting: _Waiting) -> None:
        timeout_s = max(waiting.deadline_s - self._clock.now_s(), 0)
        try:
            async with asyncio.timeout(timeout_s):
                await waiting.wake.wait()
        except TimeoutError:
            if waiting.connection is not None:
                return
            if self.loads.is_moving(waiting.request.load_need):
                waiting.deadline_s = self._clock.now_s() + self._queue_wait_s
                return
            raise self._waited_too_long(waiting) from None
        waiting.wake.clear()

    def _waited_too_long(self, waiting: _Waiting) -> PunaError:
        candidates = self._candidates(waiting.request.key)
        if needs_load(waiting.waiter, candidates):
            return ModelUnavailable(f"no replica of {waiting.request.model_name} can be reached", retry_after_s=5.0)
        queue = self._queue(waiting.request.key)
        return QueueFull(BUSY_TEXT, retry_after_s=self._retry_after_s(queue, candidates))

    def _dispatch(self, key: str, *, leaves: bool = True) -> None:
        """Give free slots to waiting requests. `leaves`: some may be left to other gateways for a moment."""
        queue = self._queue(key)
        if not queue.waiting:
            return
        candidates = self._candidates(key)
        ordered = queue.shares.order(waiting.waiter for waiting in queue.waiting.values())
        ordered.sort(key=lambda waiter: not queue.waiting[waiter.number].request.was_admitted)
        for grant in self._own_grants(key, plan_grants(ordered, candidates), leaves=leaves):
            waiting = queue.waiting[grant.number]
            queue.remove(waiting)
            self._give(queue, waiting.request)
            waiting.connection = self.pool.take(grant.replica_key, waiting.request.suspicion)
            waiting.wake.set()
        now_s = self._clock.now_s()
        is_due = now_s - queue.reported_s >= POSITIONS_S
        if is_due:
            queue.reported_s = now_s
        left = [queue.waiting[waiter.number] for waiter in ordered if waiter.number in queue.waiting]
        flows = set()  # that replicas could serve
        for position, waiting in enumerate(left, start=1):
            if needs_load(waiting.waiter, candidates):
                self.loads.start(waiting.request.load_need, keep_alive_ms=waiting.request.keep_alive_ms)
                continue
            flows.add(waiting.request.claim.flow)
            if is_due or waiting.progress is None:
                waiting.tell(Queued(position=position))
        self.usage.wait(key, flows)

    def _own_grants(self, key: str, grants: list[Grant], *, leaves: bool) -> list[Grant]:
        """Return the grants without those of slots that are left, for a moment, to tenants at other gateways."""
        queue = self._queues[key]
        own = [grant for grant in grants if not queue.is_preceded(queue.waiting[grant.number].request)]
        if not leaves or len(own) == len(grants):
            queue.stop_leaving()
            return grants
        if queue.left is None:
            metrics.LEFT_SLOTS.inc()
            queue.left = asyncio.get_running_loop().call_later(LEFT_S, lambda: self._dispatch(key, leaves=False))
        return own

    def learn_shares(self, reports: Mapping[str, str]) -> None:
        """Count what other gateways report to have given to tenants; without reports, shares are this gateway's own."""
        news = self.usage.learn(reports)
        for key, queue in self._queues.items():
            queue.shares.learn(news.get(key, NOTHING_ELSEWHERE), queue.counts.flows())

    def _give(self, queue: _ModelQueue, request: SlotRequest) -> None:
        queue.shares.give(request.claim)
        self.usage.used(request.key, request.claim.flow, request.claim.cost)
        queue.drain = queue.drain.after_start(self._clock.now_s())

    def _settle(self, queue: _ModelQueue, request: SlotRequest, used_tokens: int) -> None:
        claim = request.claim
        queue.shares.settle(claim, used_tokens)
        self.usage.used(request.key, claim.flow, (used_tokens - claim.tokens) / claim.weight)

    def _dispatch_all(self) -> None:
        for key in [key for key, queue in self._queues.items() if queue.waiting]:
            self._dispatch(key)

    def _on_routes(self) -> None:
        self.pool.sync(self.routes.all())
        self.pool.end_on(self.routes.removed_nodes)
        self._dispatch_all()

    def _queue(self, key: str) -> _ModelQueue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _ModelQueue()
        return queue

    def _waiting_for(self, need: LoadNeed) -> list[_Waiting]:
        return [waiting for waiting in self._queue(need.key).waiting.values() if waiting.request.load_need == need]

    def _candidates(self, key: str) -> list[ReplicaCandidate]:
        route = self.routes.by_key(key)
        return self.pool.candidates(route) if route else []

    def _retry_after_s(self, queue: _ModelQueue, candidates: list[ReplicaCandidate]) -> float:
        ahead = len(queue.waiting) + sum(candidate.work for candidate in candidates)
        return retry_after_s(work_ahead=ahead, drain=queue.drain, jitter=random.uniform(-1, 1))
