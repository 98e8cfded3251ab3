"""An explanation names who is in the way, and why that does not help."""

from dataclasses import replace

from scheduler.core.planning.candidates import Verdict
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.world import World, models, world_with


def crowded() -> World:
    """One GPU with a busy replica, a pinned one and an idle one; a fourth model is larger than the idle one."""
    machine = node(devices=(gpu(total=40, free=40), cpu(free=3, total=3)), models=models("busy", "idle", "pin", "big"))
    world = world_with(machine, busy=12, idle=5, pin=10, big=20)
    for name in ("busy", "idle", "pin"):
        world.ensure(f"c-{name}", name)
        world.settle()
    world.pass_time(30)
    world.want("pin", pinned=True)
    (busy,) = world.route("busy:latest")
    world.work(busy, busy=1)
    world.report()
    return world


def reason(world: World) -> str:
    (found,) = {
        one.reason
        for one in world.explain("big").candidates
        if one.verdict is Verdict.SHORT_BYTES and one.device_ids == ("gpu-0",) and one.shape == "one_device"
    }
    return found


def test_a_short_device_tells_who_is_idle_busy_and_pinned() -> None:
    world = crowded()
    while world.explain("big").outcome == "measuring":
        world.measure_all()
    told = reason(world)
    assert "evicting idle:latest (5." in told
    assert told.endswith("is not enough; busy:latest is busy; pin:latest is pinned")


def test_what_waits_for_them_says_so_too() -> None:
    world = crowded()
    world.ensure("waits", "big")
    world.settle()
    assert world.finals("waits") == []
    told = [one.reason for one in world.explain("big", last=True).candidates if one.verdict is Verdict.SHORT_BYTES]
    assert any("busy:latest is busy" in one for one in told)


def test_where_nobody_is_nobody_is_named() -> None:
    world = world_with(node(devices=(replace(gpu(), free_bytes=0), cpu(free=1, total=1))), m=8)
    while world.explain().outcome == "measuring":
        world.measure_all()
    assert all("evicting" not in one.reason and " is busy" not in one.reason for one in world.explain().candidates)
