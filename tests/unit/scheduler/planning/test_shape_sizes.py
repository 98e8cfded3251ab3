"""Values of a placement besides its devices: context, cache, slots, measurements; and the sizes that would fit."""

from dataclasses import replace

import pytest

from scheduler.core.planning.candidates import (
    MeasureFirst,
    Refusal,
)
from scheduler.core.planning.steps import tier_tokens
from scheduler.core.values.constraints import Constraints, Shape
from scheduler.core.values.facts import ModelFacts
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import GIB, MIB, MemoryOrigin, MemoryReport
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import DeviceView
from tests.unit.scheduler.builders import LAYERS, counted, cpu, gpu, model, node
from tests.unit.scheduler.shape_planning import BASE, POLICY, ask, decide, engine, gpus, placed


@pytest.mark.parametrize(("gib", "tokens"), [(0, 4096), (22.9, 4096), (23, 32768), (46.9, 32768), (47, 262144)])
def test_the_context_comes_from_the_tier_of_the_machine(gib: float, tokens: int) -> None:
    assert tier_tokens(int(gib * GIB)) == tokens


def test_the_context_steps_down_before_a_shape_is_given_up() -> None:
    file = replace(model(), trained_context_tokens=131072)
    placement = placed(
        node(devices=(*gpus(24), cpu()), models=(file,)),
        count=engine(16, cache_gib_per_4096=1),
        request=ask(automatic_context=True),
    )
    assert placement.shape is Shape.ONE_DEVICE
    assert placement.layout.context_tokens == 16384  # 32768 is the tier, and 8 GiB of cache too much


def test_an_explicit_context_never_changes() -> None:
    placement = placed(
        node(devices=(*gpus(24), cpu())),
        count=engine(16, cache_gib_per_4096=1),
        request=ask(layout=replace(BASE, context_tokens=32768)),
    )
    assert placement.layout.context_tokens == 32768
    assert placement.shape is Shape.PARTIAL


@pytest.mark.parametrize("auto_kv", [False, True])
def test_the_cache_is_quantised_only_where_that_is_allowed(auto_kv: bool) -> None:
    def count(wanted: MeasureFirst) -> MemoryReport:
        cache = 8 * GIB // (2 if wanted.layout.cache_type_k == "q8_0" else 1)
        return counted(wanted.layout, weights=16 * GIB, cache=cache)

    placement = placed(node(devices=(*gpus(24), cpu())), count=count, request=ask(automatic_cache_type=auto_kv))
    assert placement.layout.cache_type_k == ("q8_0" if auto_kv else "")
    assert placement.shape is (Shape.ONE_DEVICE if auto_kv else Shape.PARTIAL)


@pytest.mark.parametrize(("copies_mib", "pipeline"), [(300, True), (3000, False)])
def test_devices_work_as_a_pipeline_where_the_copies_of_the_graph_fit(copies_mib: int, pipeline: bool) -> None:
    def count(wanted: MeasureFirst) -> MemoryReport:
        return counted(wanted.layout, weights=20 * GIB, graph=copies_mib * MIB if wanted.layout.pipeline else 0)

    placement = placed(node(devices=(*gpus(12, 12), cpu())), count=count)
    assert placement.shape is Shape.ONE_NODE
    assert placement.layout.pipeline is pipeline


def test_devices_that_lend_ram_never_take_more_together_than_there_is() -> None:
    def lent(name: str) -> DeviceView:
        return replace(gpu(name, free=10, total=10), backend="RPC", backing_pool_id="host")

    placement = placed(node(devices=(lent("r0"), lent("r1"), cpu(free=17, total=17))), count=engine(15))
    taken = sum(need.total_bytes for need in placement.needs)
    assert taken <= 16 * GIB


@pytest.mark.behaviour("B-72", "B-152")
def test_measuring_can_be_switched_off_and_what_is_estimated_says_so() -> None:
    file = replace(model(), size_bytes=8 * GIB)

    def never(wanted: MeasureFirst) -> MemoryReport:
        raise AssertionError(f"asked to measure {wanted}")

    placement = placed(node(models=(file,)), count=never, policy=Policy(measure=False))
    assert placement.shape is Shape.ONE_DEVICE
    assert placement.report.origin is MemoryOrigin.ESTIMATED
    assert placement.candidates[-1].origin is MemoryOrigin.ESTIMATED
    assert placement.needs[0].margin_bytes == 2 * POLICY.margin_bytes


@pytest.mark.behaviour("B-72", "B-152")
def test_the_same_model_is_measured_where_measuring_is_on() -> None:
    placement = placed(node(), count=engine(8))
    assert placement.report.origin is MemoryOrigin.MEASURED
    assert placement.needs[0].margin_bytes == POLICY.margin_bytes


def test_a_measurement_that_crashes_is_replaced_by_an_estimate() -> None:
    file = replace(model(), size_bytes=8 * GIB)
    crash = Fault(reason="model_unavailable", message="the measurement failed: signal 11")
    placement = placed(node(models=(file,)), count=lambda _: crash)
    assert placement.report.origin is MemoryOrigin.ESTIMATED


def described(weights_gib: float, *, cache_gib_per_4096: float) -> ModelFacts:
    width = int(cache_gib_per_4096 * GIB / 4096 / 2 / 2 / (LAYERS - 1))  # keys and values, two bytes each
    return ModelFacts(
        layer_weights_bytes=(int(weights_gib * GIB / LAYERS),) * LAYERS,
        layer_key_width=(width,) * (LAYERS - 1),
        layer_value_width=(width,) * (LAYERS - 1),
        layer_state_bytes=(0,) * (LAYERS - 1),
    )


def test_a_refusal_names_the_nearest_configurations_that_would_fit() -> None:
    file = replace(model(), facts=described(16, cache_gib_per_4096=1))
    request = ask(Constraints(require_gpu=True), layout=replace(BASE, context_tokens=32768), slot_steps=(2,))
    one = node(devices=(*gpus(24), cpu()), models=(file,))
    refusal = decide(one, count=engine(16, cache_gib_per_4096=1), request=request)
    assert isinstance(refusal, Refusal)
    # 24 GiB less 16 of weights and what a process takes leave 7 GiB for cells: 2 slots of 8192 tokens are 4.
    assert refusal.nearest == ("num_ctx 8192", "one more device like G0 on a")
    assert refusal.message.endswith("it would fit with num_ctx 8192 or with one more device like G0 on a")


def test_nothing_is_named_where_nothing_near_would_fit() -> None:
    file = replace(model(), facts=described(900, cache_gib_per_4096=0.1))
    refusal = decide(node(devices=(*gpus(24), cpu()), models=(file,)), count=engine(900))
    assert isinstance(refusal, Refusal)
    assert refusal.nearest == ()
