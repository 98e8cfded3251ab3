"""Operators change their minds about where a model lies: it moves, and never stops to serve for that."""

from dataclasses import replace

import pytest

from scheduler.core.keeping.moving import MOVE_PAUSE_S
from scheduler.core.loading.crashes import BROKEN_S
from scheduler.core.state.cluster_state import LoadFailures
from scheduler.core.values.faults import Fault
from scheduler.core.values.view import RunnerState
from tests.unit.scheduler.builders import cpu, gpu, model, node
from tests.unit.scheduler.world import World, world_with


def two_nodes() -> World:
    """The model serves on one of two nodes that both have it."""
    world = world_with(node("a"), node("b"))
    world.ensure("first")
    world.settle()
    return world


def places(world: World) -> list[str]:
    return [one.node_id for one in world.runners.values()]


def other(world: World) -> str:
    (here,) = places(world)
    return "b" if here == "a" else "a"


def test_an_idle_replica_moves_to_the_node_that_is_wanted() -> None:
    world = two_nodes()
    there = other(world)
    (before,) = world.runners
    world.want("m", nodes=[there])
    assert world.route() == [before], "until the other one serves"
    world.settle()
    world.pass_time(3)
    world.settle()
    assert places(world) == [there]
    (now,) = world.runners
    assert world.route() == [now]
    assert [one.record.node_id for one in world.all_starts][-1] == there
    assert [note.fields["reason"] for note in world.noted("model.draining")] == ["constraints"]


def test_a_busy_replica_ends_what_it_does_first() -> None:
    world = two_nodes()
    there = other(world)
    (before,) = world.runners
    world.work(before, busy=1)
    world.want("m", nodes=[there])
    world.settle()
    world.pass_time(30)
    assert sorted(places(world)) == ["a", "b"]
    assert world.route() != [before]
    assert before not in world.route()
    world.work(before, busy=0)
    world.settle()
    world.pass_time(3)
    world.settle()
    assert places(world) == [there]


def test_a_replica_moves_to_the_device_that_is_wanted() -> None:
    world = world_with(node("a", devices=(gpu("gpu-0"), gpu("gpu-1"), cpu())))
    world.ensure("first")
    world.settle()
    (one,) = world.runners.values()
    (here,) = [part.device_id for part in one.view.layout.devices]
    there = {"gpu-0": "gpu-1", "gpu-1": "gpu-0"}[here]
    world.want("m", devices=[there])
    world.settle()
    world.pass_time(3)
    world.settle()
    assert [part.device_id for one in world.runners.values() for part in one.view.layout.devices] == [there]


def test_without_room_in_the_right_place_it_stays_and_is_tried_again_no_more_than_now_and_then() -> None:
    world = world_with(node("a"), node("b", devices=(gpu(free=1, total=1), cpu(free=1, total=1))))
    world.ensure("first")
    world.settle()
    assert places(world) == ["a"]
    before_s = world.now_s
    world.want("m", nodes=["b"])
    for _ in range(60):
        world.pass_time(1)
        world.settle()
    assert places(world) == ["a"]
    assert len(world.route()) == 1
    tries = len(world.noted("model.load_requested")) - 1
    assert 1 <= tries <= 1 + (world.now_s - before_s) / MOVE_PAUSE_S


def test_what_lies_where_it_may_stays_there() -> None:
    world = two_nodes()
    starts = len(world.all_starts)
    world.want("m", nodes=["a", "b"], backend="CUDA", priority=1)
    world.pass_time(60)
    world.settle()
    assert len(world.all_starts) == starts
    assert world.all_stops == []


def test_a_replica_moves_off_a_lender_where_it_is_not_wanted() -> None:
    """It runs where it may, and a part of it lies where it may not."""
    pair = [
        replace(node(name, devices=(gpu("g0", free=12, total=12), cpu(free=3, total=3))), rpc_enabled=True)
        for name in ("near", "far")
    ]
    world = world_with(*pair, m=16)
    world.ensure("c")
    world.settle()
    (first,) = world.runners.values()
    (lender,) = {part.node_id for part in first.view.layout.devices if part.node_id}
    world.nodes["big"] = node("big")
    world.report()
    world.want("m", nodes=[first.node_id, "big"])
    world.settle()
    world.pass_time(3)
    world.settle()
    assert places(world) == ["big"]
    assert all(part.node_id != lender for one in world.runners.values() for part in one.view.layout.devices)


def test_a_replica_moves_off_a_lent_device_that_is_not_wanted() -> None:
    pair = [
        replace(node(name, devices=(gpu(device, free=12, total=12), cpu(free=3, total=3))), rpc_enabled=True)
        for name, device in (("near", "g0"), ("far", "g1"))
    ]
    world = world_with(*pair, m=16)
    world.ensure("c")
    world.settle()
    (first,) = world.runners.values()
    (own,) = [part.device_id for part in first.view.layout.devices if not part.node_id]
    world.nodes["big"] = node("big", devices=(gpu("g2"), cpu()))
    world.report()
    world.want("m", devices=[own, "g2"])
    world.settle()
    world.pass_time(3)
    world.settle()
    assert places(world) == ["big"]


def test_constraints_of_a_model_that_is_not_loaded_load_nothing() -> None:
    world = world_with(node("a"), node("b"))
    world.want("m", nodes=["b"])
    world.pass_time(10)
    world.settle()
    assert world.all_starts == []


@pytest.mark.parametrize("view", ["young", "frozen"])
def test_nothing_moves_on_a_view_that_may_not_show_everybody(view: str) -> None:
    world = two_nodes()
    there = other(world)
    if view == "young":
        world.uptime_s = 1.0
        world.report()
    else:
        world.lose_inventory()
    world.want("m", nodes=[there])
    assert world.core.state.jobs == {}
    world.uptime_s = 1000.0
    world.report()
    assert len(world.core.state.jobs) == 1


def test_a_replica_moves_to_the_backend_that_is_wanted() -> None:
    other_card = replace(gpu("gpu-1"), backend="Vulkan")
    world = world_with(node("a", devices=(gpu("gpu-0"), other_card, cpu())))
    world.ensure("first")
    world.settle()
    (one,) = world.runners.values()
    (here,) = [part.device_id for part in one.view.layout.devices]
    wanted = {"gpu-0": "Vulkan", "gpu-1": "CUDA"}[here]
    world.want("m", backend=wanted)
    world.settle()
    world.pass_time(3)
    world.settle()
    assert [part.device_id for one in world.runners.values() for part in one.view.layout.devices] != [here]
    assert len(world.runners) == 1


def test_replicas_that_are_kept_are_all_in_the_right_place_before_one_goes() -> None:
    world = world_with(*(node(name) for name in "abcd"), m=16)
    world.want("m", replicas_min=2)
    world.settle()
    world.report()
    world.settle()
    here = places(world)
    assert len(here) == 2
    there = sorted(set("abcd") - set(here))
    world.want("m", replicas_min=2, nodes=[there[0]])
    world.settle()
    world.pass_time(3)
    world.settle()
    assert sorted(places(world)) == sorted([*here, there[0]]), "the second one has no place yet"
    world.want("m", replicas_min=2, nodes=there)
    for _ in range(20):
        world.pass_time(3)
        world.settle()
    assert sorted(places(world)) == there


def test_one_load_at_a_time_moves_a_model() -> None:
    world = two_nodes()
    world.want("m", nodes=[other(world)])
    world.pass_time(2 * MOVE_PAUSE_S)
    assert len(world.core.state.jobs) == 1


def test_a_model_whose_last_load_failed_a_moment_ago_is_not_moved_yet() -> None:
    world = two_nodes()
    world.core.state.models["digest-m"].failures = LoadFailures(count=1, until_s=world.now_s + 20)
    world.want("m", nodes=[other(world)])
    assert world.core.state.jobs == {}
    world.pass_time(21)
    assert len(world.core.state.jobs) == 1


def test_a_replica_in_ram_alone_moves_to_the_backend_that_is_wanted() -> None:
    world = world_with(node("a", devices=(cpu(),)), node("b", devices=(gpu(free=1, total=1), cpu(free=1, total=1))))
    world.ensure("first")
    world.settle()
    assert places(world) == ["a"]
    world.nodes["b"] = node("b")
    world.report()
    world.want("m", backend="CUDA")
    world.settle()
    world.pass_time(3)
    world.settle()
    assert places(world) == ["b"]


def test_a_model_whose_file_broke_is_not_moved() -> None:
    world = two_nodes()
    there = other(world)
    for name in ("a", "b"):
        world.nodes[name] = replace(world.nodes[name], models=(model(error="wrong magic"),))
    world.report()
    world.want("m", nodes=[there])
    world.pass_time(5)
    assert world.core.state.jobs == {}
    assert len(world.noted("model.load_requested")) == 1


def kept_twice(world: World) -> World:
    """Keep two replicas of the model, and let them begin to serve."""
    world.want("m", replicas_min=2, num_ctx=512)
    settled(world, 4)
    assert len(world.route()) == 2
    return world


def settled(world: World, seconds: float) -> None:
    """Let time pass; two replicas serve at every moment."""
    for _ in range(round(seconds)):
        before = len(world.route())
        world.pass_time(1)
        world.settle()
        assert len(world.route()) >= min(before, 2)


def spread_loads(world: World) -> int:
    return sum(note.fields["reason"] == "spread" for note in world.noted("model.load_requested"))


def test_kept_replicas_that_share_a_node_spread_once_another_one_can_take_the_model() -> None:
    world = kept_twice(world_with(node("a")))
    assert places(world) == ["a", "a"]
    world.nodes["b"] = replace(node("b"), models=world.nodes["a"].models)
    settled(world, MOVE_PAUSE_S + 5)
    assert sorted(places(world)) == ["a", "b"]
    assert [note.fields["reason"] for note in world.noted("model.draining")] == ["spread"]
    settled(world, 3 * MOVE_PAUSE_S)
    assert spread_loads(world) == 1


def test_of_the_replicas_that_share_a_node_an_idle_one_goes() -> None:
    world = kept_twice(world_with(node("a")))
    busy, idle = sorted(world.runners)
    world.work(busy, busy=1)
    world.nodes["b"] = replace(node("b"), models=world.nodes["a"].models)
    settled(world, MOVE_PAUSE_S + 5)
    assert busy in world.runners
    assert idle not in world.runners


def test_kept_replicas_stay_together_without_a_load_where_no_other_node_has_room() -> None:
    world = kept_twice(world_with(node("a"), node("b", devices=(gpu(free=2, total=8), cpu(free=1, total=2)))))
    assert places(world) == ["a", "a"]
    settled(world, 3 * MOVE_PAUSE_S)
    assert spread_loads(world) == 0
    assert places(world) == ["a", "a"]


def test_a_replica_of_a_model_that_crashed_too_often_on_a_node_returns_there_when_the_exclusion_ends() -> None:
    world = kept_twice(world_with(node("a"), node("b")))
    assert sorted(places(world)) == ["a", "b"]
    while "a" in places(world):
        (crashing,) = [key for key, one in world.runners.items() if one.node_id == "a"]
        world.crash(crashing, Fault(reason="runner_lost", message="signal 11"))
        world.pass_time(5)
        world.settle()
    assert places(world) == ["b", "b"]
    settled(world, BROKEN_S - 10)
    assert (places(world), spread_loads(world)) == (["b", "b"], 0)
    settled(world, 2 * MOVE_PAUSE_S)
    assert sorted(places(world)) == ["a", "b"]


def test_a_crashed_replica_that_its_host_still_reports_keeps_no_other_from_its_device() -> None:
    world = kept_twice(world_with(node("a"), node("b", devices=(gpu(free=40, total=40), cpu()))))
    (crashed,) = [key for key, one in world.runners.items() if one.node_id == "a"]
    one = world.runners[crashed]
    one.view = replace(one.view, state=RunnerState.ERROR, fault=Fault(reason="runner_lost", message="signal 9"))
    world.report()
    world.pass_time(2)
    world.measure_all()
    world.writes_done()
    assert [start.record.node_id for start in world.starts] == ["a"]


def test_the_second_kept_replica_is_fetched_to_a_node_of_its_own() -> None:
    world = world_with(node("a"), node("b"))
    (file,) = world.nodes["a"].models
    world.nodes["a"] = replace(world.nodes["a"], models=(replace(file, blob_digests=("sha256:1",)),))
    world.nodes["b"] = replace(world.nodes["b"], models=(), models_free_bytes=1 << 40)
    kept_twice(world)
    assert sorted(start.record.node_id for start in world.all_starts) == ["a", "b"]
