"""Does what the core asks for. Everything that waits runs as a task; its outcome comes back as an event."""

import asyncio
from collections.abc import Coroutine
from typing import assert_never

from common.errors import ModelUnavailable, PunaError, StaleFence
from common.logs import get_logger
from protos import cluster_pb2, host_pb2, scheduler_pb2
from runner.host.client import HostClient
from scheduler import metrics
from scheduler.borrowing import LendingFailedError, borrow, give_back, planned_on
from scheduler.callers import Callers
from scheduler.converters import fault_of, from_layout, from_origin, to_report, to_runner
from scheduler.core.effects import (
    AnswerConstraints,
    AnswerExplained,
    AnswerFailed,
    AnswerLoading,
    AnswerQueued,
    AnswerReady,
    AnswerUnloading,
    AskRunner,
    CheckLeadership,
    ClearDevice,
    DropLeadership,
    Effect,
    Measure,
    Note,
    PublishRoutes,
    RemoveDesired,
    SaveConstraints,
    SaveDesired,
    SaveMargins,
    StartRunner,
    StopRunner,
)
from scheduler.core.events import (
    ConstraintsSaved,
    ConstraintsSaveFailed,
    DesiredSaved,
    DesiredSaveFailed,
    LendFailed,
    Measured,
    MeasureFailed,
    RunnerAnswered,
    RunnerReported,
    StartFailed,
    StopDone,
    StopFailed,
)
from scheduler.core.faults import TRANSPORT_REASONS, Fault
from scheduler.core.lending import Loans
from scheduler.core.view import SERVING_STATES, RunnerState
from scheduler.leadership import Leadership
from scheduler.loop import CoreLoop
from scheduler.probes import is_runner_there
from scheduler.redis_store import RedisStore, StoreUnavailableError
from scheduler.routes import RouteBoard

log = get_logger()

WRITES_MAX = 4096

Write = SaveDesired | RemoveDesired | SaveConstraints | SaveMargins


class Performer:
    """The acting half. `perform` never waits."""

    def __init__(
        self,
        *,
        loop: CoreLoop,
        hosts: HostClient,
        store: RedisStore,
        leadership: Leadership,
        callers: Callers,
        board: RouteBoard,
    ) -> None:
        self._loop = loop
        self._hosts = hosts
        self._store = store
        self._leadership = leadership
        self._callers = callers
        self._board = board
        self._tasks: set[asyncio.Task[None]] = set()
        self._writes: asyncio.Queue[Write] = asyncio.Queue(maxsize=WRITES_MAX)

    def perform(self, effect: Effect) -> None:
        """Begin one effect."""
        match effect:
            case Measure():
                self._spawn(self._measure(effect))
            case StartRunner():
                self._spawn(self._start(effect))
            case StopRunner():
                self._spawn(self._stop(effect))
            case AskRunner():
                self._spawn(self._ask(effect))
            case ClearDevice():
                self._spawn(self._clear(effect))
            case SaveDesired() | RemoveDesired() | SaveConstraints() | SaveMargins():
                self._enqueue_write(effect)
            case DropLeadership():
                self._leadership.drop(effect.high_water)
            case CheckLeadership():
                self._leadership.check_now()
            case _:
                self._tell(effect)

    def _tell(
        self,
        effect: AnswerQueued
        | AnswerLoading
        | AnswerReady
        | AnswerFailed
        | AnswerUnloading
        | AnswerConstraints
        | AnswerExplained
        | PublishRoutes
        | Note,
    ) -> None:
        match effect:
            case AnswerQueued() | AnswerLoading():
                self._callers.tell(effect)
            case AnswerReady():
                self._callers.answer_ready(effect.callers, self._board.route(effect.model_name))
            case AnswerFailed():
                metrics.REFUSALS.labels(reason=effect.fault.reason).inc(len(effect.callers))
                self._callers.answer_failed(effect)
            case AnswerUnloading():
                self._callers.answer_unloading(effect)
            case AnswerConstraints() | AnswerExplained():
                self._callers.answer_question(effect)
            case PublishRoutes():
                self._board.publish(effect)
            case Note():
                _note(effect)
            case _:
                assert_never(effect)

    async def run_writes(self) -> None:
        """One write at a time, in order; until cancelled."""
        while True:
            effect = await self._writes.get()
            match effect:
                case SaveDesired():
                    await self._save(effect)
                case RemoveDesired():
                    await self._remove(effect)
                case SaveConstraints():
                    await self._save_constraints(effect)
                case SaveMargins():
                    await self._save_margins(effect)

    def stop_commanding(self) -> None:
        """Leadership is over: whatever is still on its way is dropped. Loads go on at their hosts."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """End every task."""
        self.stop_commanding()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("effect.bug", exc_info=task.exception())

    def _enqueue_write(self, effect: Write) -> None:
        try:
            self._writes.put_nowait(effect)
        except asyncio.QueueFull:
            fault = Fault(reason=ModelUnavailable.reason, message="state store unreachable: too many writes wait")
            if isinstance(effect, SaveDesired):
                self._loop.post_soon(_save_failed(effect, fault))
            elif isinstance(effect, SaveConstraints):
                self._loop.post_soon(_constraints_failed(effect, fault))

    async def _save(self, effect: SaveDesired) -> None:
        record = effect.record
        try:
            self._check(effect.fence)
            await self._store.save(effect.fence, record)
        except StoreUnavailableError as error:
            fault = Fault(reason=ModelUnavailable.reason, message=str(error), retry_after_s=1.0)
            await self._loop.post(_save_failed(effect, fault))
        except StaleFence as error:
            await self._loop.post(_save_failed(effect, fault_of(error)))
        else:
            saved = DesiredSaved(placement_id=record.placement_id, generation=record.generation, phase=record.phase)
            await self._loop.post(saved)

    async def _save_constraints(self, effect: SaveConstraints) -> None:
        try:
            self._check(effect.fence)
            origin=from_origin(effect.origin),
            await self._store.save_constraints(effect.fence, effect.model_name, effect.constraints)
        except StoreUnavailableError as error:
            fault = Fault(reason=ModelUnavailable.reason, message=str(error), retry_after_s=1.0)
            await self._loop.post(_constraints_failed(effect, fault))
        except StaleFence as error:
            await self._loop.post(_constraints_failed(effect, fault_of(error)))
        else:
            saved = ConstraintsSaved(
                caller_id=effect.caller_id, model_name=effect.model_name, constraints=effect.constraints
            )
            await self._loop.post(saved)

    async def _remove(self, effect: RemoveDesired) -> None:
        try:
            self._check(effect.fence)
            await self._store.remove(effect.fence, effect.placement_id)
        except (StoreUnavailableError, StaleFence) as error:
            # The next leader finds a record without a runner, and drops it.
            log.warning("store.remove_failed", placement=effect.placement_id, text=str(error))

    async def _save_margins(self, effect: SaveMargins) -> None:
        try:
            self._check(effect.fence)
            await self._store.save_margins(effect.fence, effect.margins)
        except (StoreUnavailableError, StaleFence) as error:
            # The next load of the same kind writes all that is known of it.
            log.warning("store.margins_not_saved", text=str(error))

    async def _measure(self, effect: Measure) -> None:
        loans = effect.loans
        try:
            peers = await self._borrow(loans)
            try:
                report = await self._hosts.measure(
                    effect.address,
                    model_digest=effect.key.model_digest,
                    layout=from_layout(effect.layout),
                    peers=peers,
                    origin=from_origin(effect.origin),
                )
            finally:
                await self._give_back(loans)
        except LendingFailedError as error:
            await self._loop.post(MeasureFailed(node_id=effect.node_id, key=effect.key, fault=error.fault))
        except PunaError as error:
            fault = fault_of(error)
            await self._loop.post(MeasureFailed(node_id=effect.node_id, key=effect.key, fault=fault))
        else:
            await self._loop.post(Measured(node_id=effect.node_id, key=effect.key, report=to_report(report)))

    async def _start(self, effect: StartRunner) -> None:
        record = effect.record
        request = host_pb2.StartRequest(
            fence=host_pb2.Fence(number=effect.fence, leader_id=effect.leader_id),
            placement=cluster_pb2.PlacementRef(placement_id=record.placement_id, generation=record.generation),
            model_name=record.model_name,
            model_digest=record.model_digest,
            layout=from_layout(record.layout),
            planned=planned_on(record) if record.planned is not None else None,
        )
        reference = (record.placement_id, record.generation)
        state = RunnerState.UNKNOWN
        fault = Fault(reason=ModelUnavailable.reason, message="the host ended the call before the load was over")
        try:
            self._check(effect.fence)
            request.peers.extend(await self._borrow(effect.loans))
            async for reported in self._hosts.start(effect.address, request):
                runner = to_runner(reported)
                state = runner.state
                await self._loop.post(RunnerReported(node_id=record.node_id, runner=runner))
        except LendingFailedError as error:
            failed_to_lend = LendFailed(
                placement_id=reference[0], generation=reference[1], node_id=error.node_id, fault=error.fault
            )
            await self._loop.post(failed_to_lend)
            return
        except PunaError as error:
            fault = fault_of(error)
            if fault.reason not in TRANSPORT_REASONS:  # else it may run, and use what is lent
                await self._give_back(effect.loans)
        if state not in SERVING_STATES and state is not RunnerState.ERROR:
            failed = StartFailed(placement_id=record.placement_id, generation=record.generation, fault=fault)
            await self._loop.post(failed)

    async def _borrow(self, loans: Loans | None) -> list[host_pb2.Peer]:
        return [] if loans is None else await borrow(self._hosts, loans, check=self._check)

    async def _give_back(self, loans: Loans | None) -> None:
        if loans is not None:
            await give_back(self._hosts, loans)

    async def _stop(self, effect: StopRunner) -> None:
        request = host_pb2.StopRequest(
            fence=host_pb2.Fence(number=effect.fence, leader_id=effect.leader_id),
            placement=cluster_pb2.PlacementRef(placement_id=effect.placement_id, generation=effect.generation),
            drain_ms=effect.drain_ms,
        )
        try:
            self._check(effect.fence)
            await self._hosts.stop(effect.address, request)
        except PunaError as error:
            fault = fault_of(error)
            failed = StopFailed(placement_id=effect.placement_id, generation=effect.generation, fault=fault)
            await self._loop.post(failed)
        else:
            await self._loop.post(StopDone(placement_id=effect.placement_id, generation=effect.generation))

    async def _ask(self, effect: AskRunner) -> None:
        if await is_runner_there(effect):
            await self._loop.post(RunnerAnswered(placement_id=effect.placement_id, generation=effect.generation))

    async def _clear(self, effect: ClearDevice) -> None:
        request = host_pb2.ResetDeviceRequest(
            fence=host_pb2.Fence(number=effect.fence, leader_id=effect.leader_id), device_id=effect.device_id
        )
        outcome: scheduler_pb2.ClearDeviceResponse | PunaError
        try:
            self._check(effect.fence)
            device = await self._hosts.reset_device(effect.address, request)
            outcome = scheduler_pb2.ClearDeviceResponse(node_id=effect.node_id, device=device)
        except PunaError as error:
            outcome = error
        except asyncio.CancelledError:
            ended = ModelUnavailable("this scheduler does not lead any more")
            self._callers.answer_cleared(effect.caller_id, ended)
            raise
        self._callers.answer_cleared(effect.caller_id, outcome)

    def _check(self, fence: int) -> None:
        """Before every command. Between the check and its arrival only the host's own check protects."""
        if not self._leadership.may_act(fence):
            raise StaleFence(f"this scheduler does not lead with fence {fence} any more")


def _save_failed(effect: SaveDesired, fault: Fault) -> DesiredSaveFailed:
    record = effect.record
    return DesiredSaveFailed(
        placement_id=record.placement_id, generation=record.generation, phase=record.phase, fault=fault
    )


def _constraints_failed(effect: SaveConstraints, fault: Fault) -> ConstraintsSaveFailed:
    return ConstraintsSaveFailed(caller_id=effect.caller_id, model_name=effect.model_name, fault=fault)


def _note(note: Note) -> None:
    """Log it, and count what has a metric."""
    fields = dict(note.fields)
    log.info(note.event, **fields)
    model, reason = str(fields.get("model", "")), str(fields.get("reason", ""))
    match note.event:
        case "model.load_requested":
            metrics.LOAD_REQUESTS.labels(reason=reason).inc()
        case "model.placed":
            metrics.PLACEMENTS.labels(model=model, reason=reason, shape=str(fields["shape"])).inc()
        case "model.ready" | "model.load_failed":
            outcome = "ready" if note.event == "model.ready" else "failed"
            metrics.LOADS.labels(model=model, outcome=reason or outcome).inc()
            load_s = fields.get("load_s")
            if isinstance(load_s, float):
                metrics.LOAD_SECONDS.labels(outcome=outcome).observe(load_s)
        case "model.evicted":
            metrics.EVICTIONS.labels(model=model, reason=reason).inc()
        case "replica.lost":
            metrics.REPLICAS_LOST.labels(model=model, reason=reason).inc()
