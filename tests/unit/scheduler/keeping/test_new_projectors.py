"""A projector that appears beside a model, or another one: the model is loaded with it, then the old replica goes."""

from dataclasses import replace

from tests.unit.scheduler.builders import cpu, gpu, model, node
from tests.unit.scheduler.world import World, world_with


def world_where(room_gib: float = 24, projector: str = "") -> World:
    file = replace(model("m:latest"), projector_digest=projector)
    return world_with(
        node("a", devices=(gpu("g0", free=room_gib, total=room_gib), cpu(free=3, total=3)), models=(file,)), m=8
    )


def put_beside(world: World, projector: str) -> None:
    """The file is there, and the next report says so."""
    known = world.nodes["a"]
    world.nodes["a"] = replace(known, models=tuple(replace(file, projector_digest=projector) for file in known.models))
    world.report()
    world.settle()


def projectors(world: World) -> list[str]:
    return sorted(one.view.layout.projector_digest for one in world.runners.values())


def test_a_replica_is_loaded_with_a_projector_that_appears_or_changes_and_the_old_one_goes() -> None:
    world = world_where()
    world.ensure("c")
    world.settle()
    for projector in ("p", "q"):
        put_beside(world, projector)
        world.pass_time(40)
        world.settle()
        world.pass_time(20)
        assert projectors(world) == [projector]


def test_the_old_replica_serves_until_the_new_one_does_and_where_there_is_no_room() -> None:
    world = world_where(room_gib=10)
    world.ensure("c")
    world.settle()
    before = set(world.runners)
    world.runners[next(iter(before))].view = replace(world.runners[next(iter(before))].view, slots_busy=1)
    put_beside(world, "p")
    world.pass_time(20)
    assert before <= set(world.runners)
    assert world.route() != []


def test_one_that_disappears_leaves_its_replica_alone() -> None:
    world = world_where(projector="p")
    world.ensure("c")
    world.settle()
    put_beside(world, "")
    world.pass_time(40)
    assert projectors(world) == ["p"]
