"""When a model whose replica crashed is loaded again, and which crashes count."""

import pytest

from scheduler.core.books.books import FORGOTTEN_MAX, Life
from scheduler.core.books.effects import AnswerQueued
from scheduler.core.books.events import CrashesBlamed
from scheduler.core.loading.crashes import CRASHES_KEPT
from scheduler.core.values.faults import Fault
from scheduler.core.values.policy import Policy
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.world import World, models, world_with

DIED = Fault(reason="runner_lost", message="signal 11")
POLICY = Policy()


def serving(*node_ids: str, **wishes: object) -> World:
    """A replica of m serves."""
    world = world_with(*(node(name, devices=(gpu(), cpu())) for name in node_ids or ("a",)))
    if wishes:
        world.want("m", **wishes)
    world.ensure("c")
    world.settle()
    return world


def life(world: World) -> Life:
    """The only process there is."""
    ((placement_id, one),) = world.runners.items()
    return placement_id, one.view.generation


def crash(world: World) -> Life:
    """It dies, and is seen to."""
    died = life(world)
    world.crash(died[0], DIED)
    return died


def until_started(world: World, caller: str) -> float:
    """How long somebody who asks now waits before the host is told."""
    since_s, before = world.now_s, len(world.all_starts)
    world.ensure(caller)
    while len(world.all_starts) == before:
        wake_s = world.core.wake_at_s(world.now_s)
        assert wake_s is not None
        world.pass_time(min(wake_s - world.now_s, 0.25))
        world.measure_all()
        world.writes_done()
    waited_s = world.now_s - since_s
    world.settle()
    assert world.is_ready(caller)
    return waited_s


def test_a_crashed_replica_is_loaded_again_after_half_a_second_and_after_ever_longer_ones_while_it_goes_on() -> None:
    world, waits_s = serving(), []
    for number in range(9):
        world.pass_time(40)  # three within a minute would be another matter
        crash(world)
        waits_s.append(until_started(world, f"c{number}"))
    assert waits_s == pytest.approx([0.5, 1, 2, 4, 8, 16, 30, 30, 30])
    assert len(world.route()) == 1


def test_one_that_served_for_a_minute_or_crashed_long_ago_begins_the_row_anew() -> None:
    world = serving()
    for number, (served_s, wait_s) in enumerate([(5, 0.5), (40, 1.0), (59, 2.0), (61, 0.5), (40, 1.0)]):
        world.pass_time(served_s)
        crash(world)
        assert until_started(world, f"c{number}") == pytest.approx(wait_s), served_s
    world.unload("u")
    world.settle()
    world.pass_time(POLICY.broken_s)
    world.ensure("d")
    world.settle()
    crash(world)
    assert until_started(world, "e") == pytest.approx(0.5)


def test_who_asks_after_the_pause_does_not_wait() -> None:
    world = serving()
    crash(world)
    world.pass_time(2)
    world.ensure("d")
    world.settle()
    assert world.is_ready("d")


def test_a_life_that_nobody_saw_begin_counts_as_a_long_one() -> None:
    world = serving()
    world.pass_time(40)
    crash(world)
    until_started(world, "d")
    placement_id, _ = life(world)
    world.core.books.memos.clear()
    world.crash(placement_id, DIED)
    assert until_started(world, "e") == pytest.approx(0.5)


def test_whoever_waits_hears_for_what_and_for_how_long() -> None:
    world = serving()
    for _ in range(2):
        world.pass_time(40)
        crash(world)
        world.ensure("d")
        world.pass_time(0.25)
        told = [one for one in world.answers["d"] if isinstance(one, AnswerQueued)]
        explained = world.explain().waits_for
        world.pass_time(2)
        world.settle()
    assert told[-1].waits_for == "its restart 1 s after the last of 2 crashes"
    assert told[-1].eta_s is not None
    assert told[-1].eta_s >= 1.0
    assert explained == "its restart 1 s after the last of 2 crashes, in 0.8 s"
    assert len([one for one in told if one.waits_for == told[-1].waits_for]) == 1, "told once, not at every look"
    assert world.explain().waits_for == ""


def test_a_replica_that_is_kept_comes_back_after_the_pause_unasked() -> None:
    world = serving(replicas_min=1)
    crash(world)
    before = len(world.all_starts)
    assert world.explain().waits_for.startswith("its restart 0.5 s after a crash")
    world.pass_time(0.6, reporting=False)
    world.settle()
    assert len(world.all_starts) == before + 1
    assert len(world.route()) == 1


def test_another_model_waits_for_nothing() -> None:
    world = world_with(node(models=models("m", "n")), m=8, n=8)
    world.ensure("c")
    world.settle()
    crash(world)
    world.ensure("d")
    world.ensure("e", "n")
    world.settle()
    assert world.is_ready("e")
    assert world.finals("d") == []


@pytest.mark.parametrize("heard_first", [False, True])
def test_crashes_that_a_request_is_blamed_for_break_no_placement_and_are_not_waited_for(heard_first: bool) -> None:
    world = serving()
    for number in range(6):
        world.pass_time(1)
        blamed = CrashesBlamed(request=f"r{number // 3}", lives=(life(world),))
        if heard_first:
            world.send(blamed)
        crash(world)
        world.ensure(f"c{number}")
        if not heard_first:
            world.settle()
            assert not world.finals(f"c{number}")
            world.send(blamed)
        world.settle()
        assert world.is_ready(f"c{number}")
    assert len(world.noted("crash.not_counted")) == 6
    assert len(world.route()) == 1


def test_three_requests_that_end_replicas_within_a_minute_say_that_it_is_the_placement() -> None:
    world = serving()
    for number in range(3):
        world.pass_time(5)
        for _ in range(2):
            world.send(CrashesBlamed(request=f"r{number}", lives=(life(world),)))
            crash(world)
            world.ensure(f"c{number}")
            world.settle()
            if number == 2:
                break
    fault = world.fault("c2")
    assert "the model crashed 3 times within 10 s here" in fault.message
    assert fault.retry_after_s == pytest.approx(POLICY.broken_s - 10)
    world.pass_time(POLICY.broken_s - 10)
    world.ensure("d")
    world.settle()
    assert world.is_ready("d")


def test_a_node_that_was_broken_by_a_request_is_not_once_that_is_known() -> None:
    world = serving()
    lives = []
    for _ in range(3):
        world.pass_time(5)
        lives.append(crash(world))
        if len(lives) < 3:
            world.ensure("w")
            world.pass_time(3)
            world.settle()
    world.ensure("d")
    world.settle()
    assert "crashed 3 times" in world.fault("d").message
    world.send(CrashesBlamed(request="r", lives=tuple(lives[:2])))
    world.send(CrashesBlamed(request="r", lives=tuple(lives[:2])))  # gateways say it more than once
    assert len(world.noted("crash.not_counted")) == 2
    assert until_started(world, "e") == pytest.approx(0.5), "the third one is a first one now"


def test_the_model_s_own_crashes_break_it_among_those_of_requests() -> None:
    world = serving("a", "b")
    nodes = [world.runners[life(world)[0]].node_id]
    for number in range(6):
        world.pass_time(3)
        died = crash(world)
        if number % 2:
            world.send(CrashesBlamed(request="r", lives=(died,)))
        world.ensure(f"c{number}")
        world.pass_time(4)
        world.settle()
        nodes.append(world.runners[life(world)[0]].node_id)
    assert nodes == [nodes[0]] * 5 + [({"a", "b"} - {nodes[0]}).pop()] * 2


def test_another_life_of_the_same_placement_is_not_meant() -> None:
    world = serving()
    placement_id, generation = life(world)
    world.send(CrashesBlamed(request="r", lives=((placement_id, generation + 1), ("other", generation))))
    crash(world)
    assert until_started(world, "d") == pytest.approx(0.5)


def test_what_is_remembered_of_crashes_is_bounded() -> None:
    world = serving()
    for number in range(FORGOTTEN_MAX + 10):
        world.send(CrashesBlamed(request="r", lives=(("p", number),)))
    assert len(world.core.books.poisoned) == FORGOTTEN_MAX
    assert ("p", 9) not in world.core.books.poisoned
    for number in range(CRASHES_KEPT + 2):
        world.pass_time(70)
        crash(world)
        until_started(world, f"c{number}")
    ((_, kept),) = world.core.books.crashes.items()
    assert len(kept) == CRASHES_KEPT
