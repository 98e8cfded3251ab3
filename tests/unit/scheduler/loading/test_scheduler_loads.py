"""Loads through the whole core: one for everybody, in whatever way it ends."""

import pytest

from scheduler.core.state.effects import AnswerQueued, SaveDesired
from scheduler.core.values.desired import Phase
from scheduler.core.values.faults import Fault, not_leading
from scheduler.core.values.policy import Policy
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
    assert world.core.state.waiters() == 0


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
    world.lose_leadership()
    world.ensure("warm")
    world.ensure("cold", "n")
    assert world.is_ready("warm")
    assert world.route() == ["p1"]
    assert world.fault("cold").reason == "store_unreachable"
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
    world.lose_leadership(not_leading("another scheduler leads: b:1"))
    for caller in ("c1", "c2"):
        assert world.fault(caller).reason == "not_leading"
        assert world.fault(caller).message == "another scheduler leads: b:1"
    assert not world.core.state.models["digest-m"].failures.count, "the model has no part in it"


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
