"""A lost replica is placed anew as it was asked for, whoever brings it back and whoever leads by then."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from common.spec.layout import Layout
from common.spec.load_options import NO_LOAD_OPTIONS, LoadOptions
from scheduler.core.values.asked import NOTHING_ASKED, Asked
from scheduler.core.values.desired import Phase
from scheduler.core.values.faults import Fault
from tests.unit.scheduler.builders import LAYERS, cpu, gpu, node
from tests.unit.scheduler.world import World, world_with

OPTIONS = LoadOptions(num_gpu=20, batch_tokens=128, threads=1, use_mmap=False)
ASKED = Asked(context_tokens=768, options=OPTIONS)
CRASH = Fault(reason="runner_lost", message="gone")


def loaded(world: World | None = None, *, keep_alive_ms: int | None = None) -> World:
    """A world with a replica that was loaded with options, and whose caller is gone."""
    world = world or world_with(node())
    world.ensure("first", context_tokens=768, options=OPTIONS, keep_alive_ms=keep_alive_ms)
    world.settle()
    assert is_as_asked(layout(world))
    return world


def layout(world: World, model_name: str = "m:latest") -> Layout:
    """Of the one replica that serves."""
    (placement_id,) = world.route(model_name)
    return world.runners[placement_id].view.layout


def is_as_asked(layout: Layout) -> bool:
    sizes = (layout.context_tokens, layout.batch_tokens, layout.threads, layout.use_mmap)
    return sizes == (768, 128, 1, False) and sum(part.layer_count for part in layout.devices) == 20


def lost_with_the_room_on_its_gpu() -> World:
    """A replica that was to be on a GPU is gone, and somebody else has taken the GPU's memory."""
    world = world_with(node(devices=(gpu(), cpu())))
    world.ensure("first", options=LoadOptions(require_gpu=True))
    world.settle()
    world.nodes["a"] = replace(world.nodes["a"], devices=(gpu(free=0.1), cpu()))
    world.runner_dies("p1")
    world.pass_time(1)
    return world


def runner_dies(world: World) -> None:
    world.runner_dies("p1")
    world.pass_time(1)


def node_is_gone(world: World) -> None:
    world.nodes["b"] = node("b")
    del world.nodes["a"]
    del world.runners["p1"]
    world.pass_time(15)


def leader_changes_before(world: World) -> None:
    world.restart_scheduler()
    world.report()
    world.lead()
    runner_dies(world)


def leader_changes_after(world: World) -> None:
    runner_dies(world)
    world.writes_done()
    world.restart_scheduler()
    world.report()
    world.lead()


def dies_while_nobody_leads(world: World) -> None:
    world.lose_leadership()
    del world.runners["p1"]
    world.report()
    world.lead()
    world.pass_time(1)


def store_is_lost_too(world: World) -> None:
    """Everything is restarted but the hosts: what they report is all that is known."""
    world.store.clear()
    world.restart_scheduler()
    world.report()
    world.lead()
    world.writes_done()
    assert world.store["p1"].asked == ASKED
    runner_dies(world)


LOSSES = [
    runner_dies,
    node_is_gone,
    leader_changes_before,
    leader_changes_after,
    dies_while_nobody_leads,
    store_is_lost_too,
]


@pytest.mark.parametrize("lose", LOSSES)
def test_the_next_request_that_leaves_it_open_gets_a_replica_as_the_lost_one_was(lose: Callable[[World], None]) -> None:
    world = loaded()
    lose(world)
    assert world.route() == []
    world.ensure("next")
    world.settle()
    assert world.is_ready("next")
    assert is_as_asked(layout(world))
    (placement_id,) = world.route()
    assert world.store[placement_id].asked == ASKED


@pytest.mark.parametrize("lose", LOSSES)
def test_a_model_that_an_operator_keeps_comes_back_as_it_was_asked_for(lose: Callable[[World], None]) -> None:
    world = loaded()
    world.want("m", replicas_min=1)
    lose(world)
    world.pass_time(2)
    world.settle()
    assert is_as_asked(layout(world))


def test_it_comes_back_so_again_and_again() -> None:
    world = loaded()
    for number in range(3):
        world.pass_time(120)
        world.runner_dies("p1")
        world.pass_time(1)
        world.ensure(f"again-{number}")
        world.settle()
        assert is_as_asked(layout(world))


def test_what_a_request_says_itself_comes_first() -> None:
    world = loaded()
    world.runner_dies("p1")
    world.pass_time(1)
    world.ensure("next", context_tokens=512, options=LoadOptions(threads=3))
    world.settle()
    got = layout(world)
    assert (got.context_tokens, got.threads, got.batch_tokens) == (768, 3, 128)


@pytest.mark.parametrize(
    ("context_tokens", "options"),
    [(1024, NO_LOAD_OPTIONS), (None, LoadOptions(num_gpu=4)), (None, LoadOptions(main_gpu=0))],
)
def test_a_request_for_another_kind_of_replica_takes_nothing_over(
    context_tokens: int | None, options: LoadOptions
) -> None:
    world = loaded()
    world.runner_dies("p1")
    world.pass_time(1)
    world.ensure("next", context_tokens=context_tokens, options=options)
    world.settle()
    got = layout(world)
    assert (got.context_tokens, got.threads, got.batch_tokens) == (context_tokens or 8192, 0, 512)
    assert world.store["p1"].asked == Asked(context_tokens=context_tokens, options=options)


def test_options_end_with_the_keep_alive_of_the_lost_replica() -> None:
    world = loaded(keep_alive_ms=60_000)
    world.runner_dies("p1")
    world.pass_time(1)
    world.pass_time(59)
    assert world.core.state.desired["p1"].phase is Phase.LOST
    world.pass_time(2)
    world.ensure("next")
    world.settle()
    assert (layout(world).context_tokens, layout(world).threads) == (8192, 0)


def test_one_that_was_to_stay_for_ever_is_not_forgotten_and_stays_for_ever_again() -> None:
    world = loaded(keep_alive_ms=-1)
    world.runner_dies("p1")
    world.pass_time(1)
    world.pass_time(4000)
    world.ensure("next")
    world.settle()
    assert is_as_asked(layout(world))
    world.pass_time(4000)
    assert is_as_asked(layout(world))


def test_an_unload_ends_the_options_of_a_lost_replica() -> None:
    world = loaded()
    world.runner_dies("p1")
    world.pass_time(1)
    world.unload("operator")
    world.writes_done()
    assert world.store == {}
    world.ensure("next")
    world.settle()
    assert (layout(world).context_tokens, layout(world).threads) == (8192, 0)


def test_without_room_for_the_lost_replica_the_load_goes_on_with_its_own_options() -> None:
    world = lost_with_the_room_on_its_gpu()
    world.ensure("next")
    world.pass_time(2)
    world.settle()
    assert world.is_ready("next")
    assert layout(world).devices == ()


def test_a_caller_who_asks_for_the_same_is_not_served_by_less() -> None:
    world = lost_with_the_room_on_its_gpu()
    world.ensure("next")
    world.ensure("strict", options=LoadOptions(require_gpu=True))
    world.pass_time(2)
    world.settle()
    assert world.fault("strict").reason == "insufficient_memory"


def test_a_device_that_is_not_there_any_more_is_not_asked_for() -> None:
    world = world_with(node(devices=(gpu("gpu-0"), gpu("gpu-1"), cpu())))
    world.ensure("first", options=LoadOptions(main_gpu=1))
    world.settle()
    assert [part.device_id for part in layout(world).devices] == ["gpu-1"]
    world.nodes["a"] = replace(world.nodes["a"], devices=(gpu("gpu-0"), cpu()))
    world.runner_dies("p1")
    world.pass_time(1)
    world.ensure("next")
    world.settle()
    assert [part.device_id for part in layout(world).devices] == ["gpu-0"]


def test_options_that_crash_the_model_repeatedly_are_given_up() -> None:
    world = world_with(node("a"), node("b"))
    loaded(world)
    for number in range(3):
        (placement_id,) = world.route()
        world.crash(placement_id, CRASH)
        world.pass_time(1)
        world.ensure(f"after-{number}")
        world.pass_time(4)
        world.settle()
    assert layout(world).threads == 0


def test_a_replacement_that_fails_leaves_the_options_for_the_next_one() -> None:
    world = loaded()
    world.runner_dies("p1")
    world.pass_time(1)
    world.ensure("unlucky")
    world.measure_all()
    world.writes_done()
    world.start_fails(world.starts.pop().record, CRASH)
    world.writes_done()
    assert world.fault("unlucky").reason == CRASH.reason
    assert (world.store["p1"].phase, world.store["p1"].asked) == (Phase.LOST, ASKED)
    world.pass_time(1)
    world.ensure("next")
    world.settle()
    assert is_as_asked(layout(world))


def test_a_load_that_the_leader_before_began_is_planned_anew_as_it_was_asked_for() -> None:
    world = world_with(node())
    world.ensure("first", context_tokens=768, options=OPTIONS)
    world.measure_all()
    world.writes_done()
    world.restart_scheduler()
    world.report()
    world.lead()
    world.start_fails(world.starts.pop().record, Fault(reason="insufficient_memory", message="no room"))
    world.pass_time(3)
    world.settle()
    assert world.store["p1"].generation > 1
    assert is_as_asked(layout(world))


def test_two_lost_replicas_come_back_each_as_it_was() -> None:
    world = loaded(world_with(node("a"), node("b")))
    world.want("m", replicas_min=2)
    world.settle()
    sizes = sorted(one.view.layout.threads for one in world.runners.values())
    assert sizes == [0, 1]
    for placement_id in list(world.runners):
        del world.runners[placement_id]
    world.report()
    for _ in range(4):
        world.pass_time(2)
        world.settle()
    assert sorted(one.view.layout.threads for one in world.runners.values()) == [0, 1]


def test_nothing_was_asked_where_nothing_was_said() -> None:
    world = world_with(node())
    world.ensure("first")
    world.settle()
    assert world.store["p1"].asked == NOTHING_ASKED
    assert sum(part.layer_count for part in layout(world).devices) == LAYERS
