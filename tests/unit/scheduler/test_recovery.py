"""When the memory of a stopped replica is back: device by device, by drivers' lists and by what is seen to be free."""

from dataclasses import replace

import pytest

from scheduler.core.books.promises import promises
from scheduler.core.values.memory import GIB
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import HolderView, NodeView
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.world import World, models, world_with

pytestmark = pytest.mark.behaviour("B-137")
LISTED = (HolderView(placement_id="p1", listed=True, held_bytes=9 * GIB),)


def hog(world: World, *device_ids: str, gib: float) -> None:
    """Another program takes as much as comes back."""
    one = world.nodes["a"]
    taken = [
        replace(device, free_bytes=device.free_bytes - int(gib * GIB)) if device.id in device_ids else device
        for device in one.devices
    ]
    world.nodes["a"] = replace(one, devices=tuple(taken))


def stopping(*, listed: bool) -> World:
    """One replica on a GPU, on its way out; its process is gone, and nothing has come back."""
    world = world_with(node(devices=(gpu(), cpu(free=3, total=3)), models=models("m", "n")), m=9, n=5)
    world.ensure("c", "m")
    world.settle()
    if listed:
        world.holders["a", "gpu-0"] = LISTED
    world.report()
    world.unload("gone", "m")
    hog(world, "gpu-0", gib=9.5)
    world.writes_done()
    world.stops_done()
    world.report()
    return world


def promised(world: World) -> dict[tuple[str, str], int]:
    return {
        (one.node_id, device_id): count
        for one in promises(world.core.books)
        for device_id, count in one.device_bytes.items()
        if count
    }


def test_a_process_that_has_left_the_drivers_list_holds_nothing_whatever_is_free() -> None:
    world = stopping(listed=True)
    assert ("a", "gpu-0") in promised(world)
    world.holders["a", "gpu-0"] = ()
    world.report()
    assert promised(world) == {}
    assert [note.fields["reason"] for note in world.noted("model.evicted")] == ["unload"]


def test_a_process_that_is_still_listed_holds_its_memory_for_so_long_at_most() -> None:
    world = stopping(listed=True)
    world.pass_time(Policy().recovery_s - 1)
    assert ("a", "gpu-0") in promised(world)
    world.pass_time(2)
    assert promised(world) == {}


def test_a_process_that_was_never_listed_has_not_left_the_list() -> None:
    """In a container the driver's process ids are others: then only free memory tells."""
    world = stopping(listed=False)
    world.pass_time(2)
    assert ("a", "gpu-0") in promised(world)
    hog(world, "gpu-0", gib=-9.5)
    world.report()
    assert promised(world) == {}


def test_each_device_comes_back_by_itself() -> None:
    pair = (gpu("gpu-0", free=12, total=12), gpu("gpu-1", free=12, total=12), cpu(free=3, total=3))
    world = world_with(node(devices=pair, models=models("m", "n")), m=16, n=5)
    world.ensure("c", "m")
    world.settle()
    world.holders["a", "gpu-0"] = world.holders["a", "gpu-1"] = LISTED
    world.report()
    world.unload("gone", "m")
    hog(world, "gpu-0", "gpu-1", gib=6)
    world.writes_done()
    world.stops_done()
    world.report()
    assert {device for _, device in promised(world)} == {"gpu-0", "gpu-1"}
    world.holders["a", "gpu-1"] = ()
    world.report()
    assert {device for _, device in promised(world)} == {"gpu-0"}
    world.ensure("next", "n")
    world.measure_all()
    world.writes_done()
    (start,) = world.starts
    assert [part.device_id for part in start.record.layout.devices] == ["gpu-1"]


def lending(name: str) -> NodeView:
    return replace(node(name, devices=(gpu("g0", free=12, total=12), cpu(free=3, total=3))), rpc_enabled=True)


def test_what_was_lent_is_back_when_its_process_is_gone_over_there() -> None:
    world = world_with(lending("near"), lending("far"), m=16)
    world.ensure("c")
    world.settle()
    ((placement_id, one),) = world.runners.items()
    (lender,) = {part.node_id for part in one.view.layout.devices if part.node_id}
    world.holders[lender, "g0"] = (HolderView(placement_id=placement_id, listed=True),)
    world.report()
    world.unload("gone")
    world.writes_done()
    world.stops_done()
    world.report()
    assert set(promised(world)) == {(lender, "g0")}, "its process lives"
    world.holders[lender, "g0"] = ()
    world.report()
    assert promised(world) == {}


def test_a_lender_that_is_gone_is_waited_for_by_nobody() -> None:
    world = world_with(lending("near"), lending("far"), m=16)
    world.ensure("c")
    world.settle()
    ((placement_id, one),) = world.runners.items()
    (lender,) = {part.node_id for part in one.view.layout.devices if part.node_id}
    world.holders[lender, "g0"] = (HolderView(placement_id=placement_id, listed=False),)
    world.report()
    world.unload("gone")
    world.writes_done()
    world.stops_done()
    world.pass_time(Policy().recovery_s + 1)
    assert promised(world) == {}


def test_a_process_that_holds_more_than_was_counted_is_promised_what_it_holds() -> None:
    world = world_with(node(devices=(gpu(), cpu(free=3, total=3))), m=9)
    world.ensure("c", "m")
    world.settle()
    world.report()
    before = promised(world)["a", "gpu-0"]
    world.holders["a", "gpu-0"] = (HolderView(placement_id="p1", listed=True, held_bytes=before - GIB),)
    world.report()
    assert promised(world)["a", "gpu-0"] == before
    world.holders["a", "gpu-0"] = (HolderView(placement_id="p1", listed=True, held_bytes=before + GIB),)
    world.report()
    assert promised(world)["a", "gpu-0"] == before + GIB
