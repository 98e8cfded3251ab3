"""Answers to the callers of a load: its next condition, and the remaining time."""

import pytest

from scheduler.core.loading.expecting import usual_load_s
from scheduler.core.state.effects import AnswerLoading, AnswerQueued
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.world import World, models, world_with

ONE_GPU = (gpu(total=20, free=20), cpu(free=3, total=3))


def queued(world: World, caller: str) -> list[AnswerQueued]:
    return [one for one in world.answers.get(caller, []) if isinstance(one, AnswerQueued)]


def loading(world: World, caller: str) -> list[AnswerLoading]:
    return [one for one in world.answers.get(caller, []) if isinstance(one, AnswerLoading)]


def begin(world: World, caller: str, name: str) -> None:
    world.ensure(caller, name)
    world.measure_all()
    world.writes_done()
    world.hosts_take_starts()


def load_in(world: World, caller: str, name: str, seconds: float) -> str:
    """A whole load that takes so long; its placement."""
    before = set(world.runners)
    begin(world, caller, name)
    (placement,) = set(world.runners) - before
    world.pass_time(seconds)
    world.load(placement, 1.0)
    assert world.is_ready(caller)
    return placement


def test_a_load_that_is_measured_says_so_and_no_time_before_any_load_was_seen() -> None:
    world = world_with(node())
    world.ensure("c")
    assert [(one.waits_for, one.eta_s) for one in queued(world, "c")] == [("measuring", None)]


def test_a_load_goes_on_at_its_own_rate() -> None:
    world = world_with(node())
    begin(world, "c", "m")
    world.pass_time(10)
    world.load("p1", 0.01)
    assert loading(world, "c")[-1].eta_s is None, "a hundredth tells nothing"
    world.load("p1", 0.25)
    last = loading(world, "c")[-1]
    assert last.eta_s == pytest.approx(30, abs=1)
    assert last.waits_for == ""
    world.load("p1", 1.0)
    assert loading(world, "c")[-1].eta_s == 0


def test_a_model_that_was_loaded_before_is_expected_to_take_as_long() -> None:
    machine = node(devices=ONE_GPU, models=models("m", "n"))
    world = world_with(machine, m=15, n=15)
    load_in(world, "c1", "m", 20)
    world.pass_time(30)
    world.ensure("c2", "n")
    told = queued(world, "c2")[-1]
    assert told.waits_for == "measuring"
    assert told.eta_s == pytest.approx(20, abs=1), "files of one size"
    world.measure_all()
    assert queued(world, "c2")[-1].waits_for == "m:latest to be gone"


def test_what_busy_replicas_hold_is_waited_for_by_name_and_for_nobody_knows_how_long() -> None:
    world = world_with(node(devices=ONE_GPU, models=models("m", "n")), m=15, n=15)
    placement = load_in(world, "c1", "m", 20)
    world.work(placement, busy=1)
    world.pass_time(20)
    world.ensure("c2", "n")
    world.measure_all()
    last = queued(world, "c2")[-1]
    assert (last.position, last.waits_for, last.eta_s) == (1, "memory that m:latest holds", None)
    count = len(queued(world, "c2"))
    world.pass_time(5)
    assert len(queued(world, "c2")) == count, "told once"


def test_a_load_behind_another_one_on_its_device_waits_for_both() -> None:
    world = world_with(node(devices=(gpu(total=90, free=90), cpu(free=3, total=3)), models=models("seen", "m", "n")))
    load_in(world, "c0", "seen", 20)
    world.pass_time(30)
    begin(world, "c1", "m")
    world.pass_time(5)
    world.ensure("c2", "n")
    world.measure_all()
    last = queued(world, "c2")[-1]
    assert last.waits_for == "the load of m:latest"
    assert last.eta_s == pytest.approx(35, abs=2), "what is left of the first, and its own"


def test_a_load_tells_nothing_about_one_that_is_much_larger() -> None:
    world = world_with(node(models=models("m", "n")))
    state = world.core.state
    load_in(world, "c", "m", 20)
    ((key, known),) = ((digest, one) for digest, one in state.models.items() if one.demand.load_s is not None)
    seen = known.demand
    digest = next(one.digest for one in models("m", "n") if one.digest != key)
    assert usual_load_s(state, digest) == pytest.approx(20, abs=1)
    known.demand = seen.loaded_in(20, seen.load_bytes // 2)
    assert usual_load_s(state, digest) == pytest.approx(40, abs=1)
    known.demand = seen.loaded_in(20, seen.load_bytes // 10)
    assert usual_load_s(state, digest) is None
