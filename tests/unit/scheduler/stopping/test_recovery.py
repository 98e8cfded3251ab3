"""Recovery of a stopped replica's memory: device by device, by drivers' lists and by observed free bytes."""

from dataclasses import replace

import pytest

from scheduler.core.state.promises import promises
from scheduler.core.stopping.stopping import RECOVERY_S
from scheduler.core.values.memory import GIB
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import DeviceKind, HolderView, NodeView
from tests.unit.scheduler.builders import cpu, gpu, integrated, node
from tests.unit.scheduler.world import World, models, world_with

pytestmark = pytest.mark.behaviour("B-137")
LISTED = (HolderView(placement_id="p1", listed=True, held_bytes=9 * GIB),)
UNLISTED = (HolderView(placement_id="p1", listed=False),)


def hog(world: World, *device_ids: str, gib: float) -> None:
    """Another program takes as much as comes back."""
    one = world.nodes["a"]
    taken = [
        replace(device, free_bytes=device.free_bytes - int(gib * GIB)) if device.id in device_ids else device
        for device in one.devices
    ]
    world.nodes["a"] = replace(one, devices=tuple(taken))


def show_free(world: World, free_bytes: int) -> None:
    """The GPU is reported with so much."""
    first, *others = world.nodes["a"].devices
    world.nodes["a"] = replace(world.nodes["a"], devices=(replace(first, free_bytes=free_bytes), *others))
    world.report()


def stopping(*, listed: bool, known: bool = False) -> World:
    """One replica on a GPU, on its way out; its process is gone, and nothing has come back."""
    world = world_with(node(devices=(gpu(), cpu(free=3, total=3)), models=models("m", "n")), m=9, n=5)
    world.ensure("c", "m")
    world.settle()
    if listed:
        world.holders["a", "gpu-0"] = LISTED
    elif known:
        world.holders["a", "gpu-0"] = UNLISTED
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
        for one in promises(world.core.state)
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
    world.pass_time(RECOVERY_S - 1)
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


def test_a_process_that_only_its_host_knew_of_has_not_left_the_list() -> None:
    world = stopping(listed=False, known=True)
    world.holders["a", "gpu-0"] = ()
    world.pass_time(2)
    assert ("a", "gpu-0") in promised(world)


def test_a_driver_that_lists_a_process_no_more_has_let_go_although_its_host_still_names_it() -> None:
    world = stopping(listed=True)
    world.holders["a", "gpu-0"] = UNLISTED
    world.report()
    assert promised(world) == {}


def test_three_quarters_of_what_it_held_are_enough_and_a_byte_less_is_not() -> None:
    world = stopping(listed=False)
    stop = world.core.state.stops["p1"]
    (held,) = stop.held
    enough = stop.free_bytes_before["a", "gpu-0"] + 3 * held.freed_bytes["gpu-0"] // 4
    show_free(world, enough - 1)
    assert ("a", "gpu-0") in promised(world)
    show_free(world, enough)
    assert promised(world) == {}


@pytest.mark.parametrize(
    ("kind", "backend"), [(DeviceKind.INTEGRATED, "Vulkan"), (DeviceKind.GPU, "Metal"), (DeviceKind.GPU, "MTL")]
)
def test_what_shares_the_ram_is_back_with_the_process_whatever_is_free(kind: DeviceKind, backend: str) -> None:
    shared = replace(integrated(), kind=kind, backend=backend)
    world = world_with(node(devices=(shared, cpu(free=16, total=16)), models=models("m", "n")), m=5, n=5)
    world.ensure("c", "m")
    world.settle()
    world.report()
    world.unload("gone", "m")
    hog(world, "igpu", "cpu", gib=6)
    world.writes_done()
    assert ("a", "igpu") in promised(world)
    world.stops_done()
    world.report()
    assert promised(world) == {}
    assert [note.fields["reason"] for note in world.noted("model.evicted")] == ["unload"]


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


def borrowing() -> tuple[World, str, str]:
    """A replica over two nodes, its id, and the node that lends to it."""
    world = world_with(lending("near"), lending("far"), m=16)
    world.ensure("c")
    world.settle()
    ((placement_id, one),) = world.runners.items()
    (lender,) = {part.node_id for part in one.view.layout.devices if part.node_id}
    return world, placement_id, lender


def test_what_was_lent_is_back_when_its_process_is_gone_over_there() -> None:
    world, placement_id, lender = borrowing()
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


def unload_with_a_lender_that_lists_nothing() -> tuple[World, str]:
    """In a container: the lender knows its own process, and its driver's list says nothing."""
    world, placement_id, lender = borrowing()
    world.holders[lender, "g0"] = (HolderView(placement_id=placement_id, listed=False),)
    world.report()
    world.unload("gone")
    world.writes_done()
    return world, lender


def test_while_the_process_over_there_lives_what_it_lends_is_not_back_whatever_is_free() -> None:
    world, lender = unload_with_a_lender_that_lists_nothing()
    world.stops_done()
    first, *others = world.nodes[lender].devices
    risen = replace(first, free_bytes=first.total_bytes + first.free_bytes, total_bytes=2 * first.total_bytes)
    world.nodes[lender] = replace(world.nodes[lender], devices=(risen, *others))
    world.report()
    assert set(promised(world)) == {(lender, "g0")}
    world.holders[lender, "g0"] = ()
    world.report()
    assert promised(world) == {}


def test_a_lender_that_does_not_end_its_process_is_waited_for_no_longer_than_its_time() -> None:
    world, lender = unload_with_a_lender_that_lists_nothing()
    world.stops_done()
    world.pass_time(RECOVERY_S - 1)
    assert set(promised(world)) == {(lender, "g0")}
    world.pass_time(2)
    assert promised(world) == {}


def test_a_lender_that_is_gone_is_waited_for_by_nobody() -> None:
    world, lender = unload_with_a_lender_that_lists_nothing()
    del world.nodes[lender]
    world.pass_time(Policy().node_lost_s + 1)
    world.stops_done()
    world.report()
    assert world.core.state.stops == {}
    assert len(world.noted("model.evicted")) == 1


def test_what_was_lent_to_a_node_that_is_gone_is_waited_for_all_the_same() -> None:
    world, lender = unload_with_a_lender_that_lists_nothing()
    (head,) = {one.node_id for one in world.runners.values()}
    del world.nodes[head]
    world.cut_off.add(head)
    world.pass_time(Policy().node_lost_s - 1)
    world.stops_done()
    world.pass_time(2)
    assert world.core.state.node(head) is None
    assert set(promised(world)) == {(lender, "g0")}, "its process lives"
    world.pass_time(RECOVERY_S)
    assert promised(world) == {}


@pytest.mark.parametrize("listed", [True, False])
def test_ram_that_was_lent_is_back_when_its_process_is_gone_over_there(listed: bool) -> None:
    """A card of the lender that shares its RAM."""
    shared = integrated(free=12, total=12)
    far = replace(node("far", devices=(shared, cpu(free=12, total=12)), models=models("other")), rpc_enabled=True)
    world = world_with(lending("near"), far, m=16)
    world.ensure("c")
    world.settle()
    ((placement_id, one),) = world.runners.items()
    assert [part.node_id for part in one.view.layout.devices if part.node_id] == ["far"]
    world.holders["far", "igpu"] = (HolderView(placement_id=placement_id, listed=listed),)
    world.report()
    world.unload("gone")
    world.writes_done()
    world.stops_done()
    world.report()
    assert set(promised(world)) >= {("far", "igpu")}
    world.holders["far", "igpu"] = ()
    world.report()
    assert ("far", "igpu") not in promised(world)


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
