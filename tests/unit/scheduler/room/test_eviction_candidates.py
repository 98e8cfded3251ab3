"""Evictions for a load through the whole core: kept replicas, stops under way, failed stops."""

import pytest

from scheduler.core.state.events import StopEnded
from scheduler.core.values.faults import Fault
from scheduler.core.values.view import RunnerState
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.constraint_commands import TWO_GPUS
from tests.unit.scheduler.keeping.test_scheduler_keeping import ONE_GPU, loaded, use
from tests.unit.scheduler.world import World, models, world_with

NAMES = models("m", "n", "o")


def two_loaded() -> World:
    """m and n on a GPU each, idle for a while."""
    world = world_with(node(devices=TWO_GPUS, models=NAMES), m=16, n=16, o=16)
    for name in ("m", "n"):
        loaded(name, world=world)
    world.pass_time(20)
    return world


def evicted(world: World) -> list[object]:
    return [note.fields["reason"] for note in world.noted("model.draining")]


def test_a_replica_of_the_wanted_minimum_is_not_evicted() -> None:
    world = loaded(world=world_with(node(devices=ONE_GPU, models=NAMES), m=16, n=16))
    world.want("m", replicas_min=1)
    world.pass_time(20)
    world.ensure("c", "n")
    world.pass_time(60)
    world.settle()
    assert world.route() == ["p1"]
    assert not world.is_ready("c")


def test_of_two_replicas_only_the_one_above_the_minimum_is_evicted() -> None:
    world = world_with(node(devices=TWO_GPUS, models=NAMES), m=16, n=16)
    world.want("m", replicas_min=2)
    for _ in range(3):
        world.pass_time(1)
        world.settle()
    assert len(world.route()) == 2
    world.want("m", replicas_min=1)
    world.pass_time(20)
    world.ensure("c", "n")
    world.settle()
    world.pass_time(6)
    world.settle()
    assert world.is_ready("c")
    assert len(world.route()) == 1


def test_nobody_goes_for_a_load_while_what_was_unloaded_makes_the_same_room() -> None:
    world = two_loaded()
    world.unload("u", "m")
    world.writes_done()  # its host has been told; its memory is not back yet
    world.ensure("c", "o")
    world.measure_all()
    world.writes_done()
    assert world.route("n:latest") == ["p2"]
    world.settle()
    world.pass_time(6)
    world.settle()
    assert world.is_ready("c")
    assert world.route("n:latest") == ["p2"]
    assert evicted(world) == ["unload"]


def test_a_load_does_not_wait_for_one_that_its_host_cannot_stop() -> None:
    world = two_loaded()
    world.unload("u", "m")
    world.writes_done()
    (stop,) = world.stops
    world.ensure("c", "o")
    world.measure_all()
    world.writes_done()
    stuck = Fault(reason="unavailable", message="it does not end")
    world.send(StopEnded(placement_id=stop.placement_id, generation=stop.generation, fault=stuck))
    world.stops.clear()
    world.report()
    assert world.route("n:latest") == [], "the other idle one goes in its place"


def test_an_idle_replica_with_a_caller_on_the_way_is_not_evicted() -> None:
    world = loaded(world=world_with(node(devices=ONE_GPU, models=NAMES), m=16, n=16))
    world.pass_time(30)
    world.ensure("warm")  # sent to the replica; its request has not arrived
    world.ensure("c", "n")
    world.measure_all()
    world.pass_time(5)
    assert world.route() == ["p1"]
    world.pass_time(10)
    world.settle()
    assert world.is_ready("c")


def test_nothing_leaves_a_gpu_for_the_sake_of_ram() -> None:
    world = world_with(node(devices=(gpu(), cpu(free=12, total=12)), models=NAMES), m=16, n=16)
    loaded(world=world)
    world.pass_time(20)
    world.want("n", num_gpu=0)
    world.ensure("c", "n")
    world.settle()
    world.pass_time(40)
    assert world.route() == ["p1"]
    assert not world.is_ready("c")


def test_one_replica_more_does_not_take_the_place_of_one_that_serves() -> None:
    world = loaded(world=world_with(node(devices=ONE_GPU, models=NAMES), m=16))
    world.pass_time(20)
    world.want("m", replicas_min=2)
    world.pass_time(60)
    world.settle()
    assert world.route() == ["p1"]
    assert world.all_stops == []


def test_nothing_is_evicted_on_a_node_that_is_silent() -> None:
    world = two_loaded()
    world.cut_off.add("a")
    world.ensure("c", "o")
    world.pass_time(4)
    assert world.all_stops == []


def test_while_one_drains_for_a_load_no_second_one_does() -> None:
    world = two_loaded()
    world.want("o", max_shape="one_device")
    for placement_id in ("p1", "p2"):
        world.work(placement_id, busy=1)
    world.report()
    world.ensure("c", "o")
    world.measure_all()
    world.pass_time(100)
    assert evicted(world) == ["starved"]
    assert [one.view.state for one in world.runners.values()] == [RunnerState.READY] * 2


def test_of_busy_replicas_the_one_that_costs_least_drains() -> None:
    world = two_loaded()
    world.want("o", max_shape="one_device")
    world.want("m", priority=2)
    for placement_id in ("p1", "p2"):
        world.work(placement_id, busy=1)
    world.report()
    world.ensure("c", "o")
    world.measure_all()
    world.pass_time(40)
    assert world.route("m:latest") == ["p1"]
    assert world.route("n:latest") == []


def test_an_unload_while_it_loads_lets_whoever_waits_be_served_and_then_it_goes() -> None:
    world = world_with(node())
    world.ensure("c", keep_alive_ms=-1)
    world.measure_all()
    world.writes_done()
    world.unload("u")
    world.settle()
    assert world.is_ready("c")
    use(world)
    world.pass_time(2)
    world.settle()
    assert world.runners == {}


def test_an_unload_does_not_stop_the_load_of_one_that_is_kept() -> None:
    world = world_with(node())
    world.want("m", replicas_min=1)
    world.report()
    world.measure_all()
    world.writes_done()
    world.unload("u")
    world.settle()
    assert len(world.route()) == 1
    assert len(world.all_starts) == 1


@pytest.mark.parametrize(("kept", "left"), [(0, []), (2, ["p1", "p2"])])
def test_an_unload_stops_the_load_of_one_replica_more_unless_it_is_kept(kept: int, left: list[str]) -> None:
    world = loaded(world=world_with(node("a"), node("b")))
    world.want("m", replicas_min=2)
    world.report()
    world.measure_all()
    world.writes_done()
    world.want("m", replicas_min=kept)
    world.unload("u")
    world.settle()
    assert list(world.runners) == left
