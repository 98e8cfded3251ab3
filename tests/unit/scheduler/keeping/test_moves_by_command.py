"""An operator moves a model: the new replica serves before the old one ends, and answers go on there."""

import pytest

from common import errors
from scheduler.core.values.view import RunnerView
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.world import World, world_with


def serving() -> tuple[World, str, str]:
    """The model serves on one of two nodes; its node, and the other one."""
    world = world_with(node("a"), node("b"))
    world.ensure("first")
    world.settle()
    (here,) = places(world)
    return world, here, "b" if here == "a" else "a"


def places(world: World) -> list[str]:
    return [one.node_id for one in world.runners.values()]


def only(world: World) -> RunnerView:
    (one,) = world.runners.values()
    return one.view


def test_a_busy_replica_is_cut_off_once_the_other_one_serves() -> None:
    world, _, there = serving()
    (before,) = world.runners
    world.work(before, busy=1)
    world.ensure("operator", move_to=there)
    assert world.route() == [before], "until the other one serves"
    world.settle()
    world.pass_time(3)
    world.settle()
    assert places(world) == [there]
    assert world.is_ready("operator")
    assert [note.fields["reason"] for note in world.noted("model.draining")] == ["move"]
    assert world.all_stops[-1].drain_ms == 0, "its answers are not waited for: their states go with them"


def test_the_new_replica_takes_answers_of_the_old_one() -> None:
    world = world_with(node("a"), node("b"))
    world.ensure("first", context_tokens=8192)
    world.settle()
    (here,) = places(world)
    world.ensure("operator", move_to="b" if here == "a" else "a")
    world.settle()
    world.pass_time(3)
    world.settle()
    assert only(world).layout.context_tokens >= 8192


def test_a_node_without_room_refuses_in_the_words_of_a_placement_and_nothing_ends() -> None:
    world = world_with(node("a"), node("b", devices=(gpu(free=1, total=1), cpu(free=1, total=1))))
    world.ensure("first")
    world.settle()
    world.ensure("operator", move_to="b")
    world.settle()
    assert world.fault("operator").reason == errors.InsufficientMemory.reason
    assert places(world) == ["a"]
    assert len(world.route()) == 1


def test_a_drained_node_refuses() -> None:
    world, here, there = serving()
    world.drain(there)
    world.ensure("mover", move_to=there)
    world.settle()
    assert world.fault("mover").reason == errors.ModelUnavailable.reason
    assert places(world) == [here]


@pytest.mark.parametrize(
    ("to", "model", "reason"),
    [
        ("z", "m", errors.NodeNotFound.reason),
        ("a", "unknown", errors.ModelNotFound.reason),
    ],
)
def test_what_there_is_not_cannot_be_moved(to: str, model: str, reason: str) -> None:
    world, here, _ = serving()
    world.ensure("operator", model, move_to=to)
    assert world.fault("operator").reason == reason
    assert places(world) == [here]


def test_a_node_that_the_models_constraints_leave_out_refuses() -> None:
    world, here, there = serving()
    world.want("m", nodes=[here])
    world.ensure("operator", move_to=there)
    assert "nodes" in world.fault("operator").message
    world.settle()
    assert places(world) == [here]


def test_a_model_that_serves_nowhere_is_not_loaded_by_a_move() -> None:
    world = world_with(node("a"), node("b"))
    world.ensure("operator", move_to="b")
    assert "load it instead" in world.fault("operator").message
    assert not world.starts


def test_a_replica_that_is_there_already_is_the_answer() -> None:
    world, here, _ = serving()
    world.ensure("operator", move_to=here)
    assert world.is_ready("operator")
    world.settle()
    assert places(world) == [here]


def test_a_move_that_is_asked_for_again_is_the_same_one() -> None:
    world, _, there = serving()
    world.ensure("operator", move_to=there)
    world.ensure("again", move_to=there)
    world.settle()
    world.pass_time(3)
    world.settle()
    assert places(world) == [there]
    assert (world.is_ready("operator"), world.is_ready("again")) == (True, True)


def test_a_request_does_not_join_a_move() -> None:
    world, _, there = serving()
    (before,) = world.runners
    world.ensure("operator", move_to=there)
    world.ensure("second", context_tokens=4 * only(world).layout.context_tokens)
    world.settle()
    moved = [one for one in world.all_starts if one.record.node_id == there]
    assert moved, "the move has kept its node"
    assert before not in world.runners
