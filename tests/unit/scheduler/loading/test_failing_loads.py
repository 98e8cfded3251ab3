"""Loads that fail, stall, are refused or lose what they need: what is tried again, and what callers hear."""

from dataclasses import replace

import pytest

from scheduler.core.loading.crashes import crash_rows
from scheduler.core.state.effects import CheckLeadership, DropLeadership
from scheduler.core.state.events import StartFailed
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import GIB, DeviceBytes, MemoryOrigin, MemoryReport
from scheduler.core.values.view import RunnerState
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.world import World, models, world_with


def test_a_file_that_the_engine_refuses_fails_without_a_second_attempt() -> None:
    world = world_with(node(devices=(cpu(),)))
    world.ensure("c")
    world.measure_fails(Fault(reason="bad_model_file", message="wrong magic"))
    assert world.fault("c").reason == "bad_model_file"
    assert world.measures == []


def test_a_store_that_does_not_take_the_placement_starts_nothing() -> None:
    world = world_with(node())
    world.ensure("c")
    world.measure_all()
    world.writes_fail(Fault(reason="model_unavailable", message="state store unreachable: timeout"))
    assert world.all_starts == []
    assert world.fault("c").message == "state store unreachable: timeout"


def test_a_stale_write_asks_for_leadership_anew_and_the_load_goes_on() -> None:
    world = world_with(node())
    world.ensure("c")
    world.measure_all()
    world.fence += 1  # the store forgot, or somebody else led for a moment
    world.writes_done()
    assert any(isinstance(one, CheckLeadership) for one in world.dropped)
    world.lead()
    world.pass_time(1)
    world.settle()
    assert world.is_ready("c")


def test_a_host_that_has_seen_a_higher_fence_makes_the_leader_rise_above_it() -> None:
    world = world_with(node())
    world.high_fence = 77
    world.ensure("c")
    world.measure_all()
    world.writes_done()
    world.hosts_take_starts()
    assert DropLeadership(high_water=77) in world.dropped
    world.fence = 77
    world.lead()
    world.pass_time(1)
    world.settle()
    assert world.is_ready("c")
    assert world.runners["p1"].view.generation == 2


def out_of_memory(device_id: str = "gpu-0") -> Fault:
    attempted = MemoryReport(
        origin=MemoryOrigin.ATTEMPTED,
        devices=(DeviceBytes(device_id=device_id, weights_bytes=8 * GIB),),
        host=DeviceBytes(),
    )
    return Fault(reason="device_memory_exhausted", message="gpu-0 has less free than planned", attempted=attempted)


def start_once(world: World) -> None:
    world.measure_all()
    world.writes_done()


def test_a_load_refused_for_memory_is_planned_again_with_more_left_free() -> None:
    world = world_with(node(devices=(gpu(free=9), gpu("gpu-1", free=8.8), cpu())))
    world.ensure("c")
    start_once(world)
    first = world.starts.pop()
    world.start_fails(first.record, out_of_memory())
    assert world.finals("c") == []
    world.pass_time(2)
    start_once(world)
    second = world.starts[0].record
    assert (second.placement_id, second.generation) == (first.record.placement_id, 2)
    assert second.layout.devices[0].device_id == "gpu-1"
    world.settle()
    assert world.is_ready("c")


def test_a_third_refusal_for_memory_is_final_and_typed() -> None:
    world = world_with(node(devices=(gpu(total=80, free=80), cpu(free=4, total=4))))
    world.ensure("c")
    for _ in range(3):
        world.pass_time(5)
        start_once(world)
        world.start_fails(world.starts.pop().record, out_of_memory())
    assert world.fault("c").reason == "device_memory_exhausted"
    world.pass_time(60)
    world.writes_done()
    assert len(world.all_starts) == 3
    assert world.store == {}


@pytest.mark.parametrize("reason", ["bad_model_file", "digest_mismatch", "invalid_value", "runner_lost"])
def test_other_failures_of_a_start_reach_every_caller_as_they_are(reason: str) -> None:
    world = world_with(node())
    world.ensure("c1")
    world.ensure("c2")
    start_once(world)
    world.start_fails(world.starts.pop().record, Fault(reason=reason, message="words of the host"))
    for caller in ("c1", "c2"):
        assert world.fault(caller).reason == reason
        assert world.fault(caller).message == "words of the host"
    assert len(world.all_starts) == 1


def test_after_a_failed_start_the_next_load_waits_a_moment_and_then_tries() -> None:
    world = world_with(node())
    world.ensure("c1")
    start_once(world)
    world.start_fails(world.starts.pop().record, Fault(reason="runner_lost", message="died"))
    world.ensure("c2")
    start_once(world)
    assert world.starts == []
    world.pass_time(1)
    world.settle()
    assert world.is_ready("c2")


def test_an_unanswered_start_is_sent_again_unchanged() -> None:
    world = world_with(node())
    world.ensure("c")
    start_once(world)
    first = world.starts.pop()
    world.start_fails(first.record, Fault(reason="model_unavailable", message="service unreachable"))
    world.pass_time(1)
    assert [one.record for one in world.starts] == [first.record]
    world.settle()
    assert world.is_ready("c")


def test_a_load_whose_stream_broke_is_followed_through_the_inventory() -> None:
    world = world_with(node())
    world.ensure("c")
    start_once(world)
    world.hosts_take_starts()
    world.load("p1", 0.3)
    world.report()
    record = world.all_starts[0].record
    world.start_fails(record, Fault(reason="model_unavailable", message="stream reset"))
    world.load("p1", 0.6, telling=False)
    world.report()
    assert world.loading("c")[-1] == 0.6
    world.load("p1", 1.0, telling=False)
    world.report()
    assert world.is_ready("c")
    assert len(world.all_starts) == 1


def test_any_progress_re_arms_the_stall_timer_and_none_ends_the_load() -> None:
    world = world_with(node())
    world.ensure("c")
    start_once(world)
    world.hosts_take_starts()
    for step in range(5):
        world.pass_time(250)
        world.load("p1", 0.1 * (step + 1))
    assert world.finals("c") == []
    world.pass_time(301)
    assert world.fault("c").message == "timed out waiting for llama runner to start - progress 0.50"
    world.writes_done()
    (stop,) = world.stops
    assert (stop.placement_id, stop.drain_ms) == ("p1", 0)
    world.settle()
    assert world.runners == {}
    assert world.store == {}


def test_a_load_that_stands_still_is_told_with_the_last_error_of_its_log() -> None:
    world = world_with(node())
    world.ensure("c")
    start_once(world)
    world.hosts_take_starts()
    world.load("p1", 0.4)
    one = world.runners["p1"]
    one.view = replace(one.view, last_error_line="read error: Stale file handle")
    world.report()
    world.pass_time(301)
    said = "timed out waiting for llama runner to start - progress 0.40 - read error: Stale file handle"
    assert world.fault("c").message == said


def test_a_node_that_vanishes_during_a_load_gives_it_to_another() -> None:
    world = world_with(node("a"), node("b", devices=(gpu(free=20), cpu())))
    world.ensure("c")
    start_once(world)
    world.hosts_take_starts()
    world.load("p1", 0.4)
    assert world.runners["p1"].node_id == "a"
    del world.nodes["a"]
    del world.runners["p1"]
    world.pass_time(6)
    world.settle()
    assert world.is_ready("c")
    assert [one.node_id for one in world.runners.values()] == ["b"]


def test_a_runner_that_disappears_while_it_loads_fails_the_load_at_once() -> None:
    world = world_with(node())
    world.ensure("c")
    start_once(world)
    world.hosts_take_starts()
    world.report()
    assert world.finals("c") == []
    world.runner_dies("p1")
    assert world.fault("c").reason == "runner_lost"


def test_a_start_that_ends_in_a_runner_error_is_a_failure_like_any_other() -> None:
    world = world_with(node())
    world.ensure("c")
    start_once(world)
    record = world.starts.pop().record
    world.send(
        StartFailed(
            placement_id=record.placement_id,
            generation=record.generation,
            fault=Fault(reason="bad_model_file", message="no tensors"),
        )
    )
    assert world.fault("c").reason == "bad_model_file"
    assert world.route() == []


@pytest.mark.parametrize("seen_in", ["stream", "inventory"])
def test_callers_hear_why_a_runner_ended_wherever_that_is_seen(seen_in: str) -> None:
    world = world_with(node())
    world.ensure("c")
    start_once(world)
    world.hosts_take_starts()
    one = world.runners["p1"]
    one.view = replace(one.view, state=RunnerState.ERROR, fault=Fault(reason="bad_model_file", message="no tensors"))
    if seen_in == "stream":
        world.tell("p1")
    else:
        world.report()
    assert world.fault("c").reason == "bad_model_file"


@pytest.mark.behaviour("B-133")
def test_a_stuck_load_blocks_no_other_model() -> None:
    world = world_with(node(devices=(gpu(), gpu("gpu-1", free=20), cpu()), models=models("m", "n")))
    world.ensure("stuck", "m")
    start_once(world)
    world.hosts_take_starts()
    world.load("p1", 0.1)
    world.ensure("other", "n")
    start_once(world)
    world.hosts_take_starts()
    world.load("p2", 1.0)
    assert world.is_ready("other")
    assert world.finals("stuck") == []
    assert world.runners["p2"].view.layout.devices[0].device_id == "gpu-1"


def loaded_and_dead(world: World, message: str) -> None:
    """Its process ends between the load and the first report of it."""
    start_once(world)
    world.hosts_take_starts()
    world.load("p1", 1.0, telling=False)
    world.crash("p1", Fault(reason="runner_lost", message=message))


def test_a_runner_that_dies_once_it_has_loaded_is_a_crash_and_its_callers_get_the_next_one() -> None:
    world = world_with(node())
    world.ensure("c")
    loaded_and_dead(world, "signal 9: last words")
    (row,) = crash_rows(world.core.state, world.now_s)
    assert (row.crashes, row.error, row.retry_at_s) == (1, "signal 9: last words", world.now_s + 0.5)
    assert world.noted("model.load_failed") == []
    world.pass_time(1)
    world.settle()
    assert world.is_ready("c")
    assert world.runners["p1"].view.generation == 2


def test_runners_that_die_each_time_they_have_loaded_fail_the_load_and_exclude_the_node() -> None:
    world = world_with(node())
    world.ensure("c")
    for number in range(3):
        world.pass_time(number)
        loaded_and_dead(world, f"death {number}")
    assert world.fault("c").message == "death 2"
    (row,) = crash_rows(world.core.state, world.now_s)
    assert row.crashes == 3
    assert row.excluded_until_s is not None
