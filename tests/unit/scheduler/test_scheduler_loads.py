"""Loads through the whole core: one for everybody, in whatever way it ends."""

from dataclasses import replace

import pytest

from scheduler.core.desired import Phase
from scheduler.core.effects import AnswerQueued, CheckLeadership, DropLeadership, SaveDesired
from scheduler.core.events import StartFailed
from scheduler.core.faults import Fault
from scheduler.core.memory import GIB, DeviceBytes, MemoryOrigin, MemoryReport
from scheduler.core.policy import Policy
from tests.unit.scheduler.builders import cpu, gpu, model, node
from tests.unit.scheduler.world import World, models, world_with


def test_a_cold_model_is_measured_written_down_started_and_routed() -> None:
    world = world_with(node())
    world.ensure("c")
    assert [one.layout.slots for one in world.measures] == [8]
    world.measure_all()
    (write,) = world.writes
    assert isinstance(write, SaveDesired)
    assert write.record.phase is Phase.STARTING
    assert world.starts == [], "nothing is started that is not written down"
    world.writes_done()
    (start,) = world.starts
    assert start.record == write.record
    assert start.fence == world.fence
    world.hosts_take_starts()
    world.load("p1", 0.25)
    world.load("p1", 0.75)
    world.load("p1", 1.0)
    assert world.loading("c") == [0.0, 0.25, 0.75, 1.0]
    assert world.is_ready("c")
    assert world.route() == ["p1"]
    world.writes_done()
    assert world.store["p1"].phase is Phase.RUNNING


@pytest.mark.behaviour("B-84")
def test_five_callers_share_one_load_and_the_first_may_leave() -> None:
    world = world_with(node())
    for number in range(5):
        world.ensure(f"c{number}")
    world.leave("c0")
    world.settle()
    assert len(world.all_starts) == 1
    assert world.finals("c0") == []
    assert all(world.is_ready(f"c{number}") for number in range(1, 5))


@pytest.mark.behaviour("B-135")
@pytest.mark.parametrize("leaves_at", ["measuring", "writing", "starting", "loading"])
def test_a_load_survives_its_only_caller_in_every_state(leaves_at: str) -> None:
    world = world_with(node())
    world.ensure("c")
    if leaves_at == "measuring":
        world.leave("c")
    world.measure_all()
    if leaves_at == "writing":
        world.leave("c")
    world.writes_done()
    if leaves_at == "starting":
        world.leave("c")
    world.hosts_take_starts()
    world.load("p1", 0.5)
    if leaves_at == "loading":
        world.leave("c")
    world.settle()
    assert world.route() == ["p1"]
    assert world.finals("c") == []
    assert world.core.books.waiters() == 0


def test_a_late_caller_is_told_where_the_load_stands() -> None:
    world = world_with(node())
    world.ensure("c1")
    world.measure_all()
    world.writes_done()
    world.hosts_take_starts()
    world.load("p1", 0.5)
    world.ensure("c2")
    assert world.loading("c2") == [0.5]


def test_progress_never_falls() -> None:
    world = world_with(node())
    world.ensure("c")
    world.measure_all()
    world.writes_done()
    world.hosts_take_starts()
    for fraction in (0.5, 0.2, 0.5, 0.7):
        world.load("p1", fraction)
    assert world.loading("c") == [0.0, 0.5, 0.7]


def test_a_warm_model_is_answered_at_once() -> None:
    world = world_with(node())
    world.ensure("c1")
    world.settle()
    world.ensure("c2")
    assert world.is_ready("c2")
    assert len(world.all_starts) == 1


@pytest.mark.parametrize("name", ["nope", "m:other", ""])
def test_an_unknown_model_is_not_found(name: str) -> None:
    world = world_with(node())
    world.ensure("c", name)
    assert world.fault("c") == Fault(reason="model_not_found", message=f"model '{name}' not found")


def test_before_any_node_has_registered_a_model_is_unavailable_not_unknown() -> None:
    world = World(uptime_s=1.0)
    world.lead()
    world.ensure("c1")
    world.report()
    world.ensure("c2")
    assert world.fault("c1").reason == "model_unavailable"
    assert world.fault("c2").reason == "model_unavailable"
    assert world.fault("c2").retry_after_s is not None


def test_a_broken_file_is_named_with_its_reason() -> None:
    world = world_with(node(models=(model(error="the tensor table is cut off"),)))
    world.ensure("c")
    fault = world.fault("c")
    assert fault.reason == "bad_model_file"
    assert "the tensor table is cut off" in fault.message


def test_a_file_that_the_engine_refuses_fails_without_a_second_attempt() -> None:
    world = world_with(node(devices=(cpu(),)))
    world.ensure("c")
    world.measure_fails(Fault(reason="bad_model_file", message="wrong magic"))
    assert world.fault("c").reason == "bad_model_file"
    assert world.measures == []


def test_a_model_that_cannot_fit_is_refused_with_numbers() -> None:
    world = world_with(node(devices=(gpu(), cpu(free=16, total=16))), m=100)
    world.ensure("c")
    world.settle()
    fault = world.fault("c")
    assert fault.reason == "insufficient_memory"
    assert fault.message.startswith("model requires more system memory (100.")


def test_without_leadership_a_cold_model_is_unavailable_with_the_reason_and_a_warm_one_is_not() -> None:
    world = world_with(node(models=models("m", "n")))
    world.ensure("c1")
    world.settle()
    world.lose_leadership("state store unreachable: connection refused")
    world.ensure("warm")
    world.ensure("cold", "n")
    assert world.is_ready("warm")
    assert world.route() == ["p1"]
    assert world.fault("cold").reason == "model_unavailable"
    assert "state store unreachable" in world.fault("cold").message
    assert world.fault("cold").retry_after_s is not None


@pytest.mark.behaviour("B-135")
@pytest.mark.parametrize("at", ["measuring", "writing", "starting", "loading"])
def test_losing_leadership_answers_every_waiter_once(at: str) -> None:
    world = world_with(node())
    world.ensure("c1")
    world.ensure("c2")
    if at != "measuring":
        world.measure_all()
    if at in ("starting", "loading"):
        world.writes_done()
    if at == "loading":
        world.hosts_take_starts()
        world.load("p1", 0.5)
    world.lose_leadership("another scheduler leads: b:1")
    for caller in ("c1", "c2"):
        assert world.fault(caller).reason == "model_unavailable"
        assert world.fault(caller).message == "another scheduler leads: b:1"


def test_more_waiters_than_allowed_are_told_to_come_again() -> None:
    world = World(policy=Policy(load_waiters_max=2))
    world.nodes = {"a": node()}
    world.report()
    world.lead()
    for number in range(3):
        world.ensure(f"c{number}")
    assert world.fault("c2").reason == "queue_full"
    world.settle()
    assert world.is_ready("c0")
    assert world.is_ready("c1")


def test_when_to_come_again_follows_from_the_loads_that_were_seen() -> None:
    world = World(policy=Policy(load_waiters_max=1))
    world.nodes = {"a": node(models=models("m", "n"))}
    world.report()
    world.lead()
    for caller in ("c0", "c1"):
        world.ensure(caller, "n")
    assert world.fault("c1").retry_after_s == 1.0, "nothing was seen yet"
    world.measure_all()
    world.writes_done()
    world.hosts_take_starts()
    world.pass_time(40)
    world.load("p1", 1.0)
    assert world.is_ready("c0")
    for caller in ("c2", "c3"):
        world.ensure(caller, "m")
    assert world.fault("c3").retry_after_s == pytest.approx(40, abs=1)


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


def test_loads_that_contend_are_served_by_age_and_told_their_place() -> None:
    world = world_with(node(devices=(gpu(), cpu(free=4, total=4)), models=models("m", "n", "o")), m=5, n=5, o=5)
    for name in ("m", "n", "o"):
        world.ensure(f"c-{name}", name)
    world.measure_all()
    world.writes_done()
    assert [one.record.model_name for one in world.all_starts] == ["m:latest"]
    assert [one.position for one in world.answers["c-o"] if isinstance(one, AnswerQueued)][-1] == 2
    world.hosts_take_starts()
    world.load("p1", 1.0)
    world.measure_all()
    world.writes_done()
    assert [one.record.model_name for one in world.all_starts] == ["m:latest", "n:latest"]
    assert [one.position for one in world.answers["c-o"] if isinstance(one, AnswerQueued)][-1] == 1


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
