"""Loads that nobody waits for or that never end, memory that comes back by device, and questions that wait."""

import pytest

from scheduler.core.state.effects import AnswerExplained, AnswerFailed, ClearDevice
from scheduler.core.state.events import DeviceClearAsked, ExplainAsked
from scheduler.core.state.load_jobs import LoadState
from scheduler.core.values.faults import Fault
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.keeping.test_scheduler_keeping import ONE_GPU, loaded
from tests.unit.scheduler.world import World, models, world_with

TWO_GPUS = (gpu("gpu-0"), gpu("gpu-1"), cpu(free=4, total=4))


def states(world: World) -> dict[str, LoadState]:
    return {job.model_name: job.state for job in world.core.state.jobs.values()}


@pytest.mark.behaviour("B-135")
def test_a_load_without_callers_that_has_not_begun_goes_when_another_one_waits() -> None:
    world = loaded("m", world=world_with(node(devices=ONE_GPU, models=models("m", "n", "o")), m=16, n=16, o=16))
    world.work("p1", busy=1)
    world.report()
    world.ensure("first", "n")
    world.settle()
    world.leave("first")
    world.pass_time(2)
    assert set(states(world)) == {"n:latest"}  # nobody else wants the room
    world.ensure("second", "o")
    world.settle()
    assert set(states(world)) == {"o:latest"}
    world.work("p1", busy=0)
    world.pass_time(20)
    world.settle()
    assert world.is_ready("second")
    assert world.finals("first") == []


def test_a_load_that_an_operator_wants_does_not_go_because_another_one_waits() -> None:
    world = loaded(world=world_with(node(devices=ONE_GPU, models=models("m", "n", "k")), m=16, n=16, k=16))
    world.work("p1", busy=1)
    world.report()
    world.want("k", preload=True, max_shape="one_device")
    world.report()
    world.measure_all()
    world.want("n", max_shape="one_device")
    world.ensure("c", "n")
    world.measure_all()
    world.pass_time(10)
    assert world.noted("model.load_failed") == []


def test_a_load_without_callers_that_has_begun_is_finished_all_the_same() -> None:
    world = world_with(node(devices=TWO_GPUS, models=models("m", "n")), m=16, n=16)
    world.ensure("first", "m")
    world.measure_all()
    world.writes_done()
    world.hosts_take_starts()
    world.leave("first")
    world.ensure("second", "n")
    world.settle()
    assert world.is_ready("second")
    assert len(world.route("m:latest")) == 1


def test_a_load_that_moves_too_slowly_to_end_is_given_up_in_time() -> None:
    world = world_with(node(devices=ONE_GPU), m=8)
    world.ensure("c")
    world.measure_all()
    world.writes_done()
    world.hosts_take_starts()
    for step in range(20):  # some progress every hundred seconds: 8 GiB may take 600 + 8 * 120 s
        world.load("p1", 0.01 * (step + 1))
        world.pass_time(100)
        if world.finals("c"):
            break
    assert world.fault("c").message.startswith("loading took longer than 1560 s")
    world.settle()
    assert world.runners == {}


# Memory that comes back.


def hog(world: World, device_id: str, gib: float) -> None:
    """Another process takes memory of a device for ever."""
    devices = tuple(
        gpu(one.id, free=24 - gib, total=24) if one.id == device_id else one for one in world.nodes["a"].devices
    )
    world.nodes["a"] = node("a", devices=devices, models=world.nodes["a"].models)


def test_a_node_runs_two_loads_at_once_because_they_share_its_disk() -> None:
    gpus = tuple(gpu(f"gpu-{number}") for number in range(3))
    world = world_with(node(devices=(*gpus, cpu(free=4, total=4)), models=models("m", "n", "o")), m=16, n=16, o=16)

    def go_on() -> None:
        for _ in range(4):
            world.measure_all()
            world.writes_done()
            world.hosts_take_starts()

    for name in ("m", "n", "o"):
        world.ensure(f"asks-{name}", name)
    go_on()
    assert set(world.runners) == {"p1", "p2"}
    assert states(world)["o:latest"] is LoadState.WAITING
    world.load("p1", 1.0)
    go_on()
    assert set(world.runners) == {"p1", "p2", "p3"}
    assert len({runner.view.layout.devices[0].device_id for runner in world.runners.values()}) == 3


@pytest.mark.behaviour("B-137")
def test_a_hog_on_one_device_does_not_delay_a_reload_on_another() -> None:
    """Two models go at once; the memory of one device is taken by somebody else before it is seen to be free."""
    world = world_with(node(devices=TWO_GPUS, models=models("m", "n", "o")), m=16, n=16, o=16)
    for name in ("m", "n"):
        loaded(name, world=world)
    on = {one.view.layout.devices[0].device_id: key for key, one in world.runners.items()}
    world.unload("u", "m")
    world.unload("v", "n")
    world.writes_done()
    hog(world, "gpu-1", 16)
    world.stops_done()
    world.report()
    assert on["gpu-0"] not in world.core.state.stops  # recovered at once
    assert on["gpu-1"] in world.core.state.stops
    world.ensure("c", "o")
    world.measure_all()
    world.writes_done()
    (start,) = world.starts
    assert [part.device_id for part in start.record.layout.devices] == ["gpu-0"]


@pytest.mark.behaviour("B-137")
def test_a_device_that_does_not_recover_is_given_up_after_some_seconds_and_its_figures_count() -> None:
    world = loaded("m", world=world_with(node(devices=ONE_GPU, models=models("m", "n")), m=16, n=16))
    world.unload("u", "m")
    world.writes_done()
    hog(world, "gpu-0", 16)
    world.stops_done()
    world.report()
    assert set(world.core.state.stops) == {"p1"}
    world.pass_time(5.1)
    assert world.core.state.stops == {}
    world.ensure("c", "n")
    world.settle()
    assert not world.is_ready("c")  # the hog is still there


def test_memory_of_the_host_is_not_waited_for() -> None:
    world = loaded("m", world=world_with(node(devices=(cpu(),))))
    world.unload("u", "m")
    world.writes_done()
    world.stops_done()
    world.report()
    assert world.core.state.stops == {}


# Questions.


def ask(world: World, *, wait_s: float, caller: str = "why") -> list[AnswerExplained]:
    effects = world.send(ExplainAsked(caller_id=caller, model_name="m", wait_s=wait_s))
    return [one for one in effects if isinstance(one, AnswerExplained)]


def test_a_question_waits_for_the_report_that_is_missing() -> None:
    world = world_with(node())
    assert ask(world, wait_s=5) == []
    assert len(world.measures) == 1
    world.measure_all()
    (answer,) = world.answers["why"]
    assert isinstance(answer, AnswerExplained)
    assert answer.explanation.outcome == "placed"
    assert world.core.state.jobs == {}
    assert world.all_starts == []


def test_a_question_without_time_is_answered_at_once_and_the_next_one_knows() -> None:
    world = world_with(node())
    (first,) = ask(world, wait_s=0)
    assert first.explanation.outcome == "measuring"
    world.measure_all()
    (second,) = ask(world, wait_s=0, caller="again")
    assert second.explanation.outcome == "placed"


def test_a_question_is_answered_when_its_time_is_up_and_forgotten_when_its_caller_leaves() -> None:
    world = world_with(node())
    ask(world, wait_s=3)
    ask(world, wait_s=30, caller="impatient")
    world.leave("impatient")
    world.pass_time(3.5)
    (answer,) = world.answers["why"]
    assert isinstance(answer, AnswerExplained)
    assert answer.explanation.outcome == "measuring"
    world.measure_all()
    assert "impatient" not in world.answers
    assert world.core.state.questions == {}


def test_a_measurement_that_fails_is_named_and_not_asked_for_again_and_again() -> None:
    world = world_with(node())
    ask(world, wait_s=5)
    for _ in range(12):
        if world.measures:
            world.measure_fails(Fault(reason="bad_model_file", message="the engine refused it: tensor missing"))
    (answer,) = world.answers["why"]
    assert isinstance(answer, AnswerExplained)
    assert answer.explanation.outcome == "measure_failed"
    assert "tensor missing" in answer.explanation.message


# Devices that were excluded.


def clear(world: World, label: str) -> list[object]:
    world.answers.pop("clears", None)
    return [
        one
        for one in world.core.handle(DeviceClearAsked(caller_id="clears", label=label), world.now_s)
        if isinstance(one, ClearDevice | AnswerFailed)
    ]


def test_an_excluded_device_is_tested_again_by_its_host_under_the_fence() -> None:
    world = world_with(node("a", devices=(gpu(usable=False), cpu())), node("b"))
    (order,) = clear(world, "a/gpu-0")
    assert isinstance(order, ClearDevice)
    assert (order.address, order.device_id, order.fence) == ("a:1", "gpu-0", world.fence)


@pytest.mark.parametrize(("label", "reason"), [("gpu-0", "invalid_value"), ("gpu-9", "device_not_found")])
def test_a_name_that_means_several_devices_or_none_clears_nothing(label: str, reason: str) -> None:
    world = world_with(node("a"), node("b"))
    (refusal,) = clear(world, label)
    assert isinstance(refusal, AnswerFailed)
    assert refusal.fault.reason == reason
    world.lose_leadership()
    (standby,) = clear(world, label)
    assert isinstance(standby, AnswerFailed)
    assert standby.fault.reason == "store_unreachable"


def test_the_name_of_a_model_is_no_device_and_the_answer_names_the_command_for_models() -> None:
    (refusal,) = clear(world_with(node("a")), "m")
    assert isinstance(refusal, AnswerFailed)
    text = "device 'm' not found; it is a model: `puna load m:latest` forgets its crashes"
    assert (refusal.fault.reason, refusal.fault.message) == ("device_not_found", text)


def test_nobody_waits_for_what_only_pinned_replicas_hold() -> None:
    world = world_with(
        node("a", devices=(gpu(free=12, total=12), cpu(free=2, total=2)), models=models("m", "n")), m=8, n=8
    )
    world.want("m", pinned=True)
    world.ensure("c", "m")
    world.settle()
    world.ensure("d", "n")
    world.settle()
    assert world.fault("d").reason == "insufficient_memory"
    world.want("m", pinned=False)
    world.ensure("e", "n")
    world.pass_time(12)
    world.settle()
    assert world.is_ready("e")
