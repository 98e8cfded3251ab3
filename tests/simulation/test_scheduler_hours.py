"""Hours of a cluster in seconds: the real core in virtual time, seeded arrivals and faults, promises always checked."""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest

from scheduler.core.state.effects import AnswerReady
from scheduler.core.values.faults import Fault
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import SERVING_STATES, STARTING_STATES, NodeView, RunnerState
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.world import World, models

NODES = 6
MODELS = 14
MINUTES = 45
ARRIVALS_PER_S = 0.25


@dataclass(slots=True)
class Hours:
    """Drives a world: who asks when, how long loads and answers take, what breaks."""

    seed: int
    world: World = field(init=False)
    nodes: dict[str, NodeView] = field(init=False)
    served: int = 0
    deaths: int = 0
    _agenda: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)
    _random: random.Random = field(init=False)
    _calls: "itertools.count[int]" = field(default_factory=itertools.count)
    _loading: set[tuple[str, int]] = field(default_factory=set)
    _waiting: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        names = [f"m{number}" for number in range(MODELS)]
        sizes = {f"digest-{name}": self._random.choice([3.0, 6.0, 9.0, 14.0, 20.0, 40.0]) for name in names}
        self.world = World(policy=Policy(keep_alive_ms=120_000), sizes_gib=sizes, cache_gib_per_slot=0.2)
        for number in range(NODES):
            total = self._random.choice([16, 24, 48])
            devices = (gpu("g0", free=total, total=total), gpu("g1", free=16, total=16), cpu(free=48, total=48))
            files = models(*self._random.sample(names, k=MODELS // 2))
            self.world.nodes[f"n{number}"] = node(f"n{number}", devices=devices, models=files)
        self.nodes = dict(self.world.nodes)
        self.world.report()
        self.world.lead()

    def run(self, minutes: float) -> None:
        """Let the time pass; the world is checked after every second."""
        begin_s = self.world.now_s
        for second in range(round(minutes * 60)):
            self.at(begin_s + second, self._second)
        self.at(begin_s, self._arrive)
        self.at(begin_s + 100, self._break_something)
        while self._agenda:
            moment_s, _, act = heapq.heappop(self._agenda)
            if moment_s > begin_s + minutes * 60:
                return
            self.world.now_s = max(self.world.now_s, moment_s)
            act()

    def at(self, moment_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (moment_s, next(self._order), act))

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(self.world.now_s + seconds, act)

    def _second(self) -> None:
        self.world.report()
        self._surroundings_answer()
        self.check()

    def _surroundings_answer(self) -> None:
        world = self.world
        for _ in range(3):
            world.measure_all()
            world.writes_done()
            self._hosts_check_memory()
            world.hosts_take_starts()
            world.stops_done()
        for placement_id, one in world.runners.items():
            key = (placement_id, one.view.generation)
            if one.view.state in STARTING_STATES and key not in self._loading:
                self._loading.add(key)
                size_gib = world.sizes_gib[one.view.model_digest]
                self.after(0.5 + size_gib * self._random.uniform(0.1, 0.5), partial(self._loaded, *key))
        for caller in [one for one in self._waiting if world.finals(one)]:
            self._waiting.discard(caller)
            (final,) = world.finals(caller)
            if isinstance(final, AnswerReady):
                self._use(final.model_name)

    def _hosts_check_memory(self) -> None:
        """One start in fifty meets less free memory than planned: another process was quicker."""
        for start in list(self.world.starts):
            if self._random.random() < 0.02:
                self.world.starts.remove(start)
                self.world.start_fails(start.record, Fault(reason="device_memory_exhausted", message="taken"))

    def _loaded(self, placement_id: str, generation: int) -> None:
        one = self.world.runners.get(placement_id)
        if one is not None and one.view.generation == generation and one.view.state in STARTING_STATES:
            self.world.load(placement_id, 1.0)
            self._surroundings_answer()

    def _arrive(self) -> None:
        caller = f"c{next(self._calls)}"
        known = sorted({model.name for one in self.nodes.values() for model in one.models})
        # A few models are asked for most of the time.
        name = known[min(int(self._random.expovariate(0.35)), len(known) - 1)]
        self.world.ensure(caller, name, context_tokens=self._random.choice([None, None, None, 2048, 8192]))
        self._waiting.add(caller)
        self.after(self._random.expovariate(ARRIVALS_PER_S), self._arrive)
        if self._random.random() < 0.05:
            self.after(1.0, lambda: self._leave(caller))

    def _leave(self, caller: str) -> None:
        if caller in self._waiting and not self.world.finals(caller):
            self._waiting.discard(caller)
            self.world.leave(caller)

    def _use(self, model_name: str) -> None:
        serving = [
            placement_id
            for placement_id, one in self.world.runners.items()
            if one.view.model_name == model_name and one.view.state in SERVING_STATES
        ]
        if serving:
            placement_id = self._random.choice(sorted(serving))
            self.served += 1
            self.world.work(placement_id, busy=self.world.runners[placement_id].view.slots_busy + 1)
            self.after(self._random.expovariate(1 / 8), lambda: self._done(placement_id))

    def _done(self, placement_id: str) -> None:
        one = self.world.runners.get(placement_id)
        if one is not None and one.view.slots_busy:
            self.world.work(placement_id, busy=one.view.slots_busy - 1)

    def _break_something(self) -> None:
        world = self.world
        match self._random.choice(["runner", "runner", "node", "leader", "watch"]):
            case "runner" if world.runners:
                self.deaths += 1
                world.runner_dies(self._random.choice(sorted(world.runners)))
            case "node" if len(world.nodes) > 1:
                name = self._random.choice(sorted(world.nodes))
                away = world.nodes.pop(name)
                self.after(self._random.choice([2.0, 30.0]), partial(world.nodes.__setitem__, name, away))
            case "leader":
                world.lose_leadership()
                self.after(3.0, world.lead)
            case "watch":
                world.lose_inventory()
        self.after(self._random.uniform(20, 90), self._break_something)

    def check(self) -> None:
        """Memory as the processes hold it, and answers as callers got them."""
        world = self.world
        held = world.held()
        for view in self.nodes.values():
            for device in view.devices:
                assert held[view.id, device.id] <= device.total_bytes, f"seed {self.seed}: {view.id} {device.id}"
        for caller in world.asked:
            assert len(world.finals(caller)) <= 1, f"seed {self.seed}: {caller}"
        assert all(one.view.state is not RunnerState.ERROR for one in world.runners.values())


@pytest.mark.behaviour("B-133", "B-135")
@pytest.mark.parametrize("seed", [1, 2])
def test_hours_of_arrivals_and_faults_over_commit_nothing_and_answer_everybody_once(seed: int) -> None:
    hours = Hours(seed=seed)
    hours.run(MINUTES)
    world = hours.world
    faults = Counter(world.fault(one).reason for one in world.asked if world.finals(one) and not world.is_ready(one))
    asked = len(world.asked)
    assert asked > MINUTES * 60 * ARRIVALS_PER_S * 0.7
    assert hours.served > asked * 0.8, f"seed {seed}: {faults}"
    assert hours.deaths > 3
    assert set(faults) <= {
        "model_unavailable",
        "device_memory_exhausted",
        "insufficient_memory",
        "model_not_found",
        "runner_lost",
        "store_unreachable",
    }
    assert len(world.noted("model.evicted")) > 10


def test_a_simulation_is_replayable_from_its_seed() -> None:
    stories = []
    for _ in range(2):
        hours = Hours(seed=7)
        hours.run(5)
        stories.append([(note.event, dict(note.fields)) for note in hours.world.notes])
    assert stories[0] == stories[1]
