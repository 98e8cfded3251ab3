"""What operators want of models, through the whole core: kept, pinned, preloaded, placed, and told why."""

from dataclasses import replace

import pytest

from scheduler.core.constraint_fields import parse_constraints
from scheduler.core.constraints import Constraints, FillPolicy, LoadOptions
from scheduler.core.effects import AnswerConstraints, AnswerExplained, AnswerFailed
from scheduler.core.events import ConstraintsAsked, ConstraintsPut, ExplainAsked, QueuesReported
from scheduler.core.faults import Fault
from scheduler.core.layouts import FlashAttention
from scheduler.core.policy import Policy
from scheduler.core.view import DeviceView
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.test_scheduler_keeping import ONE_GPU, loaded, use
from tests.unit.scheduler.world import World, models, world_with

TWO_GPUS = (gpu("gpu-0"), gpu("gpu-1"), cpu(free=4, total=4))


def told(world: World, model_name: str = "m") -> AnswerConstraints:
    world.answers.pop("asks", None)
    world.send(ConstraintsAsked(caller_id="asks", model_name=model_name))
    (answer,) = world.answers["asks"]
    assert isinstance(answer, AnswerConstraints)
    return answer


def refusal(world: World, model_name: str = "m") -> str:
    (answer,) = world.answers[f"want-{model_name}"]
    assert isinstance(answer, AnswerFailed)
    return answer.fault.message


def put(world: World, model_name: str = "m", **written: object) -> None:
    event = ConstraintsPut(
        caller_id=f"want-{model_name}", model_name=model_name, constraints=parse_constraints(written)
    )
    world.send(event)


# What is set.


def test_constraints_count_once_they_are_written_and_not_before() -> None:
    world = world_with(node())
    put(world, replicas_min=1)
    world.pass_time(5)
    assert world.measures == []
    world.writes_done()
    assert told(world).models[0].constraints.replicas_min == 1
    world.report()
    assert world.measures != []


def test_a_store_that_is_away_changes_nothing_and_the_caller_hears_of_it() -> None:
    world = world_with(node())
    put(world, pinned=True)
    world.writes_fail(Fault(reason="model_unavailable", message="state store unreachable: gone"))
    assert refusal(world) == "state store unreachable: gone"
    assert not told(world).models[0].constraints.pinned


def test_the_next_leader_finds_them_in_the_store() -> None:
    world = world_with(node())
    world.want("m", priority=3)
    world.restart_scheduler()
    world.report()
    world.lead()
    (model,) = told(world, "").models
    assert (model.model_name, model.constraints.priority, model.from_file) == ("m:latest", 3, False)


def test_a_file_wins_for_the_models_that_it_names() -> None:
    world = World(file_constraints={"m:latest": parse_constraints({"priority": 5})})
    world.nodes = {"a": node("a", models=models("m", "n"))}
    world.report()
    world.lead()
    world.want("m", priority=1)
    assert "set in the file" in refusal(world)
    world.want("n", priority=1)
    assert [(one.model_name, one.constraints.priority, one.from_file) for one in told(world, "").models] == [
        ("m:latest", 5, True),
        ("n:latest", 1, False),
    ]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ({"nodes": ["nowhere"]}, "nodes"),
        ({"devices": ["gpu-7"]}, "devices"),
        ({"backend": "Vulkan"}, "backend"),
        ({"nodes": ["b"], "devices": ["a/gpu-0"]}, "devices"),
        ({"main_gpu": 1}, "main_gpu"),
        ({"main_gpu": 0, "devices": ["gpu-7"]}, "devices"),
    ],
)
def test_what_nothing_can_match_is_refused_by_name(written: dict[str, object], name: str) -> None:
    world = world_with(node("a"), node("b"))
    world.want("m", **written)
    assert refusal(world).startswith(f'"{name}" matches no')
    assert world.stored_constraints == {}


def test_a_request_that_asks_for_what_nothing_can_match_is_refused_and_lack_of_room_is_not() -> None:
    world = world_with(node(devices=(cpu(),)))
    world.ensure("c", options=LoadOptions(require_gpu=True))
    assert world.fault("c").reason == "invalid_value"
    assert '"require_gpu"' in world.fault("c").message
    busy = loaded(world=world_with(node(devices=ONE_GPU, models=models("m", "n")), m=16, n=16))
    busy.work("p1", busy=1)
    busy.report()
    busy.ensure("d", "n", options=LoadOptions(require_gpu=True))
    busy.settle()
    assert busy.finals("d") == []  # it waits


def test_a_standby_refuses_and_sends_the_caller_on() -> None:
    world = world_with(node())
    world.lose_leadership("another scheduler leads: b")
    put(world, pinned=True)
    assert refusal(world) == "another scheduler leads: b"


# Where it goes.


def test_devices_by_label_are_the_only_ones_it_goes_to() -> None:
    world = world_with(node("a", devices=TWO_GPUS), node("b", devices=TWO_GPUS))
    world.want("m", devices=["b/GPU-1"])
    world.ensure("c")
    world.settle()
    (one,) = world.runners.values()
    assert (one.node_id, [part.device_id for part in one.view.layout.devices]) == ("b", ["gpu-1"])


def test_sizes_that_an_operator_sets_are_what_a_runner_starts_with() -> None:
    world = world_with(node())
    world.want("m", slots=3, num_ctx=2048, num_batch=256, cache_type_k="q8_0", num_thread=5)
    world.ensure("c", options=LoadOptions(threads=7))
    world.settle()
    (one,) = world.runners.values()
    layout = one.view.layout
    assert (layout.slots, layout.context_tokens, layout.batch_tokens) == (3, 2048, 256)
    assert (layout.cache_type_k, layout.threads) == ("q8_0", 7)


def test_an_explicit_number_of_layers_needs_a_replica_that_was_loaded_so() -> None:
    world = world_with(node())
    world.ensure("c")
    world.settle()
    use(world)
    world.ensure("d", options=LoadOptions(num_gpu=0))
    world.settle()
    assert world.is_ready("d")
    assert [[part.device_id for part in one.view.layout.devices] for one in world.runners.values()] == [["gpu-0"], []]
    world.ensure("e", options=LoadOptions(num_gpu=0))
    world.ensure("f", options=LoadOptions(num_gpu=999))
    assert world.is_ready("e")
    assert world.is_ready("f")


def test_a_request_that_names_its_gpu_is_served_by_a_replica_there() -> None:
    world = world_with(node(devices=TWO_GPUS))

    def places() -> list[list[str]]:
        return [[part.device_id for part in one.view.layout.devices] for one in world.runners.values()]

    world.ensure("c", options=LoadOptions(main_gpu=1))
    world.settle()
    use(world)
    assert places() == [["gpu-1"]]
    world.ensure("d", options=LoadOptions(main_gpu=1))
    world.ensure("e")
    assert world.is_ready("d")
    assert world.is_ready("e")
    world.ensure("f", options=LoadOptions(main_gpu=0))
    world.settle()
    assert world.is_ready("f")
    assert places() == [["gpu-1"], ["gpu-0"]]
    world.ensure("g", options=LoadOptions(main_gpu=2))
    assert world.fault("g").reason == "invalid_value"
    assert '"main_gpu"' in world.fault("g").message


# How long it stays.


def test_a_pinned_replica_is_never_expired_unloaded_by_clients_or_evicted_for_another_model() -> None:
    world = loaded(world=world_with(node(devices=ONE_GPU, models=models("m", "n")), m=16, n=16), keep_alive_ms=1000)
    world.want("m", pinned=True)
    world.pass_time(60)
    world.unload("u")
    world.ensure("c", "n")
    world.settle()
    assert world.route() == ["p1"]
    assert world.fault("c").reason == "insufficient_memory"  # to wait for what never goes is of no use
    world.want("m")
    world.ensure("d", "n")
    world.pass_time(3)
    world.settle()
    assert world.is_ready("d")


def test_replicas_min_are_kept_and_come_back_after_a_node_is_lost() -> None:
    world = world_with(node("a"), node("b"), node("c"))
    world.want("m", replicas_min=2, keep_alive=1)
    for _ in range(4):
        world.settle()
        world.pass_time(2)
    assert len(world.route()) == 2
    world.pass_time(120)
    assert len(world.route()) == 2
    lost = next(iter(world.runners.values())).node_id
    del world.nodes[lost]
    world.runners = {key: one for key, one in world.runners.items() if one.node_id != lost}
    world.cut_off.add(lost)
    world.pass_time(10)
    world.settle()
    assert len(world.route()) == 2
    assert lost not in {one.node_id for one in world.runners.values()}


def test_only_the_replicas_above_replicas_min_expire() -> None:
    world = world_with(node("a"), node("b"), node("c"))
    world.want("m", replicas_min=3)
    for _ in range(6):
        world.settle()
        world.pass_time(1)
    assert len(world.route()) == 3
    world.want("m", replicas_min=1, keep_alive=5)
    world.pass_time(20)
    world.settle()
    assert len(world.route()) == 1


def test_a_preload_is_loaded_once_and_not_again_after_it_has_expired() -> None:
    world = world_with(node())
    world.want("m", preload=True, keep_alive=30)
    world.report()
    world.settle()
    assert len(world.route()) == 1
    world.pass_time(60)
    world.settle()
    assert world.runners == {}
    assert len(world.all_starts) == 1


def test_a_young_discovery_preloads_nothing_because_it_may_not_know_everybody() -> None:
    world = world_with(node())
    world.uptime_s = 1.0
    world.report()
    world.want("m", preload=True)
    world.report()
    assert world.measures == []
    world.uptime_s = 60.0
    world.report()
    assert world.measures != []


def test_a_kept_model_that_cannot_be_loaded_is_tried_again_with_pauses() -> None:
    world = world_with(node(devices=(cpu(free=4, total=4),)), m=50)
    world.want("m", replicas_min=1)
    for _ in range(30):
        world.pass_time(1)
        world.measure_all()
    assert 1 <= len(world.noted("model.load_failed")) <= 30


def test_priority_protects_a_model_and_recent_demand_does_too() -> None:
    world = world_with(node(devices=TWO_GPUS, models=models("m", "n", "o")), m=16, n=16, o=16)
    for name in ("m", "n"):
        loaded(name, world=world)
    for _ in range(5):
        world.pass_time(6)
        use(world, "m")
    world.pass_time(15)
    world.ensure("c", "o")
    world.settle()
    assert world.route("n:latest") == []  # asked less often
    assert len(world.route("m:latest")) == 1
    use(world, "o")
    world.pass_time(30)
    world.want("o", priority=2)
    world.ensure("d", "n")
    world.settle()
    assert world.route("m:latest") == []
    assert len(world.route("o:latest")) == 1


# More replicas.


def waits(world: World, seconds: float, *, wait_s: float = 6.0) -> None:
    """A gateway tells once a second that a request of m waits so long."""
    for _ in range(round(seconds)):
        world.send(QueuesReported(gateway_id="g", waits_s={"m:latest": wait_s}))
        world.pass_time(1)


def scaled(*nodes: str, replicas_max: int = 2) -> World:
    world = loaded(world=world_with(*(node(name, devices=ONE_GPU) for name in nodes), m=16))
    world.want("m", replicas_max=replicas_max)
    world.work("p1", busy=1)
    world.report()
    return world


def test_requests_that_wait_too_long_bring_one_replica_more_where_there_is_room() -> None:
    world = scaled("a", "b")
    waits(world, 14)
    assert len(world.all_starts) == 1
    waits(world, 3)
    world.settle()
    assert len(world.route()) == 2
    waits(world, 40)
    world.settle()
    assert len(world.route()) == 2  # replicas_max


def test_short_waits_and_waits_that_end_bring_none() -> None:
    world = scaled("a", "b")
    waits(world, 40, wait_s=4.0)
    waits(world, 10)
    world.send(QueuesReported(gateway_id="g", waits_s={}))
    waits(world, 10)
    assert len(world.all_starts) == 1


def test_a_gateway_that_fell_silent_is_not_believed() -> None:
    world = scaled("a", "b")
    waits(world, 1)
    world.pass_time(60)
    assert len(world.all_starts) == 1


def test_no_model_is_evicted_for_one_replica_more() -> None:
    world = world_with(node("a", devices=ONE_GPU), node("b", devices=ONE_GPU, models=models("m", "n")), m=16, n=16)
    loaded("n", world=world)
    loaded("m", world=world)
    world.want("m", replicas_max=2)
    (mine,) = world.route("m:latest")
    world.work(mine, busy=1)
    world.pass_time(30)
    waits(world, 60)
    world.settle()
    assert len(world.route("m:latest")) == 1
    assert len(world.route("n:latest")) == 1


def test_an_additional_replica_goes_by_its_own_keep_alive() -> None:
    world = scaled("a", "b")
    waits(world, 17)
    world.settle()
    (extra,) = [one for one in world.route() if one != "p1"]
    world.work(extra, busy=1)
    world.report()
    world.work(extra, busy=0)
    world.pass_time(301)
    world.settle()
    assert world.route() == ["p1"]  # busy all the time


# Why.


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


def test_what_the_settings_say_of_every_model_holds_until_somebody_wishes_otherwise() -> None:
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


def test_explain_and_the_list_tell_a_default_from_a_wish_and_from_what_a_request_asks() -> None:
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
    wish = told(world).models[0]
    assert wish.defaults == Constraints(policy=FillPolicy.SPREAD, backend="CUDA")


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
    before = (dict(world.core.books.jobs), dict(world.core.books.desired), dict(world.core.books.stops))
    writes = list(world.writes)
    first = world.explain("m")
    assert world.explain("m") == first
    assert (dict(world.core.books.jobs), dict(world.core.books.desired), dict(world.core.books.stops)) == before
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


def test_of_an_unknown_model_nothing_is_explained() -> None:
    world = world_with(node())
    world.send(replace(ConstraintsAsked(caller_id="x", model_name="m"), model_name="m"))
    assert world.explain("m", last=True).outcome == "none"


def test_at_most_so_many_replicas_of_a_node_are_loaded_where_an_operator_says_so() -> None:
    world = World(policy=Policy(loaded_models_max=1))
    world.sizes_gib = {"digest-m": 1, "digest-n": 1}
    world.nodes = {"a": node("a", models=models("m", "n"))}
    world.report()
    world.lead()
    loaded("m", world=world)
    world.pass_time(20)
    world.ensure("c", "n")
    world.settle()
    assert world.is_ready("c")
    assert len(world.runners) == 1


def test_a_question_may_name_the_slots_and_a_missing_report_for_them_is_measured() -> None:
    world = loaded()
    world.pass_time(20)
    asked = ExplainAsked(caller_id="why", model_name="m", slots=3, wait_s=5.0)
    world.send(asked)
    world.settle()
    (answer,) = [one for one in world.answers["why"] if isinstance(one, AnswerExplained)]
    assert {one.slots for one in answer.explanation.candidates if one.slots} == {3}
