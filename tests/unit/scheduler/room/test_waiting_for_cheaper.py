"""A load that waits for a replica that costs little, rather than throw out one that is asked for all the time."""

from scheduler.core.room.evictable import STARVE_S
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.world import World, models, world_with

TWO_GPUS = (gpu("gpu-0"), gpu("gpu-1"), cpu(free=4, total=4))


def busy_day() -> World:
    """`daily` was asked for every ten seconds, `seldom` once, and was answered."""
    world = world_with(node(devices=TWO_GPUS, models=models("daily", "seldom", "new")), daily=20, seldom=20, new=20)
    world.ensure("c1", "daily")
    world.settle()
    for _ in range(12):
        _use(world, "daily")
    world.ensure("c2", "seldom")
    world.settle()
    _use(world, "seldom")
    return world


def _use(world: World, name: str) -> None:
    placement_id = _replica(world, name)
    world.work(placement_id, busy=1)
    world.pass_time(2)
    world.work(placement_id, busy=0)
    world.pass_time(8)


def _replica(world: World, name: str) -> str:
    return next(key for key, one in world.runners.items() if one.view.model_name == f"{name}:latest")


def _is_there(world: World, name: str) -> bool:
    return any(one.view.model_name == f"{name}:latest" for one in world.runners.values())


def test_it_waits_while_the_cheaper_one_answers_and_takes_that_place_then() -> None:
    world = busy_day()
    _use(world, "daily")
    world.work(_replica(world, "seldom"), busy=1)
    world.report()
    world.ensure("c3", "new")
    world.settle()
    assert _is_there(world, "daily")
    world.work(_replica(world, "seldom"), busy=0)
    world.pass_time(1)
    world.settle()
    assert world.is_ready("c3")
    assert _is_there(world, "daily")
    assert not _is_there(world, "seldom")


def test_it_does_not_wait_for_longer_than_the_dearer_one_is_worth() -> None:
    world = busy_day()
    _use(world, "daily")
    world.work(_replica(world, "seldom"), busy=1)
    world.report()
    world.ensure("c3", "new")
    world.settle()
    world.pass_time(STARVE_S)
    world.settle()
    assert world.is_ready("c3")
    assert not _is_there(world, "daily")
    assert _is_there(world, "seldom")  # it still answers


def test_it_does_not_wait_for_one_that_has_become_dearer() -> None:
    world = busy_day()
    for _ in range(12):
        _use(world, "seldom")
    world.work(_replica(world, "seldom"), busy=1)
    world.report()
    world.ensure("c3", "new")
    world.settle()
    assert world.is_ready("c3")
    assert not _is_there(world, "daily")
