"""Does what the core asks for. Everything that waits runs as a task; its outcome comes back as an event."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace

from common.errors import ModelUnavailable, NotLeading, PunaError
from common.grpc.client import open_channel
from common.grpc.errors import domain_errors
from common.spec import codecs
from common.telemetry import tracing
from common.telemetry.logs import get_logger
from common.trust.roles import runner_peer
from protos import cluster_pb2, host_pb2, runner_pb2, runner_pb2_grpc, scheduler_pb2
from runner.host.client import HostClient
from scheduler import metrics
from scheduler.callers import Callers
from scheduler.converters import DEVICE_BYTES, MEMORY_REPORT, error_of, fault_of, from_asked, from_origin, to_runner
from scheduler.core.planning.lending import Loan, Loans
from scheduler.core.state.effects import (
    AnswerFailed,
    AnswerLoading,
    AnswerQueued,
    AnswerReady,
    AskRunner,
    CheckLeadership,
    ClearDevice,
    DropLeadership,
    Effect,
    ExcuseCrash,
    Measure,
    Note,
    Notice,
    PublishRoutes,
    StartRunner,
    StopRunner,
    Write,
)
from scheduler.core.state.events import MeasureEnded, RunnerAnswered, RunnerReported, StartFailed, StopEnded
from scheduler.core.values.desired import DesiredPlacement
from scheduler.core.values.faults import TRANSPORT_REASONS, Fault
from scheduler.core.values.memory import MemoryReport
from scheduler.core.values.view import SERVING_STATES, RunnerState, RunnerView
from scheduler.leadership import Leadership
from scheduler.loop import CoreLoop
from scheduler.routes import RouteBoard
from scheduler.writer import Writer

log = get_logger()

ANSWER_S_MAX = 1.0


class LendingFailedError(Exception):
    """A node does not lend. What others had lent already was given back."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


async def borrow(hosts: HostClient, loans: Loans, *, check: Callable[[int], None]) -> list[host_pb2.Peer]:
    """Have every node lend, all at the same time; returns what the head needs to know of them.

    Raises:
        LendingFailedError: see there; of several the first.
        StaleFence: `check` says that this scheduler does not lead any more.
    """
    check(loans.fence)
    answers = await asyncio.gather(*(_lend(hosts, loans, loan) for loan in loans.loans), return_exceptions=True)
    peers: list[host_pb2.Peer] = []
    for loan, answer in zip(loans.loans, answers, strict=True):
        if isinstance(answer, host_pb2.Peer):
            peers.append(answer)
            continue
        await give_back(hosts, loans)
        if isinstance(answer, PunaError):
            raise LendingFailedError(replace(fault_of(answer), lender_id=loan.node_id)) from answer
        raise answer
    return peers


async def give_back(hosts: HostClient, loans: Loans) -> None:
    """End every lease. One that cannot be reached ends by itself without a borrower."""
    request = host_pb2.StopRequest(fence=_fence(loans), placement=_reference(loans))
    ends = await asyncio.gather(
        *(hosts.stop(loan.address, request, node_id=loan.node_id) for loan in loans.loans), return_exceptions=True
    )
    for loan, end in zip(loans.loans, ends, strict=True):
        if isinstance(end, PunaError):
            log.info("devices.not_returned", node=loan.node_id, placement=loans.placement_id, text=end.message)
        elif isinstance(end, BaseException):
            raise end


def planned_on(record: DesiredPlacement) -> cluster_pb2.MemoryReport:
    """Return the planned report of a placement; devices of other nodes are marked, so that the head skips them."""
    assert record.planned is not None, "asked for where there is one"
    report = MEMORY_REPORT.to_proto(record.planned)
    if len(report.devices) == len(record.layout.devices):
        for memory, layers in zip(report.devices, record.layout.devices, strict=True):
            memory.node_id = layers.node_id
    return report


async def _lend(hosts: HostClient, loans: Loans, loan: Loan) -> host_pb2.Peer:
    request = host_pb2.LendRequest(
        fence=_fence(loans),
        placement=_reference(loans),
        borrower_node_id=loans.borrower_node_id,
        borrower_certificate=loans.borrower_certificate,
        devices=[host_pb2.LentShare(planned=DEVICE_BYTES.to_proto(planned)) for planned in loan.planned],
    )
    response = await hosts.lend(loan.address, request, node_id=loan.node_id)
    return host_pb2.Peer(
        node_id=loan.node_id,
        lease=_reference(loans),
        tunnel_address=response.tunnel_address,
        certificate=response.certificate,
        devices=response.devices,
    )


def _fence(loans: Loans) -> host_pb2.Fence:
    return host_pb2.Fence(number=loans.fence, leader_id=loans.leader_id)


def _reference(loans: Loans) -> cluster_pb2.PlacementRef:
    return cluster_pb2.PlacementRef(placement_id=loans.placement_id, generation=loans.generation)


class Performer:
    """The acting half. `perform` never waits."""

    def __init__(
        self,
        *,
        loop: CoreLoop,
        hosts: HostClient,
        writer: Writer,
        leadership: Leadership,
        callers: Callers,
        board: RouteBoard,
    ) -> None:
        self._loop = loop
        self._hosts = hosts
        self._writer = writer
        self._leadership = leadership
        self._callers = callers
        self._board = board
        self._tasks: set[asyncio.Task[None]] = set()

    def perform(self, effect: Effect) -> None:
        """Begin one effect."""
        if isinstance(effect, Write):
            self._writer.put(effect)
            return
        match effect:
            case Measure():
                attributes = {"puna.node": effect.node_id, "puna.digest": effect.key.model_digest}
                self._spawn(self._traced("measure", effect.caller_id, attributes, lambda: self._measure(effect)))
            case StartRunner():
                record = effect.record
                attributes = {
                    "puna.node": record.node_id,
                    "puna.placement": record.placement_id,
                    "gen_ai.request.model": record.model_name,
                }
                self._spawn(self._traced("load", effect.caller_id, attributes, lambda: self._start(effect)))
            case StopRunner():
                self._spawn(self._stop(effect))
            case AskRunner():
                self._spawn(self._ask(effect))
            case ClearDevice():
                self._spawn(self._clear(effect))
            case ExcuseCrash():
                self._spawn(self._excuse(effect))
            case DropLeadership():
                self._leadership.drop(effect.high_water)
            case CheckLeadership():
                self._leadership.check_now()
            case _:
                self._tell(effect)

    def _tell(self, effect: Notice) -> None:
        match effect:
            case AnswerQueued() | AnswerLoading():
                self._callers.tell(effect)
            case AnswerReady():
                route = self._board.route(effect.model_name)
                self._callers.answer(effect.callers, lambda: route)
            case AnswerFailed():
                metrics.REFUSALS.labels(reason=effect.fault.reason).inc(len(effect.callers))
                self._callers.answer(effect.callers, lambda: error_of(effect.fault))
            case PublishRoutes():
                self._board.publish(effect)
            case Note():
                _note(effect)
            case _:
                self._callers.answer((effect.caller_id,), lambda: effect)

    def stop_commanding(self) -> None:
        """Drop all commands under way at the end of leadership. Loads continue at their hosts."""
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

    async def _traced(
        self, name: str, caller_id: str, attributes: Mapping[str, tracing.Value], work: Callable[[], Awaitable[None]]
    ) -> None:
        """Do the work within the span of its first caller."""
        parent = self._callers.span_of(caller_id)
        with tracing.begin(name, attributes, parent=parent, kind=tracing.SpanKind.CLIENT):
            await work()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("effect.bug", exc_info=task.exception())

    async def _measure(self, effect: Measure) -> None:
        loans = effect.loans
        found: MemoryReport | Fault
        try:
            peers = await self._borrow(loans)
            try:
                counted = await self._hosts.measure(
                    effect.address,
                    model_digest=effect.key.model_digest,
                    layout=codecs.LAYOUT.to_proto(effect.layout),
                    peers=peers,
                    origin=from_origin(effect.origin),
                    draft_origin=from_origin(effect.draft_origin),
                    node_id=effect.node_id,
                )
                found = MEMORY_REPORT.from_proto(counted)
            finally:
                await self._give_back(loans)
        except LendingFailedError as error:
            found = error.fault
        except PunaError as error:
            found = fault_of(error)
        await self._loop.post(MeasureEnded(node_id=effect.node_id, key=effect.key, found=found))

    async def _start(self, effect: StartRunner) -> None:
        record = effect.record
        request = host_pb2.StartRequest(
            fence=host_pb2.Fence(number=effect.fence, leader_id=effect.leader_id),
            placement=cluster_pb2.PlacementRef(placement_id=record.placement_id, generation=record.generation),
            model_name=record.model_name,
            model_digest=record.model_digest,
            layout=codecs.LAYOUT.to_proto(record.layout),
            planned=planned_on(record) if record.planned is not None else None,
            origin=from_origin(effect.origin),
            draft_origin=from_origin(effect.draft_origin),
            asked=from_asked(record.asked),
            is_extra=effect.is_extra,
        )
        state = RunnerState.UNKNOWN
        fault = Fault(reason=ModelUnavailable.reason, message="the host ended the call before the load was over")
        try:
            self._leadership.check(effect.fence)
            request.peers.extend(await self._borrow(effect.loans))
            async for reported in self._hosts.start(effect.address, request, node_id=record.node_id):
                runner = to_runner(reported)
                state = runner.state
                await self._loop.post(RunnerReported(node_id=record.node_id, runner=runner))
            if state is RunnerState.ERROR:  # a lender that its borrower cannot reach would wait for it
                await self._give_back(effect.loans)
        except LendingFailedError as error:
            fault = error.fault
        except PunaError as error:
            fault = fault_of(error)
            if fault.reason not in TRANSPORT_REASONS:  # else it may run, and use what is lent
                await self._give_back(effect.loans)
        if state not in SERVING_STATES and state is not RunnerState.ERROR:
            await self._loop.post(
                StartFailed(
                    placement_id=record.placement_id,
                    generation=record.generation,
                    fault=fault,
                )
            )

    async def _borrow(self, loans: Loans | None) -> list[host_pb2.Peer]:
        return [] if loans is None else await borrow(self._hosts, loans, check=self._leadership.check)

    async def _give_back(self, loans: Loans | None) -> None:
        if loans is not None:
            await give_back(self._hosts, loans)

    async def _stop(self, effect: StopRunner) -> None:
        request = host_pb2.StopRequest(
            fence=host_pb2.Fence(number=effect.fence, leader_id=effect.leader_id),
            placement=cluster_pb2.PlacementRef(placement_id=effect.placement_id, generation=effect.generation),
            drain_ms=effect.drain_ms,
        )
        fault = None
        try:
            self._leadership.check(effect.fence)
            await self._hosts.stop(effect.address, request, node_id=effect.node_id)
        except PunaError as error:
            fault = fault_of(error)
        await self._loop.post(StopEnded(placement_id=effect.placement_id, generation=effect.generation, fault=fault))

    async def _ask(self, effect: AskRunner) -> None:
        runner = effect.runner
        if await is_runner_there(effect.node_id, runner):
            await self._loop.post(RunnerAnswered(placement_id=runner.placement_id, generation=runner.generation))

    async def _excuse(self, effect: ExcuseCrash) -> None:
        request = host_pb2.ExcuseCrashRequest(
            fence=host_pb2.Fence(number=effect.fence, leader_id=effect.leader_id),
            placement=cluster_pb2.PlacementRef(placement_id=effect.placement_id, generation=effect.generation),
        )
        try:
            self._leadership.check(effect.fence)
            await self._hosts.excuse_crash(effect.address, request, node_id=effect.node_id)
        except PunaError as error:
            log.warning("crash.not_excused", placement=effect.placement_id, node=effect.node_id, text=error.message)

    async def _clear(self, effect: ClearDevice) -> None:
        request = host_pb2.ResetDeviceRequest(
            fence=host_pb2.Fence(number=effect.fence, leader_id=effect.leader_id), device_id=effect.device_id
        )
        outcome: scheduler_pb2.ClearDeviceResponse | PunaError
        try:
            self._leadership.check(effect.fence)
            device = await self._hosts.reset_device(effect.address, request, node_id=effect.node_id)
            outcome = scheduler_pb2.ClearDeviceResponse(node_id=effect.node_id, device=device)
        except PunaError as error:
            outcome = error
        except asyncio.CancelledError:
            ended = NotLeading("this scheduler does not lead any more")
            self._callers.answer((effect.caller_id,), lambda: ended)
            raise
        self._callers.answer((effect.caller_id,), lambda: outcome)


def _note(note: Note) -> None:
    """Log it, and count what has a metric."""
    fields = dict(note.fields)
    log.info(note.event, **fields)
    model, reason = str(fields.get("model", "")), str(fields.get("reason", ""))
    match note.event:
        case "model.load_requested":
            metrics.LOAD_REQUESTS.labels(reason=reason).inc()
            metrics.begin_at_zero(model)
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


async def is_runner_there(node_id: str, runner: RunnerView) -> bool:
    """Return True if the very process in question answers at its address; a successor does not count."""
    async with open_channel(runner.address, runner_peer(node_id, runner.placement_id)) as channel:
        try:
            with domain_errors():
                info: runner_pb2.RunnerInfo = await runner_pb2_grpc.RunnerStub(channel).GetInfo(
                    runner_pb2.GetInfoRequest(), timeout=ANSWER_S_MAX
                )
        except PunaError:
            return False
    found = info.placement
    return (found.placement_id, found.generation, found.incarnation) == (
        runner.placement_id,
        runner.generation,
        runner.incarnation,
    )
