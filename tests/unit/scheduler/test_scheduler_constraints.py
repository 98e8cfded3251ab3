"""Constraints of operators through the whole core: keep, pin, preload, place, and explain."""

import pytest

from common.spec.load_options import LoadOptions
from scheduler.core.state.effects import AnswerExplained
from scheduler.core.state.events import ExplainAsked
from scheduler.core.values.constraint_fields import parse_constraints
from scheduler.core.values.faults import Fault, not_leading
from tests.unit.scheduler.builders import cpu, node
from tests.unit.scheduler.constraint_commands import TWO_GPUS, put, refusal, told
from tests.unit.scheduler.keeping.test_scheduler_keeping import ONE_GPU, loaded, use
from tests.unit.scheduler.world import World, models, world_with


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
    world.lose_leadership(not_leading("another scheduler leads: b"))
    put(world, pinned=True)
    assert refusal(world) == "another scheduler leads: b"


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
    assert world.is_ready("g")
    assert places() == [["gpu-1"], ["gpu-0"]]


@pytest.mark.parametrize(
    "options",
    [
        *(LoadOptions(main_gpu=number) for number in (0, 1, 99)),
        LoadOptions(num_gpu=99),
        LoadOptions(num_gpu=1, main_gpu=0),
    ],
)
def test_a_gpu_that_no_node_has_asks_for_nothing_before_a_load_and_after_it(options: LoadOptions) -> None:
    world = world_with(node(devices=(cpu(),)))
    for caller in ("first", "again"):
        world.ensure(caller, options=options)
        world.settle()
        assert world.is_ready(caller)
    assert len(world.all_starts) == 1
    world.send(ExplainAsked(caller_id="why", model_name="m", options=options))
    (answer,) = world.answers["why"]
    assert isinstance(answer, AnswerExplained)
    assert answer.explanation.outcome in {"placed", "measuring"}
    assert not {"main_gpu", "num_gpu"} & {one.name for one in answer.explanation.constraints}


def test_a_gpu_that_no_node_has_asks_for_nothing_of_a_model_over_several() -> None:
    world = world_with(node(devices=TWO_GPUS), m=40)
    for caller, number in (("first", 2), ("again", 2), ("other", 1)):
        world.ensure(caller, options=LoadOptions(main_gpu=number))
        world.settle()
        assert world.is_ready(caller)
    (served,) = world.runners.values()
    assert len(served.view.layout.devices) == 2


def test_a_gpu_that_the_models_constraints_rule_out_asks_for_nothing_either() -> None:
    world = world_with(node(devices=TWO_GPUS))
    world.want("m", devices=["gpu-1"])
    for caller in ("first", "again"):
        world.ensure(caller, options=LoadOptions(main_gpu=0))
        world.settle()
        assert world.is_ready(caller)
    (served,) = world.runners.values()
    assert [part.device_id for part in served.view.layout.devices] == ["gpu-1"]


def test_a_request_without_a_gpu_of_its_own_keeps_the_operators() -> None:
    world = world_with(node(devices=TWO_GPUS))
    world.want("m", main_gpu=1)
    world.ensure("c", options=LoadOptions(main_gpu=7))
    world.settle()
    (served,) = world.runners.values()
    assert [part.device_id for part in served.view.layout.devices] == ["gpu-1"]


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
