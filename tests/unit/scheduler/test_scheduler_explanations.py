"""Explanations of past, present and possible placements, and defaults for every model."""

from dataclasses import replace

import pytest

from common.spec import codecs
from common.spec.layout import FlashAttention
from common.spec.load_options import LoadOptions
from common.spec.speculation import Speculation
from scheduler.constraint_converters import from_explanation
from scheduler.core.planning.candidates import Verdict
from scheduler.core.state.effects import AnswerExplained
from scheduler.core.state.events import ConstraintsAsked, ExplainAsked
from scheduler.core.values.constraints import Constraints, FillPolicy
from scheduler.core.values.memory import GIB
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import DeviceView
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.constraint_commands import TWO_GPUS, told
from tests.unit.scheduler.keeping.test_scheduler_keeping import ONE_GPU, loaded, use
from tests.unit.scheduler.world import World, models, world_with


@pytest.mark.behaviour("B-134")
def test_explain_answers_at_once_while_a_load_is_stuck() -> None:
    world = world_with(node(devices=TWO_GPUS, models=models("m", "n")), m=16, n=16)
    world.ensure("c")
    world.measure_all()
    world.writes_done()
    world.hosts_take_starts()
    world.pass_time(100)
    stuck = world.explain("m", last=True)
    assert (stuck.outcome, stuck.hypothetical) == ("placed", False)
    assert stuck.age_s == pytest.approx(100, abs=2)
    assert world.explain("n").outcome == "measuring"


def with_defaults(defaults: Constraints, *devices: DeviceView) -> World:
    world = World(policy=replace(Policy(), defaults=defaults))
    world.nodes = {"a": node("a", devices=devices)}
    world.report()
    world.lead()
    return world


def test_defaults_of_the_settings_hold_until_constraints_override_them() -> None:
    spread = Constraints(policy=FillPolicy.SPREAD, cache_type_k="q8_0", cache_type_v="q8_0")
    world = with_defaults(spread, *TWO_GPUS)
    world.ensure("a")
    world.settle()
    (layout,) = [one.view.layout for one in world.runners.values()]
    assert {part.device_id for part in layout.devices} == {"gpu-0", "gpu-1"}
    assert (layout.cache_type_k, layout.cache_type_v) == ("q8_0", "q8_0")

    packed = with_defaults(spread, *TWO_GPUS)
    packed.want("m", policy="pack", cache_type_v="f16")
    packed.ensure("a")
    packed.settle()
    (layout,) = [one.view.layout for one in packed.runners.values()]
    assert len(layout.devices) == 1
    assert (layout.cache_type_k, layout.cache_type_v) == ("q8_0", "f16")


def test_explain_and_the_list_distinguish_defaults_constraints_and_request_options() -> None:
    defaults = Constraints(policy=FillPolicy.SPREAD, flash_attention=FlashAttention.OFF, backend="CUDA")
    world = with_defaults(defaults, *TWO_GPUS)
    world.want("m", flash_attention="on", priority=2)
    world.ensure("a", options=LoadOptions(num_gpu=3))
    world.settle()
    held = {one.name: (one.value, one.origin.value) for one in world.explain(last=True).constraints}
    assert held == {
        "backend": ("CUDA", "default"),
        "flash_attention": ("on", "command"),
        "num_gpu": ("3", "request"),
        "policy": ("spread", "default"),
        "priority": ("2", "command"),
    }
    listed = told(world).models[0]
    assert listed.defaults == Constraints(policy=FillPolicy.SPREAD, backend="CUDA")


def test_a_backend_for_all_that_nobody_has_is_the_operators_mistake_and_named() -> None:
    world = with_defaults(Constraints(backend="Vulkan"), gpu(), cpu())
    world.ensure("a")
    assert "PUNA_LLM_LIBRARY" in world.fault("a").message
    assert world.fault("a").reason == "model_unavailable"
    world.ensure("b", options=LoadOptions(num_gpu=0))  # who wants the processor has chosen
    world.settle()
    assert world.is_ready("b")


def test_explain_changes_nothing() -> None:
    world = loaded(world=world_with(node(devices=ONE_GPU, models=models("m", "n")), m=16, n=16))
    world.ensure("c", "n")
    world.settle()
    world.pass_time(20)
    before = (dict(world.core.state.jobs), dict(world.core.state.desired), dict(world.core.state.stops))
    writes = list(world.writes)
    first = world.explain("m")
    assert world.explain("m") == first
    assert (dict(world.core.state.jobs), dict(world.core.state.desired), dict(world.core.state.stops)) == before
    assert world.writes == writes


def test_explain_names_the_victims_and_what_they_cost() -> None:
    world = loaded(world=world_with(node(devices=ONE_GPU, models=models("m", "n")), m=16, n=16))
    world.pass_time(20)
    world.ensure("c", "n")
    world.settle()
    use(world, "n")
    world.pass_time(20)
    answer = world.explain("m")
    assert answer.outcome == "placed"
    (victim,) = answer.victims
    assert victim.model_name == "n:latest"
    assert victim.loss > 0


def test_explain_shows_what_a_replica_was_planned_with_and_what_it_holds() -> None:
    world = loaded()
    (replica,) = world.explain("m").replicas
    assert replica.predicted_bytes == replica.allocated_bytes > 0
    assert replica.device_names == ("GPU-0",)


def test_explain_shows_the_speculation_of_a_replica_as_its_runner_reports_it() -> None:
    world = loaded()
    (replica,) = world.explain("m").replicas
    assert replica.speculation is None
    shown = Speculation(drafted_tokens=9, accepted_tokens=5, call_ms=6.0, paying_share=0.25)
    one = world.runners[replica.placement_id]
    one.view = replace(one.view, speculation=shown)
    world.report()
    explanation = world.explain("m")
    assert explanation.replicas[0].speculation == shown
    (wire,) = from_explanation(explanation).replicas
    assert codecs.SPECULATION.from_proto(wire.speculation) == shown


def test_of_an_unknown_model_nothing_is_explained() -> None:
    world = world_with(node())
    world.send(replace(ConstraintsAsked(caller_id="x", model_name="m"), model_name="m"))
    assert world.explain("m", last=True).outcome == "none"


def test_a_question_may_name_the_slots_and_a_missing_report_for_them_is_measured() -> None:
    world = loaded()
    world.pass_time(20)
    asked = ExplainAsked(caller_id="why", model_name="m", slots=3, wait_s=5.0)
    world.send(asked)
    world.settle()
    (answer,) = [one for one in world.answers["why"] if isinstance(one, AnswerExplained)]
    assert {one.slots for one in answer.explanation.candidates if one.slots} == {3}


def test_the_measurement_that_a_question_asks_for_is_not_in_its_own_way() -> None:
    """A lent device serves one process at a time: while it is measured, nothing else could be there."""
    world = world_with(node(devices=(replace(gpu(), backend="RPC"), cpu(free=4, total=4)), models=models("m")), m=16)
    gpu_only = LoadOptions(require_gpu=True)
    world.send(ExplainAsked(caller_id="why", model_name="m", options=gpu_only, wait_s=5.0))
    world.report()
    assert not world.answers.get("why")
    assert len(world.measures) == 1
    world.settle()
    (answer,) = [one for one in world.answers["why"] if isinstance(one, AnswerExplained)]
    assert answer.explanation.outcome == "placed"


def test_what_was_left_out_is_shown_with_what_is_free_there() -> None:
    world = loaded(world=world_with(node(devices=(gpu(), replace(gpu("bad"), usable=False), cpu()))))
    answer = world.explain("m")
    (left_out,) = [one for one in answer.candidates if one.device_id == "bad"]
    (have,) = left_out.available
    assert (left_out.verdict, left_out.needs) == (Verdict.DEVICE_EXCLUDED, ())
    assert (have.free_bytes, have.source) == (gpu("bad").free_bytes, "nvml")
    shown = [device for one in from_explanation(answer).candidates for device in one.devices]
    (device,) = [one for one in shown if one.device_id == "bad"]
    assert (device.need_bytes, device.free_bytes, device.name) == (0, have.free_bytes, "BAD")


def test_the_last_decision_shows_what_was_left_out_with_the_figures_of_that_time() -> None:
    bad = replace(gpu("bad", free=7), usable=False)
    world = loaded(world=world_with(node(devices=(gpu(), bad, cpu()))))
    world.nodes["a"] = replace(world.nodes["a"], devices=(gpu(), replace(bad, free_bytes=1), cpu()))
    world.pass_time(3)
    (left_out,) = [one for one in world.explain("m", last=True).candidates if one.device_id == "bad"]
    (have,) = left_out.available
    assert (have.free_bytes, have.source, have.total_bytes) == (bad.free_bytes, "nvml", bad.total_bytes)
    assert have.age_s < 3, "as it was then"
    (now,) = [one for one in world.explain("m").candidates if one.device_id == "bad"]
    assert now.available[0].free_bytes == 1


def test_the_last_refusal_shows_what_is_free_where_a_node_was_left_out() -> None:
    world = world_with(node(devices=(gpu(free=1), cpu(free=2, total=2))), replace(node(), id="b", suspect=True), m=16)
    world.ensure("c")
    world.settle()
    answer = world.explain("m", last=True)
    assert answer.outcome == "insufficient_memory"
    assert {one.node_id for one in answer.candidates} == {"a", "b"}
    assert all(one.available for one in answer.candidates)
    assert all(have.free_bytes > 0 and have.source == "nvml" for one in answer.candidates for have in one.available)


def limits_on(world: World, device_id: str) -> set[tuple[str, int | None]]:
    world.answers.pop("why", None)
    world.send(ExplainAsked(caller_id="why", model_name="m", wait_s=5.0))
    world.settle()
    (told,) = [one for one in world.answers["why"] if isinstance(one, AnswerExplained)]
    answer = from_explanation(told.explanation)
    return {
        (one.limit, one.max_bytes if one.HasField("max_bytes") else None)
        for candidate in answer.candidates
        for one in candidate.devices
        if one.device_id == device_id
    }


def test_the_limit_that_left_less_than_what_is_free_is_named() -> None:
    world = world_with(node(devices=(gpu("free"), replace(gpu("capped"), max_bytes=2 * GIB), cpu())), m=16)
    world.ensure("c", options=LoadOptions(require_gpu=True))
    world.settle()
    assert limits_on(world, "capped") == {("max_bytes", 2 * GIB)}
    assert limits_on(world, "free") == {("promised", None)}, "to the replica, with its reserve and margin"


def test_the_limit_of_the_model_is_named_where_it_is_the_lower_one() -> None:
    world = loaded()
    world.want("m", max_bytes={"*": 3 * GIB})
    assert limits_on(world, "gpu-0") == {("model_max_bytes", 3 * GIB)}
    world.want("m", max_bytes={"*": 99 * GIB})
    assert limits_on(world, "gpu-0") == {("promised", None)}


def test_figures_are_as_old_as_the_report_that_brought_them() -> None:
    world = loaded()
    world.nodes["a"] = replace(world.nodes["a"], report_age_s=3.0)
    world.report()
    ages = [have.age_s for one in world.explain("m").candidates for have in one.available]
    assert ages
    assert min(ages) >= 3
