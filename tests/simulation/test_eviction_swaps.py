"""Evictions over hours: two devices, four models, two fit. Swaps are compared with the fewest that are possible.

Two people ask for two models all day, two others for theirs now and then; at four paces, of which the fastest asks for
a model every few loads. Or all four take turns. The fewest loads that could have served the same requests in their
order are worked out afterwards, with the future known.

Where requests come by chance nothing tells when the next one comes. There, no order that cannot see the future keeps
within a tenth of the fewest (it is 1.13 of them with the true rates known, 1.4 where all rates are equal). What holds:
within a tenth of an order that knows the true rates, than which none is better. And where all take turns faster than a
model is loaded and past its first moments, whoever was just asked for, the best to throw out, is never there to be
taken: swaps are 1.5 of the fewest. The same begins where loads take as long as the gaps of what is used all day: with
loads of 20 s the fastest pace needs 1.11 of the fewest in the mean.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

import pytest

from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import SERVING_STATES, STARTING_STATES, RunnerView
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.world import World, models

HOURS = 5  # at the slowest pace; as many requests at any other
REPORT_S = 3
LOAD_S = 6.0
DAILY = ("m0", "m1")
SELDOM = ("m2", "m3")
FIT = 2
PACES = (1.0, 0.5, 0.25, 0.125)
WAIT_S_MAX = 60.0  # two waits for what is cheaper (STARVE_S each), if that long, and the loads


class Habit(StrEnum):
    """Pattern of requests: the gaps between them."""

    STEADY = "steady"  # two all day, two now and then
    TURNS = "turns"  # one after the other, all day
    CHANCE = "chance"  # as STEADY in the mean, but whenever


@dataclass(slots=True)
class Day:
    """Four people, four models, two devices that hold one model each."""

    seed: int
    context_tokens: tuple[int | None, ...] = (None,)
    pace: float = 1.0
    habit: Habit = Habit.STEADY
    longest_wait_s: float = 0.0
    world: World = field(init=False)
    sequence: list[str] = field(default_factory=list)  # models in the order of their requests
    _agenda: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: "itertools.count[int]" = field(default_factory=itertools.count)
    _random: random.Random = field(init=False)  # who asks when: the same whatever is thrown out
    _work: random.Random = field(init=False)  # how long answers take
    _calls: "itertools.count[int]" = field(default_factory=itertools.count)
    _loading: set[tuple[str, int]] = field(default_factory=set)
    _waiting: dict[str, tuple[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random, self._work = random.Random(self.seed), random.Random(-self.seed)
        names = (*DAILY, *SELDOM)
        policy = Policy(keep_alive_ms=-1)
        self.world = World(policy=policy, sizes_gib={f"digest-{name}": 17.0 for name in names})
        devices = (gpu("g0"), gpu("g1"), cpu(free=4, total=4))
        self.world.nodes = {"a": node("a", devices=devices, models=models(*names))}
        self.world.report()
        self.world.lead()

    def run(self) -> None:
        begin_s, end_s = self.world.now_s, self.world.now_s + HOURS * 3600 * self.pace
        for second in range(0, int(end_s - begin_s), REPORT_S):
            self._at(begin_s + second, self._report)
        for index, name in enumerate(DAILY + SELDOM):
            first_s = 45.0 * index if self.habit is Habit.TURNS else 90.0 * index
            if name in SELDOM and self.habit is not Habit.TURNS:
                first_s = self._random.uniform(60, 600)
            self._at(begin_s + first_s * self.pace, partial(self._somebody_asks, name))
        while self._agenda and self._agenda[0][0] < end_s:
            moment_s, _, act = heapq.heappop(self._agenda)
            self.world.now_s = max(self.world.now_s, moment_s)
            act()

    @property
    def loads(self) -> int:
        return len(self.world.all_starts)

    def _at(self, moment_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (moment_s, next(self._order), act))

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self._at(self.world.now_s + seconds, act)

    def _somebody_asks(self, name: str) -> None:
        self._ask(name)
        self._after(self._gap_s(name) * self.pace, partial(self._somebody_asks, name))

    def _gap_s(self, name: str) -> float:
        match self.habit:
            case Habit.TURNS:
                return self._random.uniform(170, 190)
            case Habit.CHANCE:
                return self._random.expovariate(1 / (180 if name in DAILY else 1350))
            case Habit.STEADY:
                return self._random.uniform(150, 210) if name in DAILY else self._random.uniform(900, 1800)

    def _ask(self, name: str) -> None:
        caller = f"c{next(self._calls)}"
        self.sequence.append(name)
        self._waiting[caller] = name, self.world.now_s
        self.world.ensure(caller, name, context_tokens=self._random.choice(self.context_tokens))
        self._answer()

    def _report(self) -> None:
        self.world.report()
        self._answer()

    def _answer(self) -> None:
        world = self.world
        for _ in range(3):
            world.measure_all()
            world.writes_done()
            world.hosts_take_starts()
            world.stops_done()
        for placement_id, one in world.runners.items():
            key = (placement_id, one.view.generation)
            if one.view.state in STARTING_STATES and key not in self._loading:
                self._loading.add(key)
                self._after(LOAD_S, partial(self._loaded, *key))
        for caller in [one for one in self._waiting if world.is_ready(one)]:
            name, asked_s = self._waiting.pop(caller)
            self.longest_wait_s = max(self.longest_wait_s, world.now_s - asked_s)
            self._use(name)

    def _loaded(self, placement_id: str, generation: int) -> None:
        one = self.world.runners.get(placement_id)
        if one is not None and one.view.generation == generation and one.view.state in STARTING_STATES:
            self.world.load(placement_id, 1.0)
            self._answer()

    def _use(self, name: str) -> None:
        serving = [
            key
            for key, one in self.world.runners.items()
            if one.view.model_name == f"{name}:latest" and one.view.state in SERVING_STATES
        ]
        placement_id = serving[0]
        self.world.work(placement_id, busy=self.world.runners[placement_id].view.slots_busy + 1)
        self._after(self._work.uniform(1, 4), partial(self._done, placement_id))

    def _done(self, placement_id: str) -> None:
        one = self.world.runners.get(placement_id)
        if one is not None and one.view.slots_busy:
            self.world.work(placement_id, busy=one.view.slots_busy - 1)


def fewest_loads(sequence: list[str]) -> int:
    """With the whole future known: the least number of loads that serves these requests in this order."""
    costs: dict[frozenset[str], int] = {frozenset(): 0}
    for name in sequence:
        following: dict[frozenset[str], int] = {}
        for held, cost in costs.items():
            if name in held:
                outcomes = [(held, cost)]
            elif len(held) < FIT:
                outcomes = [(held | {name}, cost + 1)]
            else:
                outcomes = [(held - {gone} | {name}, cost + 1) for gone in held]
            for state, total in outcomes:
                following[state] = min(total, following.get(state, total))
        costs = following
    return min(costs.values())


def loads_by_rates(sequence: list[str]) -> int:
    """Loads of the best order that knows how often each model is asked for, and nothing of the future."""
    held: set[str] = set()
    loads = 0
    for name in sequence:
        if name not in held:
            loads += 1
            if len(held) == FIT:
                held.remove(max(held, key=lambda one: (one in SELDOM, one)))
            held.add(name)
    return loads


def least_recently_used(state: ClusterState, runner: RunnerView, now_s: float) -> float:
    """Return a loss by the time since the last use alone."""
    return 1.0 / (1.0 + state.tracked[runner.placement_id].idle_s(now_s))


def first_in(state: ClusterState, runner: RunnerView, now_s: float) -> float:
    """Return a loss by the time since the load alone."""
    return 1.0 / (1.0 + max(0.0, now_s - state.tracked[runner.placement_id].ready_since_s))


def day_of(seed: int, *, pace: float = 1.0, habit: Habit = Habit.STEADY) -> Day:
    """A day that is over, on which nobody was refused and nobody waited for long."""
    day = Day(seed=seed, pace=pace, habit=habit)
    day.run()
    assert all(day.world.is_ready(one) for one in day.world.asked if one not in day._waiting)
    assert day.longest_wait_s <= WAIT_S_MAX
    return day


@pytest.mark.behaviour("B-136")
@pytest.mark.parametrize("pace", PACES)
def test_swaps_are_within_a_tenth_of_the_fewest_at_every_pace(pace: float) -> None:
    for seed in range(1, 4):
        day = day_of(seed, pace=pace)
        assert day.loads <= 1.1 * fewest_loads(day.sequence), f"seed {seed}"


@pytest.mark.behaviour("B-136")
def test_swaps_are_within_a_tenth_of_the_fewest_where_all_take_turns() -> None:
    for seed in range(1, 3):
        day = day_of(seed, habit=Habit.TURNS)
        assert day.loads <= 1.1 * fewest_loads(day.sequence), f"seed {seed}"


@pytest.mark.behaviour("B-136")
def test_where_requests_come_by_chance_swaps_are_within_a_tenth_of_the_best_without_foresight() -> None:
    days = [day_of(seed, habit=Habit.CHANCE) for seed in range(1, 5)]
    assert sum(day.loads for day in days) <= 1.1 * sum(loads_by_rates(day.sequence) for day in days)


@pytest.mark.behaviour("B-136")
@pytest.mark.parametrize("habit", [Habit.STEADY, Habit.TURNS])
def test_simpler_orders_need_more_swaps(habit: Habit, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = day_of(1, habit=habit).loads
    for order in (least_recently_used, first_in):
        monkeypatch.setattr("scheduler.core.room.evictable.loss_of_replica", order)
        assert loads * 1.2 < day_of(1, habit=habit).loads
