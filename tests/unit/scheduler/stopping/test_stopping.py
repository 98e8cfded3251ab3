"""Stop of a replica, step by step: the condition of each step, its reversal, and the state that is dropped at the
end."""

from dataclasses import replace

import pytest

from common.spec.layout import Layout
from scheduler.core.planning.candidates import Placement
from scheduler.core.sizes.ledger import Need
from scheduler.core.state.cluster_state import StopState
from scheduler.core.state.effects import RemoveDesired, SaveDesired
from scheduler.core.state.events import (
    RunnerReported,
    SaveEnded,
    StopEnded,
    TimePassed,
)
from scheduler.core.state.promises import promises
from scheduler.core.stopping.stopping import (
    DRAIN_S,
    STOP_RETRY_S,
    order_blind_stop,
    order_stop,
    still_hold_what_is_needed,
)
from scheduler.core.values.desired import Phase
from scheduler.core.values.faults import PLACEMENT_MISMATCH, STALE_FENCE, Fault
from scheduler.core.values.memory import GIB
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import RunnerState
from tests.unit.scheduler.builders import cpu, gpu, node, report
from tests.unit.scheduler.world import World, models, world_with

UNAVAILABLE = Fault(reason="model_unavailable", message="no answer")


def served(**constraints: object) -> World:
    """One replica that serves."""
    world = world_with(node("a", devices=(gpu(), cpu(free=3, total=3)), models=models("m", "n")), m=16, n=16)
    if constraints:
        world.want("m", **constraints)
    world.ensure("c", "m")
    world.settle()
    return world


def unloaded() -> World:
    """The host has been told to stop the replica."""
    world = served()
    world.unload("u", "m")
    world.writes_done()
    assert [one.placement_id for one in world.stops] == ["p1"]
    return world


def intent(world: World, phase: Phase) -> SaveDesired:
    """A write of the replica's record, in this phase."""
    return SaveDesired(fence=1, record=world.core.state.desired["p1"].in_phase(phase))


def fail_stop(world: World, reason: str = "model_unavailable") -> None:
    told = world.stops.pop(0)
    high_water = 9 if reason == STALE_FENCE else 0
    fault = Fault(reason=reason, message="fence 7 is refused by the node of 1234 GPUs", high_water=high_water)
    world.send(StopEnded(placement_id=told.placement_id, generation=told.generation, fault=fault))


def state_of(world: World) -> StopState | None:
    found = world.core.state.stops.get("p1")
    return None if found is None else found.state


def test_a_standby_orders_no_stop() -> None:
    world = served()
    world.lose_leadership()
    assert not order_stop(world.core.state, "p1", reason="test", now_s=world.now_s)
    assert world.core.state.stops == {}
    assert world.route("m:latest") == ["p1"]


def test_a_stop_is_ordered_once_and_a_later_order_may_only_make_it_harder() -> None:
    world = served()
    world.work("p1", busy=1)
    world.report()
    state = world.core.state
    assert order_stop(state, "p1", reason="first", now_s=world.now_s)
    assert not order_stop(state, "p1", reason="second", now_s=world.now_s, forced=True)
    assert not order_stop(state, "p1", reason="third", now_s=world.now_s)
    assert state.stops["p1"].forced
    assert state.stops["p1"].reason == "first"


@pytest.mark.parametrize("forced", [True, False])
def test_a_host_is_told_to_let_sequences_end_unless_the_stop_is_forced(forced: bool) -> None:
    world = served()
    order_stop(world.core.state, "p1", reason="test", now_s=world.now_s, forced=forced)
    world.send(TimePassed())
    assert world.core.state.stops["p1"].state is StopState.SAVING
    world.send(SaveEnded(save=intent(world, Phase.STOPPING)))
    (told,) = world.all_stops
    assert told.drain_ms == (0 if forced else DRAIN_S * 1000)


def test_a_replica_that_no_live_report_shows_is_not_known_to_be_idle() -> None:
    world = served()
    world.lose_inventory()
    world.unload("u", "m")
    world.writes_done()
    assert state_of(world) is StopState.DRAINING
    assert world.all_stops == []
    world.report()
    world.writes_done()
    assert [one.placement_id for one in world.all_stops] == ["p1"]


def test_only_the_written_intent_to_stop_lets_a_host_be_told_and_once() -> None:
    world = served()
    world.unload("u", "m")
    world.send(SaveEnded(save=intent(world, Phase.RUNNING)))
    assert world.all_stops == []
    world.writes_done()
    world.send(SaveEnded(save=intent(world, Phase.STOPPING)))
    assert len(world.all_stops) == 1


def test_an_intent_that_could_not_be_written_is_written_again_a_moment_later() -> None:
    world = served()
    world.unload("u", "m")
    world.writes_fail(UNAVAILABLE)
    world.send(TimePassed())
    assert state_of(world) is StopState.DRAINING
    assert world.writes == []
    world.now_s += STOP_RETRY_S - 0.01
    world.send(TimePassed())
    assert world.writes == []
    world.now_s += 0.01
    world.send(TimePassed())
    assert [one.record.phase for one in world.writes if isinstance(one, SaveDesired)] == [Phase.STOPPING]
    assert world.route("m:latest") == []


def test_a_write_that_fails_late_does_not_take_back_what_the_host_was_told() -> None:
    world = unloaded()
    world.send(SaveEnded(save=intent(world, Phase.RUNNING), fault=UNAVAILABLE))
    assert state_of(world) is StopState.COMMANDED
    world.stops_done()
    world.report()
    assert state_of(world) is None


def test_a_host_that_could_not_stop_it_is_told_again_a_moment_later() -> None:
    world = unloaded()
    fail_stop(world)
    world.writes_done()
    assert world.stops == []
    world.now_s += STOP_RETRY_S - 0.01
    world.send(TimePassed())
    world.writes_done()
    assert world.stops == []
    world.now_s += 0.01
    world.send(TimePassed())
    world.writes_done()
    assert len(world.stops) == 1
    world.stops_done()
    world.report()
    world.writes_done()
    assert state_of(world) is None
    assert world.store == {}


def test_an_answer_that_nobody_waits_for_moves_no_stop() -> None:
    world = served()
    world.work("p1", busy=1)
    world.report()
    world.unload("u", "m")
    assert state_of(world) is StopState.DRAINING
    world.send(StopEnded(placement_id="p1", generation=1))
    world.send(StopEnded(placement_id="p1", generation=1, fault=Fault(reason=PLACEMENT_MISMATCH, message="words")))
    assert state_of(world) is StopState.DRAINING
    assert not world.core.state.stops["p1"].has_failed


def test_a_host_that_runs_a_newer_generation_ends_the_stop_of_the_older_one() -> None:
    world = unloaded()
    fail_stop(world, PLACEMENT_MISMATCH)
    assert state_of(world) is None


def test_a_host_that_has_seen_a_higher_fence_makes_whoever_stops_rise_above_it() -> None:
    world = unloaded()
    fail_stop(world, STALE_FENCE)
    assert [one.high_water for one in world.dropped if hasattr(one, "high_water")] == [9]


def test_a_node_that_is_gone_before_it_could_be_told_ends_the_stop() -> None:
    world = served()
    world.unload("u", "m")
    world.cut_off.add("a")
    del world.nodes["a"]
    world.report()
    world.now_s += Policy().node_lost_s
    world.report()
    assert world.core.state.node("a") is None
    world.writes_done()
    assert state_of(world) is None
    assert world.all_stops == []
    assert world.store == {}


def test_a_node_that_is_gone_after_its_process_ended_is_not_waited_for() -> None:
    world = unloaded()
    world.holders["a", "gpu-0"] = ()
    taken = world.nodes["a"]
    first, *others = taken.devices
    world.nodes["a"] = replace(taken, devices=(replace(first, free_bytes=0), *others))
    world.cut_off.add("a")
    del world.nodes["a"]
    world.pass_time(Policy().node_lost_s - 1)
    world.stops_done()
    world.report()
    assert state_of(world) is StopState.RECOVERING, "its reports are not live"
    world.pass_time(2)
    assert state_of(world) is None


def test_while_reports_still_show_the_process_nothing_has_come_back() -> None:
    world = unloaded()
    before = world.views()
    world.stops_done()
    first, *others = world.nodes["a"].devices
    later = replace(before[0], devices=(replace(first, free_bytes=first.total_bytes), *others))
    world.nodes["a"] = later
    world.core.state.observed.see_inventory((later,), world.uptime_s, world.now_s)
    world.send(TimePassed())
    assert state_of(world) is StopState.RECOVERING
    assert [one.placement_id for one in promises(world.core.state)] == ["p1"]


def test_what_its_start_reported_is_forgotten_with_it() -> None:
    """No inventory has shown it yet."""
    world = world_with(node("a", models=models("m", "n")), m=16)
    world.ensure("c", "m")
    world.measure_all()
    world.writes_done()
    world.hosts_take_starts()
    world.load("p1", 1.0)
    world.writes_done()
    world.unload("u", "m")
    world.writes_done()
    world.stops_done()
    assert world.core.state.observed.replica("p1") is None


def test_a_stop_leaves_neither_a_record_nor_a_memory_of_the_replica() -> None:
    world = unloaded()
    assert "p1" in world.core.state.tracked
    world.stops_done()
    world.send(TimePassed())
    world.report()
    assert state_of(world) is None
    assert [one.placement_id for one in world.writes if isinstance(one, RemoveDesired)] == ["p1"]
    assert world.core.state.desired == {}
    assert "p1" not in world.core.state.tracked


def test_what_runs_in_a_newer_generation_keeps_its_record() -> None:
    world = unloaded()
    newer = replace(world.core.state.desired["p1"], generation=2, phase=Phase.RUNNING)
    world.core.state.desired["p1"] = newer
    one = world.runners["p1"]
    one.view = replace(one.view, generation=2, incarnation="p1.2")
    world.report()
    fail_stop(world, PLACEMENT_MISMATCH)
    assert world.core.state.desired["p1"] == newer
    assert not [one for one in world.writes if isinstance(one, RemoveDesired)]


def test_a_newer_runner_is_not_taken_for_the_one_that_goes() -> None:
    """It is busy, and another host process than the one whose stop was ordered."""
    world = served()
    world.work("p1", busy=1)
    world.report()
    world.unload("u", "m")
    one = world.runners["p1"]
    one.view = replace(one.view, generation=2, incarnation="p1.2")
    world.report()
    assert state_of(world) is StopState.SAVING, "the one that was meant is gone"


def test_what_is_neither_wanted_nor_seen_needs_no_host() -> None:
    world = served()
    world.work("p1", busy=1)
    world.report()
    world.unload("u", "m")
    world.core.state.forget_desired("p1")
    del world.runners["p1"]
    world.report()
    assert state_of(world) is None
    assert world.all_stops == []


def test_a_replica_that_nobody_has_written_down_is_written_down_as_going() -> None:
    """So that the next leader goes on with it."""
    world = served()
    world.core.state.forget_desired("p1")
    world.writes.clear()
    order_stop(world.core.state, "p1", reason="test", now_s=world.now_s)
    world.send(TimePassed())
    record = world.core.state.desired["p1"]
    assert (record.phase, record.generation, record.node_id) == (Phase.STOPPING, 1, "a")
    assert (record.model_digest, record.layout) == ("digest-m", world.runners["p1"].view.layout)


def test_a_replica_that_has_failed_keeps_its_bytes_while_it_is_stopped() -> None:
    world = served()
    one = world.runners["p1"]
    one.view = replace(one.view, state=RunnerState.ERROR, fault=UNAVAILABLE)
    held = {one.placement_id: one.device_bytes for one in promises(world.core.state)}
    world.send(RunnerReported(node_id="a", runner=one.view))
    world.core.state.observed.see_inventory(world.views(), world.uptime_s, world.now_s)
    order_stop(world.core.state, "p1", reason="test", now_s=world.now_s)
    assert {one.placement_id: one.device_bytes for one in promises(world.core.state)} == held


def loading() -> World:
    """A load that its host has begun."""
    world = world_with(node("a", models=models("m", "n")), m=16, n=16)
    world.ensure("c", "m")
    world.measure_all()
    world.writes_done()
    world.hosts_take_starts()
    world.load("p1", 0.4)
    world.report()
    return world


def test_a_load_that_is_stopped_holds_all_that_was_planned_for_it() -> None:
    """Margins too: nobody has seen yet what it takes."""
    world = loading()
    state = world.core.state
    planned = tuple(one for one in promises(state) if one.placement_id == "p1")
    assert planned[0].device_bytes["gpu-0"] > 16 * GIB
    order_stop(state, "p1", reason="test", now_s=world.now_s, forced=True)
    assert state.stops["p1"].held == planned


def test_what_goes_already_is_not_stopped_anew_as_something_that_nobody_saw() -> None:
    world = loading()
    state = world.core.state
    order_stop(state, "p1", reason="first", now_s=world.now_s, forced=True)
    going = state.stops["p1"]
    order_blind_stop(state, state.desired["p1"], (), reason="second", now_s=world.now_s)
    assert state.stops["p1"] is going


def test_a_standby_stops_nothing_that_nobody_saw() -> None:
    world = loading()
    record = world.core.state.desired["p1"]
    world.lose_leadership()
    order_blind_stop(world.core.state, record, (), reason="test", now_s=world.now_s)
    assert world.core.state.stops == {}


TARGET = Layout(context_tokens=4096, slots=1, batch_tokens=512)


def waited_for(world: World, node_id: str, device_id: str) -> bool:
    """Return True if a load on node a that evicted p1 waits for this device."""
    need = Need(
        device_id=device_id,
        node_id=node_id,
        weights_bytes=1,
        cache_bytes=0,
        graph_bytes=0,
        reserve_bytes=0,
        margin_bytes=0,
    )
    placement = Placement(node_id="a", layout=TARGET, report=report(1), needs=(need,), victims=("p1",), candidates=())
    return still_hold_what_is_needed(world.core.state, placement)


def test_a_load_waits_for_the_devices_that_it_needs_and_for_no_others() -> None:
    world = unloaded()
    assert waited_for(world, "a", "gpu-1"), "its process may be there still"
    (held,) = world.core.state.stops["p1"].held
    world.core.state.stops["p1"].state = StopState.RECOVERING
    world.core.state.stops["p1"].held = (replace(held, node_id="b"),)
    assert waited_for(world, "b", "gpu-0")
    assert not waited_for(world, "a", "gpu-0")
    assert not waited_for(world, "b", "gpu-1")
    del world.core.state.stops["p1"]
    assert not waited_for(world, "b", "gpu-0")


def test_a_stop_that_failed_is_waited_for_by_nobody_until_it_has_been_done() -> None:
    world = unloaded()
    fail_stop(world)
    assert not waited_for(world, "a", "gpu-0")
    world.now_s += STOP_RETRY_S
    world.send(TimePassed())
    world.writes_done()
    assert not waited_for(world, "a", "gpu-0")
    world.send(StopEnded(placement_id="p1", generation=1))
    assert waited_for(world, "a", "gpu-0")
