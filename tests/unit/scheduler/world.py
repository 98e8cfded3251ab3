"""A cluster in virtual time around the real core: fake hosts with real arithmetic, a store, callers.

Nothing happens by itself: a test says when a measurement is answered, a write done, when a load moves or a report goes
out.
"""

import itertools
from dataclasses import dataclass, field, replace

from scheduler.core.constraint_fields import parse_constraints
from scheduler.core.constraints import NO_OPTIONS, Constraints, LoadOptions
from scheduler.core.desired import DesiredPlacement
from scheduler.core.effects import (
    AnswerAlias,
    AnswerConstraints,
    AnswerDrain,
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
    SaveAlias,
    SaveConstraints,
    SaveDesired,
    SaveDrain,
    SaveMargins,
    StartRunner,
    StopRunner,
)
from scheduler.core.events import (
    AliasPut,
    AliasSaved,
    AliasSaveFailed,
    CallerLeft,
    ConstraintsPut,
    ConstraintsSaved,
    ConstraintsSaveFailed,
    DesiredSaved,
    DesiredSaveFailed,
    DrainAsked,
    DrainSaved,
    DrainSaveFailed,
    EnsureRequested,
    Event,
    ExplainAsked,
    InventoryLost,
    InventorySeen,
    LeadershipGained,
    LeadershipLost,
    Measured,
    MeasureFailed,
    RunnerAnswered,
    RunnerReported,
    StartFailed,
    StopDone,
    StopFailed,
    TimePassed,
    UnloadRequested,
)
from scheduler.core.explanation import Explanation
from scheduler.core.faults import STALE_FENCE, Fault
from scheduler.core.layouts import Layout
from scheduler.core.margins import NO_MARGINS, Margins
from scheduler.core.memory import GIB, MemoryOrigin, MemoryReport
from scheduler.core.model_alias import ModelAlias
from scheduler.core.policy import Policy
from scheduler.core.routing_table import ModelRoute
from scheduler.core.state import SchedulerCore
from scheduler.core.view import (
    SERVING_STATES,
    STARTING_STATES,
    HolderView,
    ModelFile,
    NodeView,
    RunnerState,
    RunnerView,
)
from tests.unit.scheduler.builders import counted, model

Write = SaveDesired | RemoveDesired | SaveConstraints | SaveMargins | SaveDrain | SaveAlias

PROCESS_BYTES = 256 * 1024 * 1024  # what a process really takes beside the model


@dataclass(slots=True, kw_only=True)
class FakeRunner:
    """A process on a fake host."""

    node_id: str
    view: RunnerView
    ready_at_s: float | None = None
    idle_since_s: float = 0.0


@dataclass(slots=True)
class World:
    """The core, its surroundings, and everything that was said."""

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

    # What happens.

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
            case AnswerUnloading() | AnswerConstraints() | AnswerExplained() | AnswerDrain() | AnswerAlias():
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
        | ClearDevice,
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
                self._answer_for(effect)
            case ClearDevice():
                self.cleared.append(effect)

    def _answer_for(self, asked: AskRunner) -> None:
        """Runners answer for themselves if they are there."""
        self.questions += 1
        one = self.runners.get(asked.placement_id)
        if one is not None and one.view.incarnation == asked.incarnation and one.node_id not in self.cut_off:
            self.answers_due.append(RunnerAnswered(placement_id=asked.placement_id, generation=asked.generation))

    def lead(self) -> None:
        self.fence += 1
        self.send(
            LeadershipGained(
                fence=self.fence,
                leader_id=f"leader-{self.fence}",
                desired=tuple(self.store.values()),
                constraints=dict(self.stored_constraints),
                margins=self.stored_margins,
                drains=dict(self.stored_drains),
                aliases=None if self.stored_aliases is None else dict(self.stored_aliases),
            )
        )

    def lose_leadership(self, why: str = "state store unreachable: gone") -> None:
        self.send(LeadershipLost(why=why))
        self.measures.clear()
        self.starts.clear()
        self.stops.clear()

    def ensure(
        self,
        caller: str,
        model_name: str = "m",
        *,
        context_tokens: int | None = None,
        keep_alive_ms: int | None = None,
        options: LoadOptions = NO_OPTIONS,
    ) -> None:
        self.asked.add(caller)
        self.send(
            EnsureRequested(
                caller_id=caller,
                model_name=model_name,
                context_tokens=context_tokens,
                keep_alive_ms=keep_alive_ms,
                options=options,
            )
        )

    def want(self, model_name: str, **written: object) -> None:
        """An operator sets constraints, and the store takes them."""
        event = ConstraintsPut(
            caller_id=f"want-{model_name}", model_name=model_name, constraints=parse_constraints(written)
        )
        self.answers.pop(event.caller_id, None)
        self.send(event)
        self.writes_done()

    def drain(self, node_id: str, *, drain: bool = True, budget_s: float | None = None) -> None:
        """An operator takes a node out of use, or puts it back; the store takes it."""
        self.send(DrainAsked(caller_id="operator", node_id=node_id, drain=drain, budget_s=budget_s))
        self.writes_done()

    def alias(self, name: str, target: str | None) -> list[Effect]:
        """An operator sets an alias or, with None, removes it; the store takes it. What is answered."""
        self.answers.pop("operator", None)
        self.send(AliasPut(caller_id="operator", name=name, target=target))
        self.writes_done()
        return self.answers["operator"]

    def explain(self, model_name: str = "m", *, last: bool = False, context_tokens: int | None = None) -> Explanation:
        """What is answered at once."""
        asked = ExplainAsked(caller_id="why", model_name=model_name, last=last, context_tokens=context_tokens)
        (answer,) = [one for one in self.send(asked) if isinstance(one, AnswerExplained)]
        return answer.explanation

    def unload(self, caller: str, model_name: str = "m") -> None:
        self.asked.add(caller)
        self.send(UnloadRequested(caller_id=caller, model_name=model_name))

    def leave(self, caller: str) -> None:
        self.left.add(caller)
        self.send(CallerLeft(caller_id=caller))

    def pass_time(self, seconds: float, *, reporting: bool = True) -> None:
        """Let time pass, with a report every second (as hosts do) and a wake-up whenever the core asked for one."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            step_s = min(until_s, self.now_s + 1.0)
            wake_s = self.core.wake_at_s(self.now_s)
            while wake_s is not None and wake_s < step_s:
                self.now_s = wake_s
                self.send(TimePassed())
                self.writes_done()
                wake_s = self.core.wake_at_s(self.now_s)
            self.now_s = step_s
            if reporting:
                self.report()
            else:
                self.send(TimePassed())

    def report(self) -> None:
        """Discovery sends the inventory."""
        self.send(InventorySeen(nodes=self.views(), uptime_s=self.uptime_s))

    def lose_inventory(self) -> None:
        self.send(InventoryLost())

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

    # How the surroundings answer.

    def measure_all(self) -> None:
        while self.measures:
            effect = self.measures.pop(0)
            report = self.count(effect.key.model_digest, effect.layout)
            self.send(Measured(node_id=effect.node_id, key=effect.key, report=report))

    def measure_fails(self, fault: Fault) -> None:
        effect = self.measures.pop(0)
        self.send(MeasureFailed(node_id=effect.node_id, key=effect.key, fault=fault))

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
            names = {"placement_id": record.placement_id, "generation": record.generation, "phase": record.phase}
            if effect.fence != self.fence:
                fault = Fault(reason=STALE_FENCE, message=f"the state store is at fence {self.fence}")
                self.send(DesiredSaveFailed(fault=fault, **names))  # type: ignore[arg-type]
                continue
            self.store[record.placement_id] = record
            self.send(DesiredSaved(**names))  # type: ignore[arg-type]

    def _constraints_done(self, effect: SaveConstraints) -> None:
        if effect.constraints is None:
            self.stored_constraints.pop(effect.model_name, None)
        else:
            self.stored_constraints[effect.model_name] = effect.constraints
        self.send(
            ConstraintsSaved(caller_id=effect.caller_id, model_name=effect.model_name, constraints=effect.constraints)
        )

    def _alias_done(self, effect: SaveAlias) -> None:
        self.stored_aliases = self.stored_aliases or {}
        if effect.alias is None:
            self.stored_aliases.pop(effect.key, None)
        else:
            self.stored_aliases[effect.key] = effect.alias
        self.send(AliasSaved(caller_id=effect.caller_id, key=effect.key, alias=effect.alias))

    def _drain_done(self, effect: SaveDrain) -> None:
        if effect.budget_s is None:
            self.stored_drains.pop(effect.node_id, None)
        else:
            self.stored_drains[effect.node_id] = effect.budget_s
        self.send(DrainSaved(caller_id=effect.caller_id, node_id=effect.node_id, budget_s=effect.budget_s))

    def writes_fail(self, fault: Fault) -> None:
        """The store is away."""
        while self.writes:
            effect = self.writes.pop(0)
            if isinstance(effect, SaveDrain):
                self.send(DrainSaveFailed(caller_id=effect.caller_id, node_id=effect.node_id, fault=fault))
            if isinstance(effect, SaveAlias):
                names = {"caller_id": effect.caller_id, "key": effect.key, "alias": effect.alias}
                self.send(AliasSaveFailed(fault=fault, **names))  # type: ignore[arg-type]
            if isinstance(effect, SaveConstraints):
                self.send(ConstraintsSaveFailed(caller_id=effect.caller_id, model_name=effect.model_name, fault=fault))
            if isinstance(effect, SaveDesired):
                record = effect.record
                self.send(
                    DesiredSaveFailed(
                        placement_id=record.placement_id, generation=record.generation, phase=record.phase, fault=fault
                    )
                )

    def hosts_take_starts(self) -> None:
        """Hosts obey, if the fence is right: one process per (placement, generation)."""
        while self.starts:
            effect = self.starts.pop(0)
            record = effect.record
            if effect.fence < self.high_fence:
                text = f"fence {effect.fence} is not valid any more, the highest seen is {self.high_fence}"
                self.start_fails(record, Fault(reason=STALE_FENCE, message=text))
                continue
            self.high_fence = effect.fence
            node_id = effect.address.partition(":")[0]
            known = self.runners.get(record.placement_id)
            if known is None or known.view.generation < record.generation:
                self.runners[record.placement_id] = FakeRunner(
                    node_id=node_id,
                    view=RunnerView(
                        placement_id=record.placement_id,
                        generation=record.generation,
                        incarnation=f"{record.placement_id}.{record.generation}",
                        model_name=record.model_name,
                        model_digest=record.model_digest,
                        layout=record.layout,
                        address=f"unix:/run/{record.placement_id}",
                        state=RunnerState.LAUNCHED,
                        load_bytes_total=int(self.sizes_gib.get(record.model_digest, 8) * GIB),
                        slots_total=record.layout.slots,
                    ),
                )
            self.tell(record.placement_id)

    def start_fails(self, record: DesiredPlacement, fault: Fault) -> None:
        self.send(StartFailed(placement_id=record.placement_id, generation=record.generation, fault=fault))

    def tell(self, placement_id: str) -> None:
        """A start's stream says how its runner is."""
        one = self.runners[placement_id]
        self.send(RunnerReported(node_id=one.node_id, runner=one.view))

    def load(self, placement_id: str, fraction: float, *, telling: bool = True) -> None:
        """A load moves; at 1 it is ready and holds its memory."""
        one = self.runners[placement_id]
        if fraction < 1:
            one.view = replace(one.view, state=RunnerState.LOADING, load_fraction=fraction)
        else:
            memory = replace(self.count(one.view.model_digest, one.view.layout), origin=MemoryOrigin.ALLOCATED)
            one.view = replace(one.view, state=RunnerState.READY, load_fraction=1.0, memory=memory)
            one.ready_at_s = one.idle_since_s = self.now_s
        if telling:
            self.tell(placement_id)

    def runner_dies(self, placement_id: str) -> None:
        """The process is gone; its host reports it."""
        del self.runners[placement_id]
        self.report()

    def crash(self, placement_id: str, fault: Fault) -> None:
        """The process died; its host reports why, and forgets it a report later."""
        one = self.runners[placement_id]
        one.view = replace(one.view, state=RunnerState.ERROR, fault=fault)
        self.report()
        del self.runners[placement_id]
        self.report()

    def work(self, placement_id: str, *, busy: int, keep_alive_ms: int | None = None) -> None:
        """Sequences begin, or end."""
        one = self.runners[placement_id]
        grown = max(0, busy - one.view.slots_busy)
        if one.view.slots_busy and not busy:
            one.idle_since_s = self.now_s
        one.view = replace(
            one.view,
            slots_busy=busy,
            requests_total=one.view.requests_total + grown,
            keep_alive_ms=one.view.keep_alive_ms if keep_alive_ms is None else keep_alive_ms,
        )

    def stops_done(self) -> None:
        """Hosts stop what they are told to, after the starts that were sent before: one channel, in order."""
        self.hosts_take_starts()
        while self.stops:
            effect = self.stops.pop(0)
            if effect.fence < self.high_fence:
                text = f"fence {effect.fence} is not valid any more, the highest seen is {self.high_fence}"
                self.send(
                    StopFailed(
                        placement_id=effect.placement_id,
                        generation=effect.generation,
                        fault=Fault(reason=STALE_FENCE, message=text),
                    )
                )
                continue
            self.high_fence = effect.fence
            known = self.runners.get(effect.placement_id)
            if known is not None and known.view.generation <= effect.generation:
                del self.runners[effect.placement_id]
            self.send(StopDone(placement_id=effect.placement_id, generation=effect.generation))

    def settle(self) -> None:
        """Everybody answers at once until nobody has anything to do; loads become ready."""
        for _ in range(200):
            if not (self.measures or self.writes or self.starts or self.stops):
                loading = [one for one, it in self.runners.items() if it.view.state in STARTING_STATES]
                if not loading:
                    return
                for placement_id in loading:
                    self.load(placement_id, 1.0)
            self.measure_all()
            self.writes_done()
            self.hosts_take_starts()
            self.stops_done()
            self.report()
        raise AssertionError("the world does not come to rest")

    # What is to be seen.

    def finals(self, caller: str) -> list[Effect]:
        return [
            one for one in self.answers.get(caller, []) if isinstance(one, AnswerReady | AnswerFailed | AnswerUnloading)
        ]

    def fault(self, caller: str) -> Fault:
        (final,) = self.finals(caller)
        assert isinstance(final, AnswerFailed), final
        return final.fault

    def is_ready(self, caller: str) -> bool:
        finals = self.finals(caller)
        return len(finals) == 1 and isinstance(finals[0], AnswerReady)

    def loading(self, caller: str) -> list[float]:
        return [one.fraction for one in self.answers.get(caller, []) if isinstance(one, AnswerLoading)]

    def route(self, model_name: str = "m:latest") -> list[str]:
        """Placements in the published route that serve."""
        found = next(one for one in self.routes if one.model.name == model_name)
        return [one.runner.placement_id for one in found.replicas if one.runner.state in SERVING_STATES]

    def noted(self, event: str) -> list[Note]:
        return [note for note in self.notes if note.event == event]


def world_with(*nodes: NodeView, **sizes_gib: float) -> World:
    """A world with these nodes, led by this scheduler, whose inventory has arrived."""
    world = World(sizes_gib={f"digest-{name}": size for name, size in sizes_gib.items()})
    world.nodes = {node.id: node for node in nodes}
    world.report()
    world.lead()
    return world


def models(*names: str) -> tuple[ModelFile, ...]:
    """Files of these names."""
    return tuple(model(f"{name}:latest") for name in names)
