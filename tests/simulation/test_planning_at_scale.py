"""An hour of 1,000 nodes with 8 devices each: real core, virtual time, engines that hide their graphs, faults.

Models lie on one device, on several of a node, partly in host RAM. After every event the bytes that processes really
hold are compared with what devices have, and the scheduler's promises with what it may promise. Everything follows from
the seed, which every failure names.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import pytest

from scheduler.core.effects import AnswerReady
from scheduler.core.faults import Fault
from scheduler.core.layouts import Layout
from scheduler.core.ledger import overhead_bytes
from scheduler.core.load_jobs import UNPLACED
from scheduler.core.memory import GIB, MIB, MemoryReport
from scheduler.core.policy import Policy
from scheduler.core.promises import promises
from scheduler.core.view import SERVING_STATES, STARTING_STATES, NodeView
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.world import PROCESS_BYTES, FakeRunner, World, models

REPORT_S = 10.0
ARRIVALS_PER_S = 0.2
MODELS = 40
SIZES_GIB = (2.0, 6.0, 14.0, 20.0, 34.0, 60.0, 120.0, 210.0)


@dataclass(slots=True)
class LargeWorld(World):
    """Reports only what may have changed, and hides what graphs cost."""

    hogs: dict[tuple[str, str], int] = field(default_factory=dict)  # what others hold on a device
    _quiet: dict[str, NodeView] = field(default_factory=dict)

    def views(self) -> tuple[NodeView, ...]:
        busy = {one.node_id for one in self.runners.values()} | {node_id for node_id, _ in self.hogs}
        found = []
        for one in self.nodes.values():
            if one.id in busy:
                found.append(self._with_hogs(self._view(one)))
            else:
                if one.id not in self._quiet:
                    self._quiet[one.id] = self._view(one)
                found.append(self._quiet[one.id])
        return tuple(found)

    def _with_hogs(self, view: NodeView) -> NodeView:
        devices = tuple(
            replace(device, free_bytes=max(0, device.free_bytes - self.hogs.get((view.id, device.id), 0)))
            for device in view.devices
        )
        return replace(view, devices=devices)

    def count(self, digest: str, layout: Layout) -> MemoryReport:
        """Graphs grow with the number of devices, and come and go with the layers."""
        report = World.count(self, digest, layout)
        taken = sum(part.layer_count for part in layout.devices)
        graph = (80 + 40 * len(layout.devices) + (150 if taken % 2 else 0)) * MIB
        return replace(report, devices=tuple(replace(part, graph_bytes=graph) for part in report.devices))


@dataclass(slots=True)
class Scale:
    """Drives the world: who asks when, how long loads and answers take, what breaks."""

    seed: int
    nodes: int
    devices: int = 8
    world: LargeWorld = field(init=False)
    all_nodes: dict[str, NodeView] = field(init=False)
    events: int = 0
    served: int = 0
    shapes: Counter[int] = field(default_factory=Counter)
    _agenda: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)
    _random: random.Random = field(init=False)
    _loading: set[tuple[str, int]] = field(default_factory=set)
    _waiting: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chance = self._random = random.Random(self.seed)
        names = [f"m{number}" for number in range(MODELS)]
        sizes = {f"digest-{name}": SIZES_GIB[number % len(SIZES_GIB)] for number, name in enumerate(names)}
        self.world = LargeWorld(policy=Policy(keep_alive_ms=300_000), sizes_gib=sizes, cache_gib_per_slot=0.1)
        for number in range(self.nodes):
            size = chance.choice([16, 24, 24, 48])
            gpus = tuple(gpu(f"g{index}", free=size, total=size) for index in range(self.devices))
            files = models(*chance.sample(names, k=12))
            self.world.nodes[f"n{number}"] = node(f"n{number}", devices=(*gpus, cpu(free=96, total=96)), models=files)
        self.all_nodes = dict(self.world.nodes)
        self.world.report()
        self.world.lead()

    def run(self, seconds: float) -> None:
        end_s = self.world.now_s + seconds
        self.at(self.world.now_s, self._arrive)
        self.at(self.world.now_s + REPORT_S, self._report)
        self.at(self.world.now_s + 60, self._break_something)
        while self._agenda and self._agenda[0][0] <= end_s:
            moment_s, _, act = heapq.heappop(self._agenda)
            self.world.now_s = max(self.world.now_s, moment_s)
            act()
            self._surroundings_answer()
            self.events += 1
            self.check()

    def at(self, moment_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (moment_s, next(self._order), act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(self.world.now_s + seconds, act)

    def _report(self) -> None:
        self.world.report()
        self.after(REPORT_S, self._report)

    def _surroundings_answer(self) -> None:
        world = self.world
        for _ in range(20):
            if not (world.measures or world.writes or world.starts or world.stops):
                break
            world.measure_all()
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

    def _hosts_take_starts(self) -> None:
        """A host loads only what fits in truth: somebody may have been quicker than the last report."""
        for start in list(self.world.starts):
            record = start.record
            short = self._short_on(record.node_id, self.world.count(record.model_digest, record.layout))
            if short:
                self.world.starts.remove(start)
                fault = Fault(reason="device_memory_exhausted", message=f"no room on {short}")
                self.world.start_fails(record, fault)
        self.world.hosts_take_starts()

    def _held(self) -> Counter[tuple[str, str]]:
        held: Counter[tuple[str, str]] = Counter(self.world.hogs)
        for one in self.world.runners.values():
            held.update(_bytes_of(one, self.world))
        return held

    def _short_on(self, node_id: str, report: MemoryReport) -> str:
        held = self._held()
        wanted = {part.device_id: part.total_bytes + PROCESS_BYTES for part in report.devices}
        wanted["cpu"] = report.host.total_bytes
        for device in self.all_nodes[node_id].devices:
            if wanted.get(device.id, 0) and held[node_id, device.id] + wanted[device.id] > device.total_bytes:
                return device.id
        return ""

    def _loaded(self, placement_id: str, generation: int) -> None:
        one = self.world.runners.get(placement_id)
        if one is not None and one.view.generation == generation and one.view.state in STARTING_STATES:
            self.shapes[len(one.view.layout.devices)] += 1
            self.world.load(placement_id, 1.0)

    def _arrive(self) -> None:
        caller = f"c{self.events}"
        name = f"m{min(int(self._random.expovariate(0.1)), MODELS - 1)}"
        self.world.ensure(caller, name, context_tokens=self._random.choice([None, None, 2048, 8192]))
        self._waiting[caller] = None
        self.after(self._random.expovariate(ARRIVALS_PER_S), self._arrive)

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
        match chance.choice(["runner", "node", "hog", "hog", "measure", "leader"]):
            case "runner" if world.runners:
                world.runner_dies(chance.choice(sorted(world.runners)))
            case "node":
                used = sorted({one.node_id for one in world.runners.values()} & world.nodes.keys())
                name = chance.choice(used or sorted(world.nodes))
                away = world.nodes.pop(name)
                self.after(chance.choice([4.0, 120.0]), partial(world.nodes.__setitem__, name, away))
            case "hog":
                self._hog()
            case "measure" if world.measures:
                world.measure_fails(Fault(reason="model_unavailable", message="the measurement failed: signal 11"))
            case "leader":
                world.lose_leadership()
                self.after(3.0, world.lead)
        self.after(chance.uniform(20, 60), self._break_something)

    def _hog(self) -> None:
        """Somebody else takes half of what is free on every device of a node, and lets go of it later."""
        name = self._random.choice(sorted(self.all_nodes))
        held = self._held()
        for device in self.all_nodes[name].devices:
            if device.id != "cpu":
                free = device.total_bytes - held[name, device.id]
                self.world.hogs[name, device.id] = self.world.hogs.get((name, device.id), 0) + free // 2
        self.after(200, partial(self._let_go, name))

    def _let_go(self, name: str) -> None:
        for key in [key for key in self.world.hogs if key[0] == name]:
            del self.world.hogs[key]

    def check(self) -> None:
        """Memory as processes hold it, what is promised, and answers as callers got them."""
        totals = {}
        for (node_id, device_id), held in self._held().items():
            total = next(device.total_bytes for device in self.all_nodes[node_id].devices if device.id == device_id)
            totals[node_id, device_id] = total
            assert held <= total, f"seed {self.seed}: {node_id} {device_id} holds {held} of {total}"
        if self.events % 10:
            return
        books = self.world.core.books
        reserved = {f"load:{job.id}" for job in books.jobs.values() if job.state in UNPLACED}
        promised: Counter[tuple[str, str]] = Counter()
        for promise in promises(books):
            if promise.placement_id not in reserved:
                promised.update({(promise.node_id, name): count for name, count in promise.device_bytes.items()})
        for (node_id, device_id), count in promised.items():
            device = self.all_nodes[node_id].device(device_id)
            assert device is not None
            room = device.total_bytes - overhead_bytes(device, books.policy)
            assert count <= room, f"seed {self.seed}: {node_id} {device_id} is promised {count / GIB:.1f} GiB"
        for caller in self.world.asked:
            assert len(self.world.finals(caller)) <= 1, f"seed {self.seed}: {caller}"


def _bytes_of(one: FakeRunner, world: World) -> dict[tuple[str, str], int]:
    report = world.count(one.view.model_digest, one.view.layout)
    held = {(one.node_id, part.device_id): part.total_bytes + PROCESS_BYTES for part in report.devices}
    held[one.node_id, "cpu"] = report.host.total_bytes
    return held


@pytest.mark.behaviour("B-72", "B-133")
def test_an_hour_of_a_thousand_nodes_over_commit_nothing_and_answer_everybody_once() -> None:
    scale = Scale(seed=11, nodes=1000)
    scale.run(3600)
    asked = len(scale.world.asked)
    assert asked > 3600 * ARRIVALS_PER_S * 0.8
    assert scale.served > asked * 0.9
    assert scale.shapes[1] > 10
    assert sum(count for devices, count in scale.shapes.items() if devices > 1) > 10
    assert len(scale.world.noted("replica.lost")) > 3


def test_the_same_seed_tells_the_same_story() -> None:
    stories = []
    for _ in range(2):
        scale = Scale(seed=5, nodes=20)
        scale.run(900)
        stories.append([(note.event, dict(note.fields)) for note in scale.world.notes])
    assert stories[0] == stories[1]
