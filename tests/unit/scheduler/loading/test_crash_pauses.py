"""Pauses before a crashed model is loaded again, and the crashes that count."""

import pytest

from scheduler.core.loading.crashes import BROKEN_S, CRASHES_KEPT, RESTART_RESET_S, crash_rows, shown_rows
from scheduler.core.state.cluster_state import FORGOTTEN_MAX, Life
from scheduler.core.state.effects import AnswerQueued
from scheduler.core.state.events import CrashesBlamed
from scheduler.core.values.faults import Fault
from scheduler.core.values.policy import Policy
from scheduler.gauges import samples
from scheduler.metrics import CRASHES_IN_A_ROW
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.world import World, models, world_with

DIED = Fault(reason="runner_lost", message="signal 11")
POLICY = Policy()


def serving(*node_ids: str, **constraints: object) -> World:
    """A replica of m serves."""
    world = world_with(*(node(name, devices=(gpu(), cpu())) for name in node_ids or ("a",)))
    if constraints:
        world.want("m", **constraints)
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


def crash_in_a_row(world: World, times: int) -> None:
    """It dies so many times within some seconds, each time as soon as it serves again."""
    for number in range(times):
        world.pass_time(1)
        crash(world)
        if number < times - 1:
            until_started(world, f"row{world.now_s}")


def rows(world: World) -> list[tuple[str, int, bool]]:
    """Node, crashes in a row, and whether they exclude the node."""
    found = crash_rows(world.core.state, world.now_s)
    return [(row.node_id, row.crashes, row.excluded_until_s is not None) for row in found]


def until_started(world: World, caller: str) -> float:
    """Return the seconds between a new request and the start command to the host."""
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
    world.pass_time(BROKEN_S)
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
    world.core.state.tracked.clear()
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


def test_crashes_on_the_only_node_delay_a_load_by_ever_longer_pauses_and_never_refuse_it() -> None:
    world, waits_s = serving(), []
    for number in range(9):
        world.pass_time(5)
        crash(world)
        waits_s.append(until_started(world, f"c{number}"))
    assert waits_s == pytest.approx([0.5, 1, 2, 4, 8, 16, 30, 30, 30])
    assert rows(world) == [("a", 9, True)]


def test_a_caller_that_waits_for_an_excluded_node_hears_for_what_and_for_how_long() -> None:
    world = serving()
    crash_in_a_row(world, 3)
    world.ensure("d")
    world.settle()
    told = [one for one in world.answers["d"] if isinstance(one, AnswerQueued)]
    assert [one.waits_for for one in told] == ["its restart 2 s after the last of 3 crashes"]
    assert told[0].eta_s == pytest.approx(2.0, abs=0.5)
    assert world.explain().waits_for == "its restart 2 s after the last of 3 crashes, in 2.0 s"
    starts = len(world.all_starts)
    world.pass_time(1.9)
    assert len(world.all_starts) == starts, "not before the pause is over"
    world.pass_time(0.2)
    world.settle()
    assert world.is_ready("d")


def test_a_replica_that_is_kept_comes_back_to_an_excluded_node_unasked() -> None:
    world = serving(replicas_min=1)
    crash_in_a_row(world, 3)
    before = len(world.all_starts)
    world.pass_time(2.1, reporting=False)
    world.settle()
    assert len(world.all_starts) == before + 1


def test_an_excluded_node_is_tried_again_where_the_others_are_too_small() -> None:
    small = node("b", devices=(gpu(free=2, total=2), cpu(free=2, total=2)))
    world = world_with(node("a", devices=(gpu(), cpu())), small)
    world.ensure("c")
    world.settle()
    crash_in_a_row(world, 3)
    assert rows(world) == [("a", 3, True)]
    assert until_started(world, "d") == pytest.approx(2.0)
    assert world.runners[life(world)[0]].node_id == "a"


def test_an_excluded_node_is_tried_again_while_a_busy_replica_holds_the_other_one() -> None:
    devices = (gpu(free=10, total=10), cpu(free=2, total=2))
    nodes = [node(name, devices=devices, models=models("m", "n")) for name in "ab"]
    world = world_with(*nodes, m=8, n=8)
    world.ensure("c")
    world.settle()
    (first,) = world.runners
    world.ensure("other", "n")
    world.settle()
    (second,) = world.runners.keys() - {first}
    world.work(second, busy=1)
    place = world.runners[first].node_id
    for number in range(3):
        world.pass_time(1)
        (own,) = world.runners.keys() - {second}
        world.crash(own, DIED)
        world.ensure(f"d{number}")
        world.pass_time(2.5)
        world.settle()
    assert [one.node_id for name, one in world.runners.items() if name != second] == [place]
    assert world.is_ready("d2")


def test_another_node_is_preferred_at_once_and_the_first_one_again_five_minutes_after_its_last_crash() -> None:
    world = serving("a", "b")
    first = world.runners[life(world)[0]].node_id
    crash_in_a_row(world, 3)
    assert until_started(world, "d") < 0.5, "but for a measurement there"
    other = world.runners[life(world)[0]].node_id
    assert other != first
    reasons = {one.reason for one in world.explain().candidates if one.node_id == first}
    assert reasons == {"the model crashed 3 times within 4 s here"}
    world.pass_time(BROKEN_S)
    assert rows(world) == []


def test_where_every_node_is_excluded_the_load_waits_for_the_pause() -> None:
    world = serving("a", "b")
    crash_in_a_row(world, 3)
    until_started(world, "d")
    crash_in_a_row(world, 3)
    assert sorted(rows(world)) == [("a", 3, True), ("b", 3, True)]
    assert until_started(world, "e") == pytest.approx(2.0)
    crash(world)
    assert until_started(world, "f") == pytest.approx(4.0)


def test_crashes_are_shown_from_the_third_in_a_row_on_and_by_the_leader_alone() -> None:
    world = serving()
    state = world.core.state
    crash_in_a_row(world, 2)
    assert world.explain().crash_rows == ()
    assert shown_rows(state, world.now_s) == []
    until_started(world, "d")
    crash(world)
    (row,) = world.explain().crash_rows
    assert [row] == shown_rows(state, world.now_s)
    assert (row.model_name, row.node_id, row.crashes, row.error) == ("m:latest", "a", 3, "signal 11")
    assert (row.retry_at_s, row.excluded_until_s) == (world.now_s + 2, world.now_s + BROKEN_S)
    (sample,) = [one for one in samples(state, world.now_s) if one.family is CRASHES_IN_A_ROW]
    assert (sample.value, sample.labels) == (3, ("a", "m:latest"))
    world.lose_leadership()
    assert shown_rows(state, world.now_s) == []


def test_a_second_replica_is_not_placed_on_an_excluded_node() -> None:
    devices = (gpu(free=10, total=10), cpu(free=2, total=2))  # room for one replica each
    world = world_with(node("a", devices=devices), node("b", devices=devices), m=8)
    world.ensure("c")
    world.settle()
    crash_in_a_row(world, 3)
    until_started(world, "d")
    serving_node = world.runners[life(world)[0]].node_id
    assert [node_id for node_id, _, _ in rows(world)] != [serving_node]
    world.want("m", replicas_min=2)
    world.pass_time(10)
    world.settle()
    assert [one.node_id for one in world.runners.values()] == [serving_node]
    world.want("m", replicas_min=1)
    world.crash(life(world)[0], DIED)
    world.pass_time(BROKEN_S)
    world.want("m", replicas_min=2)
    world.pass_time(10)
    world.settle()
    assert len(world.runners) == 2, "once the row is over"


def test_a_row_ends_once_a_replica_has_served_for_a_minute() -> None:
    world = serving()
    crash_in_a_row(world, 4)
    until_started(world, "d")
    world.pass_time(RESTART_RESET_S - 2)
    assert rows(world) == [("a", 4, True)]
    world.pass_time(3)
    assert rows(world) == []
    crash(world)
    assert rows(world) == [("a", 1, False)]


def test_a_row_that_goes_on_excludes_its_node_for_as_long_as_its_crashes_are_remembered() -> None:
    world = serving()
    began_s = world.now_s
    crash_in_a_row(world, 3)
    for number in range(11):
        world.ensure(f"b{number}")
        world.pass_time(31)
        world.settle()
        crash(world)
    assert rows(world) == [("a", 14, True)]
    assert world.now_s > began_s + BROKEN_S


def test_an_operator_s_load_forgets_the_crashes_and_begins_at_once() -> None:
    world = serving()
    crash_in_a_row(world, 5)
    world.ensure("waits")
    world.settle()
    assert not world.finals("waits")
    world.ensure("operator-1", load_only=True, at_once=True)
    world.settle()
    assert world.is_ready("operator-1")
    assert world.is_ready("waits")
    assert rows(world) == []
    (forgotten,) = world.noted("crashes.forgotten")
    assert (forgotten.fields["model"], forgotten.fields["node"], forgotten.fields["crashes"]) == ("m:latest", "a", 5)
    crash(world)
    assert until_started(world, "e") == pytest.approx(0.5), "a first one again"


def test_an_operator_s_load_of_a_model_leaves_others_as_they_are() -> None:
    world = world_with(node(models=models("m", "n")), m=8, n=8)
    world.ensure("c")
    world.settle()
    crash_in_a_row(world, 3)
    world.ensure("operator-1", "n", at_once=True)
    world.settle()
    assert rows(world) == [("a", 3, True)]


def test_a_load_that_failed_a_moment_ago_is_tried_at_once_for_an_operator() -> None:
    world = world_with(node())
    for number in range(4):
        world.ensure(f"c{number}")
        world.pass_time(30)
        world.measure_all()
        world.writes_done()
        (start,) = world.starts
        world.starts.clear()
        world.start_fails(start.record, Fault(reason="runner_lost", message="signal 11"))
    world.ensure("waits")
    world.settle()
    assert not world.finals("waits")
    world.ensure("operator-1", at_once=True)
    world.settle()
    assert world.is_ready("operator-1")
    assert world.is_ready("waits")


def test_the_third_crash_in_a_row_is_an_event_with_its_text() -> None:
    world = serving()
    crash_in_a_row(world, 2)
    assert world.noted("model.crashes_in_a_row") == []
    until_started(world, "d")
    crash(world)
    (note,) = world.noted("model.crashes_in_a_row")
    assert dict(note.fields) == {
        "model": "m:latest", "node": "a", "crashes": 3, "excluded": True, "pause_s": 2.0, "text": "signal 11",
    }  # fmt: skip


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
    assert len(world.excused) == 6
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
    assert not world.finals("c2")
    assert rows(world) == [("a", 5, True)], "all of them count by now"
    assert until_started(world, "d") == pytest.approx(8.0)
    assert world.is_ready("c2")


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
    assert not world.finals("d")
    assert rows(world) == [("a", 3, True)]
    world.send(CrashesBlamed(request="r", lives=tuple(lives[:2])))
    world.send(CrashesBlamed(request="r", lives=tuple(lives[:2])))  # gateways say it more than once
    assert len(world.noted("crash.not_counted")) == 2
    assert [(one.address, (one.placement_id, one.generation)) for one in world.excused] == [
        ("a:1", life) for life in lives[:2]
    ], "the host blames no device"
    assert rows(world) == [("a", 1, False)]
    assert until_started(world, "e") == pytest.approx(0.5), "the third one is a first one now"
    assert world.is_ready("d")


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
    assert len(world.core.state.poisoned) == FORGOTTEN_MAX
    assert ("p", 9) not in world.core.state.poisoned
    for number in range(CRASHES_KEPT + 2):
        world.pass_time(70)
        crash(world)
        until_started(world, f"c{number}")
    ((_, kept),) = world.core.state.crashes.items()
    assert len(kept) == CRASHES_KEPT
