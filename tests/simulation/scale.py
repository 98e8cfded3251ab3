"""A large cluster in virtual time: the real core, hosts that load what fits in truth, and everything that breaks.

Every invariant is checked after every single event that the core takes in. Everything follows from the seed.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from common.spec.layout import Layout
from scheduler.core.state.effects import AnswerReady, Effect, StartRunner
from scheduler.core.state.events import Event
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import MIB, MemoryReport
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import SERVING_STATES, STARTING_STATES, DeviceView, NodeView
from tests.simulation.invariants import Invariants
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.surroundings import PROCESS_BYTES
from tests.unit.scheduler.world import World, models

REPORT_S = 10.0
ARRIVALS_PER_S = 0.2
MODELS = 40
SIZES_GIB = (2.0, 6.0, 14.0, 20.0, 34.0, 60.0, 120.0, 210.0)
# One model in so many is larger than any node that has it: it lies on several, joined by RPC.
JOINT_MODEL, JOINT_GIB = "joint", 100.0
LENDERS = 12
MEASURE_FAILS, HOG_STRIKES = 0.4, 0.03
HOG_S, STALE_S = 200.0, 60.0
FINAL = Fault(reason="model_unavailable", message="the measurement failed: signal 11")


@dataclass(slots=True)
class LargeWorld(World):
    """Reports anew only what may have changed, hides what graphs cost, and is checked after every event."""

    hogs: dict[tuple[str, str], int] = field(default_factory=dict)  # what others hold on a device
    stale: dict[str, tuple[float, dict[str, int]]] = field(default_factory=dict)  # node → since when, figures as told
    all_nodes: dict[str, NodeView] = field(default_factory=dict)
    invariants: Invariants | None = None
    events: int = 0
    _quiet: dict[str, NodeView] = field(default_factory=dict)
    _counted: dict[tuple[str, Layout], MemoryReport] = field(default_factory=dict)

    def send(self, event: Event) -> list[Effect]:
        effects = World.send(self, event)
        self.events += 1
        if self.invariants is not None:
            self.invariants.check(self, event, effects)
        return effects

    def views(self) -> tuple[NodeView, ...]:
        busy = {one.node_id for one in self.runners.values()} | {node_id for node_id, _ in self.hogs}
        busy |= self.stale.keys()
        for one in self.runners.values():
            busy.update(part.node_id for part in one.view.layout.devices if part.node_id)
        lent = self._lent()
        found = []
        for known in self.nodes.values():
            if known.id in busy:
                view = self._view(known)
                devices = tuple(self._shown(view.id, device, lent) for device in view.devices)
                found.append(replace(view, devices=devices))
            else:
                if known.id not in self._quiet:
                    self._quiet[known.id] = self._view(known)
                found.append(self._quiet[known.id])
        return tuple(found)

    def _lent(self) -> Counter[tuple[str, str]]:
        """Return the bytes that loaded runners hold on the devices of other nodes."""
        lent: Counter[tuple[str, str]] = Counter()
        for one in self.runners.values():
            for part in one.view.memory.devices if one.view.memory is not None else ():
                if part.node_id:
                    lent[part.node_id, part.device_id] += part.total_bytes + PROCESS_BYTES
        return lent

    def _shown(self, node_id: str, device: DeviceView, lent: Counter[tuple[str, str]]) -> DeviceView:
        key = (node_id, device.id)
        free = max(0, device.free_bytes - self.hogs.get(key, 0) - lent[key])
        if node_id in self.stale:
            since_s, told = self.stale[node_id]
            return replace(device, free_bytes=told.setdefault(device.id, free), free_age_s=self.now_s - since_s)
        return replace(device, free_bytes=free)

    def count(self, digest: str, layout: Layout) -> MemoryReport:
        """Graphs grow with the number of devices, and come and go with the layers."""
        key = (digest, layout)
        if key not in self._counted:
            report = World.count(self, digest, layout)
            taken = sum(part.layer_count for part in layout.devices)
            graph = (80 + 40 * len(layout.devices) + (150 if taken % 2 else 0)) * MIB
            devices = tuple(replace(part, graph_bytes=graph) for part in report.devices)
            self._counted[key] = replace(report, devices=devices)
        return self._counted[key]

    def held(self) -> Counter[tuple[str, str]]:
        """By everybody, hogs too."""
        held = World.held(self)
        held.update(self.hogs)
        return held


@dataclass(slots=True)
class Scale:
    """Drives the world: who asks when, how long loads and answers take, what breaks."""

    seed: int
    nodes: int
    devices: int = 8
    world: LargeWorld = field(init=False)
    served: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    shapes: Counter[int] = field(default_factory=Counter)
    _agenda: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)
    _calls: "itertools.count[int]" = field(default_factory=itertools.count)
    _random: random.Random = field(init=False)
    _loading: set[tuple[str, int]] = field(default_factory=set)
    _waiting: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chance = self._random = random.Random(self.seed)
        names = [f"m{number}" for number in range(MODELS)]
        sizes = {f"digest-{name}": SIZES_GIB[number % len(SIZES_GIB)] for number, name in enumerate(names)}
        sizes[f"digest-{JOINT_MODEL}"] = JOINT_GIB
        world = self.world = LargeWorld(
            policy=Policy(keep_alive_ms=300_000),
            sizes_gib=sizes,
            cache_gib_per_slot=0.1,
            invariants=Invariants(self.seed),
        )
        for number in range(self.nodes):
            lends = number < LENDERS
            size = 12 if lends else chance.choice([16, 24, 24, 48])
            gpus = tuple(gpu(f"g{index}", free=size, total=size) for index in range(self.devices))
            files = models(JOINT_MODEL) if lends else models(*chance.sample(names, k=12))
            ram = cpu(free=32, total=32) if lends else cpu(free=96, total=96)
            one = node(f"n{number}", devices=(*gpus, ram), models=files)
            world.nodes[one.id] = replace(one, rpc_enabled=lends, tunnel_certificate=one.id.encode() if lends else b"")
        world.all_nodes = dict(world.nodes)
        world.report()
        world.lead()

    def run(self, seconds: float) -> None:
        end_s = self.world.now_s + seconds
        self.at(self.world.now_s, self._arrive)
        self.at(self.world.now_s + 5, self._ask_for_joint)
        self.at(self.world.now_s + REPORT_S, self._report)
        self.at(self.world.now_s + 60, self._break_something)
        while self._agenda and self._agenda[0][0] <= end_s:
            moment_s, _, act = heapq.heappop(self._agenda)
            self.world.now_s = max(self.world.now_s, moment_s)
            act()
            self._surroundings_answer()

    def at(self, moment_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (moment_s, next(self._order), act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(self.world.now_s + seconds, act)

    def _report(self) -> None:
        self.world.report()
        self.world.notes[:] = [note for note in self.world.notes if self._count(note.event)]
        self.after(REPORT_S, self._report)

    def _count(self, event: str) -> bool:
        self.happened[event] += 1
        return False

    def _surroundings_answer(self) -> None:
        world = self.world
        for _ in range(20):
            if not (world.measures or world.writes or world.starts or world.stops):
                break
            self._measure()
            world.writes_done()
            self._hosts_take_starts()
            world.stops_done()
        for placement_id, one in world.runners.items():
            key = (placement_id, one.view.generation)
            if one.view.state in STARTING_STATES and key not in self._loading:
                self._loading.add(key)
                seconds = 1 + world.sizes_gib[one.view.model_digest] * self._random.uniform(0.1, 0.4)
                self.after(seconds, partial(self._loaded, *key))
        for caller in [one for one in self._waiting if world.finals(one)]:
            del self._waiting[caller]
            (final,) = world.finals(caller)
            if isinstance(final, AnswerReady):
                self._use(final.model_name)

    def _measure(self) -> None:
        """A runner that counts crashes now and then: the layout is estimated."""
        world = self.world
        while world.measures:
            if self._random.random() < MEASURE_FAILS:
                self.happened["measurement crashed"] += 1
                world.measure_fails(FINAL)
            else:
                waiting, world.measures[:] = world.measures[1:], world.measures[:1]
                world.measure_all()
                world.measures[:] = [*waiting, *world.measures]

    def _hosts_take_starts(self) -> None:
        """A host loads only what fits in truth: somebody may have been quicker than the last report."""
        world = self.world
        for start in list(world.starts):
            if self._random.random() < HOG_STRIKES:
                self._strike(start)
            record = start.record
            if record.placement_id not in world.runners and (short := self._short(start)):
                world.starts.remove(start)
                self.happened["host refused"] += 1
                world.start_fails(record, Fault(reason="device_memory_exhausted", message=f"no room on {short}"))
        world.hosts_take_starts()

    def _short(self, start: StartRunner) -> str:
        """A device that has no room for it any more."""
        world, record = self.world, start.record
        report, held = world.count(record.model_digest, record.layout), world.held()
        wanted = {
            (part.node_id or record.node_id, part.device_id): part.total_bytes + PROCESS_BYTES
            for part in report.devices
        }
        wanted[record.node_id, "cpu"] = report.host.total_bytes
        for (node_id, device_id), count in wanted.items():
            device = world.all_nodes[node_id].device(device_id)
            assert device is not None
            if count and held[node_id, device_id] + count > device.total_bytes:
                return f"{node_id} {device_id}"
        return ""

    def _strike(self, start: StartRunner) -> None:
        """Somebody else takes most of a device between the plan and the start."""
        world, record = self.world, start.record
        part = next(iter(record.layout.devices), None)
        if part is None:
            return
        key = (part.node_id or record.node_id, part.device_id)
        device = world.all_nodes[key[0]].device(key[1])
        assert device is not None
        taken = int(max(0, device.total_bytes - world.held()[key]) * 0.9)
        world.hogs[key] = world.hogs.get(key, 0) + taken
        self.happened["hog struck"] += 1
        self.after(HOG_S, partial(self._let_go, key[0]))

    def _loaded(self, placement_id: str, generation: int) -> None:
        one = self.world.runners.get(placement_id)
        if one is not None and one.view.generation == generation and one.view.state in STARTING_STATES:
            self.shapes[len(one.view.layout.devices)] += 1
            self.happened["joined by RPC"] += any(part.node_id for part in one.view.layout.devices)
            self.world.load(placement_id, 1.0)

    def _arrive(self) -> None:
        self._ask(f"m{min(int(self._random.expovariate(0.1)), MODELS - 1)}")
        self.after(self._random.expovariate(ARRIVALS_PER_S), self._arrive)

    def _ask_for_joint(self) -> None:
        self._ask(JOINT_MODEL)
        self.after(self._random.uniform(300, 1500), self._ask_for_joint)

    def _ask(self, name: str) -> None:
        caller = f"c{next(self._calls)}"
        self._waiting[caller] = None
        self.world.ensure(caller, name, context_tokens=self._random.choice([None, None, 2048, 8192]))

    def _use(self, model_name: str) -> None:
        serving = sorted(
            placement_id
            for placement_id, one in self.world.runners.items()
            if one.view.model_name == model_name and one.view.state in SERVING_STATES
        )
        if serving:
            placement_id = self._random.choice(serving)
            self.served += 1
            self.world.work(placement_id, busy=self.world.runners[placement_id].view.slots_busy + 1)
            self.after(self._random.expovariate(1 / 20), partial(self._done, placement_id))

    def _done(self, placement_id: str) -> None:
        one = self.world.runners.get(placement_id)
        if one is not None and one.view.slots_busy:
            self.world.work(placement_id, busy=one.view.slots_busy - 1)

    def _break_something(self) -> None:
        world, chance = self.world, self._random
        used = sorted({one.node_id for one in world.runners.values()} & world.nodes.keys()) or sorted(world.nodes)
        match chance.choice(["runner", "node", "hog", "stale", "leader", "drain", "watch"]):
            case "runner" if world.runners:
                self.happened["runner died"] += 1
                world.runner_dies(chance.choice(sorted(world.runners)))
            case "node":
                self._lose_node(chance.choice(used))
            case "hog":
                self._hog(chance.choice(used))
            case "stale":
                name = chance.choice(used)
                world.stale[name] = (world.now_s, {})
                self.happened["figures stood still"] += 1
                self.after(STALE_S, partial(self._speak_again, name))
            case "leader":
                world.lose_leadership()
                self.after(3.0, world.lead)
            case "drain" if world.core.state.leadership is not None:
                name = chance.choice(used)
                self.happened["drained"] += 1
                world.drain(name, budget_s=chance.choice([0.0, 60.0]))
                self.after(300.0, partial(self._undrain, name))
            case "watch":
                world.lose_inventory()
        self.after(chance.uniform(20, 60), self._break_something)

    def _speak_again(self, name: str) -> None:
        self.world.stale.pop(name, None)

    def _undrain(self, name: str) -> None:
        if self.world.core.state.leadership is None:
            self.after(5.0, partial(self._undrain, name))
        else:
            self.world.drain(name, drain=False)

    def _lose_node(self, name: str) -> None:
        """A node is gone for a moment, or for long; what borrows from it ends with it."""
        world = self.world
        self.happened["node lost"] += 1
        away = world.nodes.pop(name)
        for placement_id, one in list(world.runners.items()):
            if any(part.node_id == name for part in one.view.layout.devices):
                self.happened["lender lost"] += 1
                world.runner_dies(placement_id)
        self.after(self._random.choice([4.0, 120.0]), partial(world.nodes.__setitem__, name, away))

    def _hog(self, name: str) -> None:
        """Somebody else takes half of what is free on every device of a node, and lets go of it later."""
        held = self.world.held()
        for device in self.world.all_nodes[name].devices:
            if device.id != "cpu":
                taken = (device.total_bytes - held[name, device.id]) // 2
                self.world.hogs[name, device.id] = self.world.hogs.get((name, device.id), 0) + taken
        self.happened["hog came"] += 1
        self.after(HOG_S, partial(self._let_go, name))

    def _let_go(self, name: str) -> None:
        for key in [key for key in self.world.hogs if key[0] == name]:
            del self.world.hogs[key]
