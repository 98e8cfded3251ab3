"""A hundred thousand random events: rule 1 after every single one of them.

Somebody else takes memory, hosts and runners crash, devices get lost and come back, figures grow old, leaders and
stores come and go, callers arrive and leave. The core sees only what hosts tell it, late or not at all; the state is
checked against what devices have, and against what processes really hold. Everything follows from the seed.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from common.spec.layout import Layout
from scheduler.core.sizes.ledger import overhead_bytes, pools_of
from scheduler.core.state.effects import Effect
from scheduler.core.state.events import Event, TimePassed
from scheduler.core.state.load_jobs import UNPLACED
from scheduler.core.state.promises import promises
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import MemoryReport
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import SERVING_STATES, STARTING_STATES, DeviceView, NodeView
from tests.unit.scheduler.builders import cpu, gpu, integrated, node
from tests.unit.scheduler.surroundings import PROCESS_BYTES
from tests.unit.scheduler.world import World, models

SEEDS = (1, 2, 3, 4)
EVENTS = 25_000  # of each
SIZES_GIB = {"a": 3.0, "b": 6.0, "c": 9.0, "d": 14.0, "e": 20.0, "f": 34.0, "g": 90.0}
STEP_S = (0.0, 0.0, 0.1, 0.5, 1.0, 3.0)
CALLERS_KEPT = 64
WATCH_BREAKS_S = 8.0  # gRPC asks after 5 s of silence, and waits 3 s for the answer


@dataclass(slots=True)
class CheckedWorld(World):
    """Checks the state after every event, and shows figures as old as they are."""

    truth: dict[str, NodeView] = field(default_factory=dict)  # every node there is, seen or not
    hogs: dict[tuple[str, str], int] = field(default_factory=dict)  # what others hold on a device
    silent: dict[str, tuple[float, NodeView]] = field(default_factory=dict)  # nodes whose figures stand still
    lost: set[tuple[str, str]] = field(default_factory=set)
    seed: int = 0
    events: int = 0
    _counted: dict[tuple[str, Layout], MemoryReport] = field(default_factory=dict)

    def count(self, digest: str, layout: Layout) -> MemoryReport:
        if (digest, layout) not in self._counted:
            self._counted[digest, layout] = World.count(self, digest, layout)
        return self._counted[digest, layout]

    def send(self, event: Event) -> list[Effect]:
        effects = World.send(self, event)
        self.events += 1
        self.check()
        return effects

    def views(self) -> tuple[NodeView, ...]:
        found = []
        for one in self.nodes.values():
            if one.id in self.silent:
                since_s, old = self.silent[one.id]
                found.append(replace(old, report_age_s=self.now_s - since_s, suspect=self.now_s > since_s + 2.0))
            else:
                found.append(self.view_of(one))
        return tuple(found)

    def view_of(self, one: NodeView) -> NodeView:
        """Return the view that the host of a node would report now."""
        view = self._view(one)
        return replace(view, devices=tuple(self._shown(view.id, device) for device in view.devices))

    def _shown(self, node_id: str, device: DeviceView) -> DeviceView:
        is_lost = (node_id, device.id) in self.lost
        free = max(0, device.free_bytes - self.hogs.get((node_id, device.id), 0))
        return replace(device, free_bytes=free, lost=is_lost, usable=not is_lost)

    def room(self, node_id: str, device: DeviceView) -> int:
        """Return the bytes that are really free on a device, and in the memory that it comes out of."""
        held, least = self.held(), device.total_bytes
        for pool_id in pools_of(device):
            members = [one for one in self.truth[node_id].devices if pool_id in pools_of(one)]
            total = max(one.total_bytes for one in members)
            used = sum(held[node_id, one.id] + self.hogs.get((node_id, one.id), 0) for one in members)
            least = min(least, total - used)
        return least

    def check(self) -> None:
        """Rule 1, device by device and pool by pool: in the state of the core and in truth."""
        state = self.core.state
        # A load that still evicts has promised itself what others hold: a claim, not bytes.
        claims = {
            f"load:{job.id}" if job.record is None else job.record.placement_id
            for job in state.jobs.values()
            if job.state in UNPLACED and job.placement is not None
        }
        promised: Counter[tuple[str, str]] = Counter()
        for promise in promises(state):
            if promise.placement_id not in claims:
                promised.update({(promise.node_id, name): count for name, count in promise.device_bytes.items()})
        held = self.held()
        for node_id, view in self.truth.items():
            shared: Counter[str] = Counter()
            really: Counter[str] = Counter()
            for device in view.devices:
                count = promised[node_id, device.id]
                where = f"seed {self.seed}, event {self.events}: {node_id} {device.id}"
                assert count <= device.total_bytes - overhead_bytes(device, state.policy), where
                for pool_id in pools_of(device):
                    shared[pool_id] += count
                    really[pool_id] += held[node_id, device.id]
            for device in view.devices:
                keeper = view.device("cpu") if device.pool_id == "host" else device
                assert keeper is not None
                where = f"seed {self.seed}, event {self.events}: {node_id} pool {device.pool_id}"
                assert shared[device.pool_id] <= keeper.total_bytes - overhead_bytes(keeper, state.policy), where
                assert really[device.pool_id] <= keeper.total_bytes, where


@dataclass(slots=True)
class Chaos:
    """Chooses what happens next."""

    seed: int
    world_type: type[CheckedWorld] = CheckedWorld
    world: CheckedWorld = field(init=False)
    happened: Counter[str] = field(default_factory=Counter)
    callers: list[str] = field(default_factory=list)
    asked: int = 0
    answered: int = 0
    _random: random.Random = field(init=False)
    _reported_s: float = 0.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        sizes = {f"digest-{name}": size for name, size in SIZES_GIB.items()}
        # Sizes are given: what is chosen by itself has tests of its own, and makes plans of many steps.
        policy = Policy(
            context_tokens=2048, num_parallel=1, keep_alive_ms=20_000, load_stall_s=60.0, load_waiters_max=8,
            pipeline_backends=frozenset(),
        )  # fmt: skip
        self.world = self.world_type(policy=policy, sizes_gib=sizes, cache_gib_per_slot=0.2, seed=self.seed)
        files = models(*SIZES_GIB)
        every = (
            node("n0", devices=(gpu("g0", free=24, total=24), gpu("g1", free=16, total=16), cpu(free=48, total=48))),
            node("n1", devices=(gpu("g0", free=12, total=12), gpu("g1", free=12, total=12), cpu(free=24, total=24))),
            node("n2", devices=(integrated(free=24, total=24), cpu(free=32, total=32))),
        )
        self.world.truth = {one.id: replace(one, models=files) for one in every}
        self.world.nodes = dict(self.world.truth)
        self.world.report()
        self.world.lead()

    def run(self, events: int) -> None:
        steps: list[tuple[Callable[[], None], int]] = [
            (self._report, 30),
            (self._ask, 8),
            (self._answer, 30),
            (self._load, 14),
            (self._work, 10),
            (self._leave, 2),
            (self._time, 6),
            (self._hog, 3),
            (self._crash, 2),
            (self._lose_device, 1),
            (self._fall_silent, 2),
            (self._lose_node, 1),
            (self._fail, 2),
            (self._trouble, 1),
        ]
        acts, weights = [act for act, _ in steps], [weight for _, weight in steps]
        while self.world.events < events:
            self._pass(self._random.choice(STEP_S))
            (act,) = self._random.choices(acts, weights)
            self.happened[act.__name__.lstrip("_")] += 1
            act()

    def _pass(self, seconds: float) -> None:
        """A watch that is silent for too long breaks."""
        until_s, breaks_s = self.world.now_s + seconds, self._reported_s + WATCH_BREAKS_S
        if self.world.now_s < breaks_s <= until_s:
            self.world.now_s = breaks_s
            self.world.lose_inventory()
        self.world.now_s = until_s

    def _report(self) -> None:
        self._reported_s = self.world.now_s
        self.world.report()

    def _time(self) -> None:
        wake_s = self.world.core.wake_at_s(self.world.now_s)
        if wake_s is not None:
            self._pass(min(wake_s - self.world.now_s, 30.0))
        self.world.send(TimePassed())

    def _ask(self) -> None:
        self.asked += 1
        caller = f"c{self.asked}"
        name = self._random.choice(sorted(SIZES_GIB))
        self.callers.append(caller)
        self.world.ensure(caller, name, context_tokens=self._random.choice([None, None, None, 4096]))
        while len(self.callers) > CALLERS_KEPT:
            self._forget(self.callers.pop(0))

    def _forget(self, caller: str) -> None:
        """Whoever had no answer by now leaves; nobody may have had two."""
        finals = self.world.finals(caller)
        assert len(finals) <= 1, f"seed {self.seed}: {caller} {finals}"
        self.answered += len(finals)
        if not finals:
            self.world.leave(caller)
        self.world.asked.discard(caller)
        self.world.answers.pop(caller, None)

    def _leave(self) -> None:
        if self.callers:
            self._forget(self.callers.pop(self._random.randrange(len(self.callers))))

    def _answer(self) -> None:
        """Whoever was told to do something does it, or some of it."""
        world = self.world
        for step in self._random.sample([world.measure_all, world.writes_done, self._hosts_start, self._hosts_stop], 3):
            step()
        world.notes.clear()
        world.all_starts.clear()
        world.all_stops.clear()

    def _hosts_start(self) -> None:
        """A host checks by itself: less may be free than was last told, and what is lost starts nothing."""
        world = self.world
        for start in list(world.starts):
            record = start.record
            report = world.count(record.model_digest, record.layout)
            wanted = {part.device_id: part.total_bytes + PROCESS_BYTES for part in report.devices}
            wanted["cpu"] = wanted.get("cpu", 0) + report.host.total_bytes
            devices = [one for one in world.truth[record.node_id].devices if wanted.get(one.id)]
            runs = record.placement_id in world.runners
            if not runs and any(wanted[one.id] > world.room(record.node_id, one) for one in devices):
                world.starts.remove(start)
                self.happened["host refused"] += 1
                world.start_fails(record, Fault(reason="device_memory_exhausted", message="taken meanwhile"))
        world.hosts_take_starts()

    def _hosts_stop(self) -> None:
        self._hosts_start()
        self.world.stops_done()

    def _load(self) -> None:
        for placement_id, one in list(self.world.runners.items()):
            if one.view.state in STARTING_STATES:
                fraction = self._random.choice([0.3, 1.0, 1.0])
                self.world.load(placement_id, fraction, telling=self._random.random() < 0.7)
                self.happened["loaded"] += fraction == 1.0

    def _work(self) -> None:
        for placement_id, one in self.world.runners.items():
            if one.view.state in SERVING_STATES:
                self.world.work(placement_id, busy=self._random.choice([0, 0, 1, 3]))

    def _hog(self) -> None:
        """Somebody else takes a part of what is really free, or lets go of it."""
        world = self.world
        if world.hogs and self._random.random() < 0.6:
            del world.hogs[self._random.choice(sorted(world.hogs))]
            return
        name = self._random.choice(sorted(world.truth))
        device = self._random.choice(world.truth[name].devices)
        key = (name, device.id)
        taken = int(max(0, world.room(name, device)) * self._random.uniform(0.2, 0.9))
        world.hogs[key] = world.hogs.get(key, 0) + taken

    def _crash(self) -> None:
        if not self.world.runners:
            return
        placement_id = self._random.choice(sorted(self.world.runners))
        reason = self._random.choice(["runner_lost", "device_memory_exhausted"])
        if self._random.random() < 0.5:
            self.world.crash(placement_id, Fault(reason=reason, message="signal 6"))
        else:
            self.world.runner_dies(placement_id)

    def _lose_device(self) -> None:
        world = self.world
        if world.lost and self._random.random() < 0.6:
            world.lost.discard(self._random.choice(sorted(world.lost)))
            return
        name = self._random.choice(sorted(world.truth))
        device = self._random.choice(world.truth[name].devices)
        if device.id != "cpu":
            world.lost.add((name, device.id))

    def _fall_silent(self) -> None:
        """The figures of a node stand still, and grow old; or it speaks again."""
        world = self.world
        if world.silent and self._random.random() < 0.7:
            del world.silent[self._random.choice(sorted(world.silent))]
        elif world.nodes:
            name = self._random.choice(sorted(world.nodes))
            world.silent.setdefault(name, (world.now_s, world.view_of(world.nodes[name])))

    def _lose_node(self) -> None:
        world = self.world
        away = sorted(world.truth.keys() - world.nodes.keys())
        if away and self._random.random() < 0.7:
            world.nodes[away[0]] = world.truth[away[0]]
        elif len(world.nodes) > 1:
            world.nodes.pop(self._random.choice(sorted(world.nodes)))

    def _fail(self) -> None:
        world = self.world
        if world.starts:
            reason = self._random.choice(["device_memory_exhausted", "model_unavailable", "runner_lost"])
            world.start_fails(world.starts.pop(0).record, Fault(reason=reason, message="words"))
        elif world.writes:
            world.writes_fail(Fault(reason="model_unavailable", message="state store unreachable"))
        elif world.measures:
            world.measure_fails(Fault(reason="request_timeout", message="no answer in 20 s"))

    def _trouble(self) -> None:
        world = self.world
        match self._random.choice(["watch", "leader", "process", "store"]):
            case "watch":
                world.lose_inventory()
            case "leader":
                world.lose_leadership()
                world.writes.clear()
                world.lead()
            case "process":
                self.callers.clear()  # their connections are gone with it
                world.asked.clear()
                world.answers.clear()
                world.restart_scheduler(prefix=f"r{world.events}-")
                world.report()
                world.lead()
            case "store":
                world.store.clear()


@pytest.mark.timeout(600)
@pytest.mark.behaviour("B-131", "B-133")
@pytest.mark.parametrize("seed", SEEDS)
def test_rule_1_holds_after_each_of_100_000_random_events(seed: int) -> None:
    chaos = Chaos(seed=seed)
    chaos.run(EVENTS)
    assert chaos.happened["loaded"] > 300, chaos.happened
    assert chaos.happened["host refused"] > 5, chaos.happened
    assert chaos.answered > 300, (chaos.answered, chaos.asked)
    assert all(chaos.happened[one] > 50 for one in ("hog", "crash", "lose_device", "fall_silent", "trouble"))
