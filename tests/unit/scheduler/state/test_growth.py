"""Clients that differ in what they ask of a replica: what one load serves, and how large the next one is."""

from common.spec.load_options import LoadOptions
from scheduler.core.state.growth import ASKED_TOKENS_S
from tests.unit.scheduler.builders import node
from tests.unit.scheduler.constraint_commands import TWO_GPUS
from tests.unit.scheduler.keeping.test_scheduler_keeping import loaded
from tests.unit.scheduler.world import World, world_with


def sizes(world: World) -> list[int]:
    return [one.record.layout.context_tokens for one in world.all_starts]


def places(world: World) -> list[list[str]]:
    return [[part.device_id for part in one.record.layout.devices] for one in world.all_starts]


def came_and_went() -> World:
    """8192 was asked for a while ago, and has gone; a small one serves."""
    world = loaded(context_tokens=8192, keep_alive_ms=1000)
    world.pass_time(30)
    world.settle()
    assert world.runners == {}
    loaded(world=world, context_tokens=2048, keep_alive_ms=-1)
    return world


def test_a_replica_that_grows_takes_the_largest_context_of_the_last_minutes() -> None:
    world = came_and_went()
    world.ensure("c", context_tokens=4096)
    world.settle()
    assert sizes(world) == [8192, 2048, 8192]


def test_what_was_asked_too_long_ago_does_not_count() -> None:
    world = came_and_went()
    world.pass_time(ASKED_TOKENS_S)
    world.ensure("c", context_tokens=4096)
    world.settle()
    assert sizes(world) == [8192, 2048, 4096]


def test_one_replica_more_is_as_large_as_anybody_asked_lately() -> None:
    world = came_and_went()
    world.want("m", replicas_min=2, num_ctx=2048)
    world.report()
    world.settle()
    assert sizes(world) == [8192, 2048, 8192]


def test_a_larger_replica_leaves_as_many_of_the_smaller_ones_as_are_wanted() -> None:
    world = world_with(node("a"), node("b"), node("c"))
    world.want("m", replicas_min=2, num_ctx=2048)
    for _ in range(3):
        world.pass_time(1)
        world.settle()
    use_all(world)
    world.ensure("c", context_tokens=4096)
    world.settle()
    assert world.is_ready("c")
    world.pass_time(3)
    assert sizes(world) == [2048, 2048, 4096]
    assert len(world.route()) == 2


def use_all(world: World) -> None:
    for placement_id in world.route():
        world.work(placement_id, busy=1)
    world.report()
    for placement_id in world.route():
        world.work(placement_id, busy=0)
    world.report()


def test_a_load_that_is_not_decided_yet_takes_what_a_second_caller_asks_for() -> None:
    world = world_with(node(devices=TWO_GPUS))
    world.ensure("anything")
    world.ensure("here", options=LoadOptions(main_gpu=1))
    world.settle()
    assert world.is_ready("anything")
    assert world.is_ready("here")
    assert places(world) == [["gpu-1"]]


def test_callers_who_contradict_each_other_do_not_share_a_load() -> None:
    world = world_with(node(devices=TWO_GPUS))
    world.ensure("there", options=LoadOptions(main_gpu=0))
    world.ensure("here", options=LoadOptions(main_gpu=1))
    world.settle()
    assert world.is_ready("there")
    assert world.is_ready("here")
    assert [[part.device_id for part in one.record.layout.devices] for one in world.all_starts] == [
        ["gpu-0"],
        ["gpu-1"],
    ]
