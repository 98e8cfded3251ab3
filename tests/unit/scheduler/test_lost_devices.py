"""Replicas on a lost device are placed elsewhere, and nothing else is touched."""

from dataclasses import replace

import pytest

from scheduler.core.state.promises import promises
from scheduler.core.values.view import NodeView
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.world import World, models, world_with

LOST_S = 5.0


def lose(one: NodeView, device_id: str) -> NodeView:
    """The node as its host reports it once the driver lists the device no more."""
    devices = tuple(
        replace(device, usable=False, lost=True, state_reason="its driver does not list it any more")
        if device.id == device_id
        else device
        for device in one.devices
    )
    return replace(one, devices=devices)


def two_replicas() -> World:
    """One model on each of two GPUs."""
    devices = (gpu("gpu-0"), gpu("gpu-1"), gpu("gpu-2"), cpu(free=4, total=4))
    world = world_with(node(devices=devices, models=models("m", "n")), m=16, n=16)
    for caller, name in (("c1", "m"), ("c2", "n")):
        world.ensure(caller, name)
        world.settle()
    assert [device_of(world, one) for one in ("p1", "p2")] == ["gpu-0", "gpu-1"]
    return world


def device_of(world: World, placement_id: str) -> str:
    (part,) = world.runners[placement_id].view.layout.devices
    return part.device_id


@pytest.mark.behaviour("B-130")
def test_a_replica_that_says_ready_on_a_device_that_is_gone_is_loaded_elsewhere() -> None:
    world = two_replicas()
    world.nodes["a"] = lose(world.nodes["a"], "gpu-0")
    world.pass_time(LOST_S + 2)
    assert world.route("m:latest") == []
    assert world.route("n:latest") == ["p2"]
    world.settle()
    assert set(world.runners) == {"p2"}
    world.ensure("c3", "m")
    world.settle()
    assert world.is_ready("c3")
    assert device_of(world, *world.route("m:latest")) == "gpu-2"
    assert [note.fields["reason"] for note in world.noted("model.evicted")] == ["device_lost"]


def test_a_device_that_is_back_in_time_was_only_silent() -> None:
    world = two_replicas()
    present = world.nodes["a"]
    world.nodes["a"] = lose(present, "gpu-0")
    world.pass_time(LOST_S - 2)
    world.nodes["a"] = present
    world.pass_time(20)
    assert world.route("m:latest") == ["p1"]
    assert world.all_stops == []


def test_sequences_that_still_run_may_end() -> None:
    world = two_replicas()
    world.work("p1", busy=1)
    world.nodes["a"] = lose(world.nodes["a"], "gpu-0")
    world.pass_time(LOST_S + 2)
    world.writes_done()
    assert world.route("m:latest") == []
    assert world.all_stops == []
    world.work("p1", busy=0)
    world.pass_time(2)
    world.writes_done()
    assert [stop.placement_id for stop in world.all_stops] == ["p1"]


def test_what_an_operator_keeps_is_loaded_again_unasked() -> None:
    world = two_replicas()
    world.want("m", replicas_min=1, pinned=True)
    world.nodes["a"] = lose(world.nodes["a"], "gpu-0")
    for _ in range(3):
        world.pass_time(LOST_S)
        world.settle()
    assert device_of(world, *world.route("m:latest")) == "gpu-2"


def test_a_load_on_a_device_that_is_gone_is_planned_again_and_the_old_one_stays_promised() -> None:
    devices = (gpu("gpu-0"), gpu("gpu-1"), cpu(free=4, total=4))
    world = world_with(node(devices=devices, models=models("m")), m=16)
    world.ensure("c", "m")
    world.measure_all()
    world.writes_done()
    world.hosts_take_starts()
    world.load("p1", 0.4)
    world.nodes["a"] = lose(world.nodes["a"], "gpu-0")
    world.pass_time(LOST_S + 1)
    world.measure_all()
    held = {one.placement_id: set(one.device_bytes) for one in promises(world.core.state)}
    assert "gpu-0" in held["p1"]
    world.settle()
    assert world.is_ready("c")
    assert device_of(world, *world.route("m:latest")) == "gpu-1"
    assert "p1" not in world.runners


def test_without_leadership_nothing_is_stopped_and_the_next_leader_does_it() -> None:
    world = two_replicas()
    world.lose_leadership()
    world.nodes["a"] = lose(world.nodes["a"], "gpu-0")
    world.pass_time(LOST_S + 2)
    assert world.route("m:latest") == ["p1"]
    world.lead()
    assert world.route("m:latest") == []


def test_what_was_stopped_is_not_stopped_again_before_an_inventory_shows_it() -> None:
    world = two_replicas()
    world.report()
    world.nodes["a"] = lose(world.nodes["a"], "gpu-0")
    world.pass_time(LOST_S + 2)
    world.writes_done()
    world.stops_done()
    world.pass_time(10, reporting=False)
    world.report()
    world.writes_done()
    assert [stop.placement_id for stop in world.all_stops] == ["p1"]
    assert set(world.runners) == {"p2"}


def test_a_device_of_a_node_whose_reports_are_not_live_is_not_known_to_be_gone() -> None:
    world = two_replicas()
    world.nodes["a"] = lose(world.nodes["a"], "gpu-0")
    world.report()
    world.lose_inventory()
    world.pass_time(LOST_S + 2, reporting=False)
    assert world.route("m:latest") == ["p1"]
    world.report()
    assert world.route("m:latest") == []
