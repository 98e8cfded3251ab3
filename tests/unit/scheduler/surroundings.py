"""Surroundings of the scheduler's core on a clock of its own: nodes, runners, a store; and the core's commands to
them."""

import itertools
from collections import Counter
from dataclasses import dataclass, field, replace

from common.spec.layout import Layout
from scheduler.core.sizes.margins import NO_MARGINS, Margins
from scheduler.core.state.effects import (
    AnswerAlias,
    AnswerConstraints,
    AnswerExplained,
    AnswerFailed,
    AnswerLoading,
    AnswerQueued,
    AnswerReady,
    AnswerReplicas,
    AskRunner,
    CheckLeadership,
    ClearDevice,
    DropLeadership,
    Effect,
    ExcuseCrash,
    Measure,
    Note,
    PublishRoutes,
    RemoveDesired,
    Save,
    SaveAlias,
    SaveConstraints,
    SaveDesired,
    SaveDrain,
    SaveMargins,
    StartRunner,
    StopRunner,
)
from scheduler.core.state.events import (
    Event,
    RunnerAnswered,
    SaveEnded,
)
from scheduler.core.state_machine import SchedulerCore
from scheduler.core.values.constraints import Constraints
from scheduler.core.values.desired import DesiredPlacement
from scheduler.core.values.faults import STALE_FENCE, Fault
from scheduler.core.values.memory import GIB, MemoryReport
from scheduler.core.values.policy import Policy
from scheduler.core.values.routing_table import ModelAlias, ModelRoute
from scheduler.core.values.view import (
    SERVING_STATES,
    HolderView,
    ModelFile,
    NodeView,
    RunnerView,
)
from tests.unit.scheduler.builders import counted

Write = SaveDesired | RemoveDesired | SaveConstraints | SaveMargins | SaveDrain | SaveAlias

PROCESS_BYTES = 256 * 1024 * 1024  # what a process really takes beside the model


@dataclass(slots=True, kw_only=True)
class FakeRunner:
    """A process on a fake host."""

    node_id: str
    view: RunnerView
    ready_at_s: float | None = None
    idle_since_s: float = 0.0
    counts_keep_alive: bool = True  # False: a build that does not


@dataclass(slots=True)
class Surroundings:
    """The core, and what is kept around it."""

    policy: Policy = field(default_factory=Policy)
    sizes_gib: dict[str, float] = field(default_factory=dict)  # by model digest: weights
    cache_gib_per_slot: float = 0.0
    now_s: float = 1000.0
    nodes: dict[str, NodeView] = field(default_factory=dict)
    runners: dict[str, FakeRunner] = field(default_factory=dict)
    store: dict[str, DesiredPlacement] = field(default_factory=dict)
    stored_constraints: dict[str, Constraints] = field(default_factory=dict)
    stored_margins: Margins = NO_MARGINS
    stored_drains: dict[str, float] = field(default_factory=dict)
    stored_aliases: dict[str, ModelAlias] | None = None
    file_constraints: dict[str, Constraints] = field(default_factory=dict)
    fence: int = 0
    high_fence: int = 0  # the highest that any host has seen
    answers: dict[str, list[Effect]] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    measures: list[Measure] = field(default_factory=list)
    writes: list[SaveDesired | RemoveDesired | SaveConstraints | SaveMargins | SaveDrain | SaveAlias] = field(
        default_factory=list
    )
    starts: list[StartRunner] = field(default_factory=list)
    stops: list[StopRunner] = field(default_factory=list)
    all_starts: list[StartRunner] = field(default_factory=list)
    all_stops: list[StopRunner] = field(default_factory=list)
    cleared: list[ClearDevice] = field(default_factory=list)
    excused: list[ExcuseCrash] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    dropped: list[DropLeadership | CheckLeadership] = field(default_factory=list)
    routes: tuple[ModelRoute, ...] = ()
    routes_versions: list[int] = field(default_factory=list)
    uptime_s: float = 1000.0
    questions: int = 0
    answers_due: list[RunnerAnswered] = field(default_factory=list)
    cut_off: set[str] = field(default_factory=set)  # nodes whose runners cannot be reached
    holders: dict[tuple[str, str], tuple[HolderView, ...]] = field(default_factory=dict)  # by node and device
    _sized: dict[tuple[ModelFile, ...], tuple[ModelFile, ...]] = field(default_factory=dict)
    core: SchedulerCore = field(init=False)

    def __post_init__(self) -> None:
        ids = itertools.count(1)
        self.core = SchedulerCore(self.policy, lambda: f"p{next(ids)}", self.file_constraints)

    def restart_scheduler(self, prefix: str = "q") -> None:
        """Another scheduler process takes over, with no memory of anything."""
        ids = itertools.count(1)
        self.core = SchedulerCore(self.policy, lambda: f"{prefix}{next(ids)}", self.file_constraints)
        self.measures.clear()
        self.writes.clear()
        self.starts.clear()
        self.stops.clear()

    def send(self, event: Event) -> list[Effect]:
        effects = self.core.handle(event, self.now_s)
        for effect in effects:
            self._take(effect)
        while self.answers_due:
            self.send(self.answers_due.pop())
        return effects

    def _take(self, effect: Effect) -> None:
        match effect:
            case AnswerQueued() | AnswerLoading() | AnswerReady() | AnswerFailed():
                for caller in effect.callers:
                    self.answers.setdefault(caller, []).append(effect)
            case AnswerReplicas() | AnswerConstraints() | AnswerExplained() | AnswerAlias():
                self.answers.setdefault(effect.caller_id, []).append(effect)
            case PublishRoutes():
                self.routes = effect.routes
                self.routes_versions.append(effect.version)
            case Note():
                self.notes.append(effect)
            case DropLeadership() | CheckLeadership():
                self.dropped.append(effect)
            case _:
                self._take_command(effect)

    def _take_command(
        self,
        effect: Measure
        | SaveDesired
        | RemoveDesired
        | SaveConstraints
        | SaveMargins
        | SaveDrain
        | SaveAlias
        | StartRunner
        | StopRunner
        | AskRunner
        | ClearDevice
        | ExcuseCrash,
    ) -> None:
        match effect:
            case Measure():
                self.measures.append(effect)
            case SaveDesired() | RemoveDesired() | SaveConstraints() | SaveMargins() | SaveDrain() | SaveAlias():
                self.writes.append(effect)
            case StartRunner():
                self.starts.append(effect)
                self.all_starts.append(effect)
            case StopRunner():
                self.stops.append(effect)
                self.all_stops.append(effect)
            case AskRunner():
                self._answer_for(effect.runner)
            case ClearDevice():
                self.cleared.append(effect)
            case ExcuseCrash():
                self.excused.append(effect)

    def _answer_for(self, asked: RunnerView) -> None:
        """Runners answer for themselves if they are there."""
        self.questions += 1
        one = self.runners.get(asked.placement_id)
        if one is not None and one.view.incarnation == asked.incarnation and one.node_id not in self.cut_off:
            self.answers_due.append(RunnerAnswered(placement_id=asked.placement_id, generation=asked.generation))

    def views(self) -> tuple[NodeView, ...]:
        return tuple(self._view(node) for node in self.nodes.values())

    def _view(self, node: NodeView) -> NodeView:
        mine = [one for one in self.runners.values() if one.node_id == node.id]
        runners = []
        for one in mine:
            busy = one.view.is_busy
            idle_ms = 0 if busy or one.view.state not in SERVING_STATES else (self.now_s - one.idle_since_s) * 1000
            runners.append(replace(one.view, idle_ms=round(idle_ms)))
        devices = []
        for device in node.devices:
            used = sum(self._used(one, device.id, node) for one in mine)
            holders = self.holders.get((node.id, device.id), device.holders)
            devices.append(replace(device, free_bytes=max(0, device.free_bytes - used), holders=holders))
        return replace(node, runners=tuple(runners), devices=tuple(devices), models=self._files(node))

    def _files(self, node: NodeView) -> tuple[ModelFile, ...]:
        """The same object for as long as the files are the same, as converters have it."""
        if node.models not in self._sized:
            self._sized[node.models] = tuple(
                replace(one, size_bytes=int(self.sizes_gib.get(one.digest, 8) * GIB)) for one in node.models
            )
        return self._sized[node.models]

    def _used(self, one: FakeRunner, device_id: str, node: NodeView) -> int:
        memory = one.view.memory
        if memory is None:
            return 0
        host = node.host_device
        total = sum(part.total_bytes for part in memory.devices if part.device_id == device_id)
        if host is not None and host.id == device_id:
            total += memory.host.total_bytes
        return total + (PROCESS_BYTES if total else 0)

    def bytes_of(self, placement_id: str) -> dict[tuple[str, str], int]:
        """Return the bytes that a process really holds, and the processes that lend to it: by node and device."""
        one = self.runners[placement_id]
        report = self.count(one.view.model_digest, one.view.layout)
        held = {
            (part.node_id or one.node_id, part.device_id): part.total_bytes + PROCESS_BYTES for part in report.devices
        }
        held[one.node_id, "cpu"] = held.get((one.node_id, "cpu"), 0) + report.host.total_bytes
        return held

    def held(self) -> Counter[tuple[str, str]]:
        """Return the bytes that all processes really hold, known to the core or not."""
        held: Counter[tuple[str, str]] = Counter()
        for placement_id in self.runners:
            held.update(self.bytes_of(placement_id))
        return held

    def count(self, digest: str, layout: Layout) -> MemoryReport:
        weights = int(self.sizes_gib.get(digest, 8) * GIB)
        cache = int(self.cache_gib_per_slot * layout.slots * GIB)
        return counted(layout, weights=weights, cache=cache)

    def writes_done(self) -> None:
        """The store takes everything that waits, in order."""
        while self.writes:
            effect = self.writes.pop(0)
            if isinstance(effect, RemoveDesired):
                if effect.fence == self.fence:
                    self.store.pop(effect.placement_id, None)
                continue
            if isinstance(effect, SaveConstraints):
                self._constraints_done(effect)
                continue
            if isinstance(effect, SaveDrain):
                self._drain_done(effect)
                continue
            if isinstance(effect, SaveAlias):
                self._alias_done(effect)
                continue
            if isinstance(effect, SaveMargins):
                self.stored_margins = self.stored_margins.with_all(effect.margins)
                continue
            record = effect.record
            if effect.fence != self.fence:
                fault = Fault(reason=STALE_FENCE, message=f"the state store is at fence {self.fence}")
                self.send(SaveEnded(save=effect, fault=fault))
                continue
            self.store[record.placement_id] = record
            self.send(SaveEnded(save=effect))

    def _constraints_done(self, effect: SaveConstraints) -> None:
        if effect.constraints is None:
            self.stored_constraints.pop(effect.model_name, None)
        else:
            self.stored_constraints[effect.model_name] = effect.constraints
        self.send(SaveEnded(save=effect))

    def _alias_done(self, effect: SaveAlias) -> None:
        self.stored_aliases = self.stored_aliases or {}
        if effect.alias is None:
            self.stored_aliases.pop(effect.key, None)
        else:
            self.stored_aliases[effect.key] = effect.alias
        self.send(SaveEnded(save=effect))

    def _drain_done(self, effect: SaveDrain) -> None:
        if effect.budget_s is None:
            self.stored_drains.pop(effect.node_id, None)
        else:
            self.stored_drains[effect.node_id] = effect.budget_s
        self.send(SaveEnded(save=effect))

    def writes_fail(self, fault: Fault) -> None:
        """The store is away."""
        while self.writes:
            effect = self.writes.pop(0)
            if isinstance(effect, Save):
                self.send(SaveEnded(save=effect, fault=fault))
