"""A cluster in virtual time around the real core: fake hosts with real arithmetic, a store, callers.

Nothing happens by itself: a test says when a measurement is answered, a write done, when a load moves or a report goes
out.
"""

from dataclasses import dataclass, replace

from common.spec.load_options import NO_LOAD_OPTIONS, LoadOptions
from scheduler.core.planning.explanation import Explanation
from scheduler.core.state.effects import (
    AnswerExplained,
    AnswerFailed,
    AnswerLoading,
    AnswerReady,
    AnswerReplicas,
    Effect,
    Note,
)
from scheduler.core.state.events import (
    AliasPut,
    CallerLeft,
    ConstraintsPut,
    DrainAsked,
    EnsureRequested,
    ExplainAsked,
    InventoryLost,
    InventorySeen,
    LeadershipGained,
    LeadershipLost,
    MeasureEnded,
    RunnerReported,
    StartFailed,
    StopEnded,
    TimePassed,
    UnloadRequested,
)
from scheduler.core.values.constraint_fields import parse_constraints
from scheduler.core.values.desired import DesiredPlacement
from scheduler.core.values.faults import STALE_FENCE, Fault, store_unreachable
from scheduler.core.values.memory import GIB, MemoryOrigin
from scheduler.core.values.view import (
    SERVING_STATES,
    STARTING_STATES,
    ModelFile,
    NodeView,
    RunnerState,
    RunnerView,
)
from tests.unit.scheduler.builders import model
from tests.unit.scheduler.surroundings import FakeRunner, Surroundings


@dataclass(slots=True)
class World(Surroundings):
    """The core, its surroundings, and everything that was said."""

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

    def lose_leadership(self, fault: Fault | None = None) -> None:
        self.send(LeadershipLost(fault=fault or store_unreachable("state store unreachable: gone")))
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
        options: LoadOptions = NO_LOAD_OPTIONS,
        load_only: bool = False,
        at_once: bool = False,
        move_to: str = "",
    ) -> None:
        self.asked.add(caller)
        self.send(
            EnsureRequested(
                caller_id=caller,
                model_name=model_name,
                context_tokens=context_tokens,
                keep_alive_ms=keep_alive_ms,
                options=options,
                load_only=load_only,
                move_to=move_to,
                at_once=at_once,
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
        """Return the explanation that is answered at once."""
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

    def measure_all(self) -> None:
        while self.measures:
            effect = self.measures.pop(0)
            report = self.count(effect.key.model_digest, effect.layout)
            self.send(MeasureEnded(node_id=effect.node_id, key=effect.key, found=report))

    def measure_fails(self, fault: Fault) -> None:
        effect = self.measures.pop(0)
        self.send(MeasureEnded(node_id=effect.node_id, key=effect.key, found=fault))

    def hosts_take_starts(self) -> None:
        """Hosts obey, if the fence is right: one process per (placement, generation)."""
        while self.starts:
            effect = self.starts.pop(0)
            record = effect.record
            if effect.fence < self.high_fence:
                stale = Fault(reason=STALE_FENCE, message="the fence is stale", high_water=self.high_fence)
                self.start_fails(record, stale)
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
                        asked=record.asked,
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
            done = int(one.view.load_bytes_total * fraction)
            one.view = replace(one.view, state=RunnerState.LOADING, load_fraction=fraction, load_bytes_done=done)
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
            keep_alive_requests=one.view.keep_alive_requests + (keep_alive_ms is not None and one.counts_keep_alive),
        )

    def stops_done(self) -> None:
        """Hosts stop what they are told to, after the starts that were sent before: one channel, in order."""
        self.hosts_take_starts()
        while self.stops:
            effect = self.stops.pop(0)
            if effect.fence < self.high_fence:
                stale = Fault(reason=STALE_FENCE, message="the fence is stale", high_water=self.high_fence)
                self.send(StopEnded(placement_id=effect.placement_id, generation=effect.generation, fault=stale))
                continue
            self.high_fence = effect.fence
            known = self.runners.get(effect.placement_id)
            if known is not None and known.view.generation <= effect.generation:
                del self.runners[effect.placement_id]
            self.send(StopEnded(placement_id=effect.placement_id, generation=effect.generation))

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

    def finals(self, caller: str) -> list[Effect]:
        return [
            one for one in self.answers.get(caller, []) if isinstance(one, AnswerReady | AnswerFailed | AnswerReplicas)
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
