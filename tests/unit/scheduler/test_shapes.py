"""Shapes, their order, and what a request may ask of them: each rule of placement 4.2, 4.5 and 4.6 once."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from scheduler.core.candidates import (
    ClusterView,
    MeasureFirst,
    MeasureKey,
    Placement,
    PlacementRequest,
    Refusal,
    RefusalKind,
)
from scheduler.core.constraints import NO_CONSTRAINTS, Constraints, FillPolicy, Shape
from scheduler.core.eviction import Evictable
from scheduler.core.facts import ModelFacts
from scheduler.core.faults import Fault
from scheduler.core.layouts import Layout
from scheduler.core.ledger import Promise
from scheduler.core.memory import GIB, MIB, MemoryOrigin, MemoryReport
from scheduler.core.placement import plan_placement
from scheduler.core.policy import Policy
from scheduler.core.variants import tier_tokens
from scheduler.core.view import DeviceView, NodeView
from tests.unit.scheduler.builders import LAYERS, counted, cpu, gpu, model, node

BASE = Layout(context_tokens=4096, slots=1, batch_tokens=512)
POLICY = Policy()
Count = Callable[[MeasureFirst], MemoryReport | Fault]


def engine(weights_gib: float, *, graph_mib: int = 0, cache_gib_per_4096: float = 0.0) -> Count:
    def count(wanted: MeasureFirst) -> MemoryReport:
        tokens = wanted.layout.context_tokens * wanted.layout.slots
        cache = int(cache_gib_per_4096 * tokens / 4096 * GIB)
        return counted(wanted.layout, weights=int(weights_gib * GIB), cache=cache, graph=graph_mib * MIB)

    return count


def ask(constraints: Constraints = NO_CONSTRAINTS, **more: object) -> PlacementRequest:
    request = PlacementRequest(model_digest=model().digest, layout=BASE, slot_steps=(1,), constraints=constraints)
    return replace(request, **more)  # type: ignore[arg-type]


def decide(
    *nodes: NodeView,
    count: Count,
    request: PlacementRequest | None = None,
    policy: Policy = POLICY,
    view: ClusterView | None = None,
) -> Placement | Refusal:
    reports: dict[MeasureKey, MemoryReport | Fault] = {}
    for _ in range(200):
        outcome = plan_placement(request or ask(), view or ClusterView(nodes=nodes), reports, policy)
        if not isinstance(outcome, MeasureFirst):
            return outcome
        assert outcome.key not in reports
        reports[outcome.key] = count(outcome)
    raise AssertionError("measures without end")


def placed(*nodes: NodeView, count: Count, **more: object) -> Placement:
    outcome = decide(*nodes, count=count, **more)  # type: ignore[arg-type]
    assert isinstance(outcome, Placement), outcome
    return outcome


def devices_of(placement: Placement) -> list[tuple[str, int]]:
    return [(part.device_id, part.layer_count) for part in placement.layout.devices]


def gpus(*free: float) -> tuple[DeviceView, ...]:
    return tuple(gpu(f"g{index}", free=size, total=size) for index, size in enumerate(free))


# The shapes in their order.


def test_what_is_too_large_for_one_device_is_split_over_the_fewest_of_a_node() -> None:
    placement = placed(node(devices=(*gpus(12, 12, 12, 12), cpu())), count=engine(20))
    assert placement.shape is Shape.ONE_NODE
    assert [count for _, count in devices_of(placement)] == [16, 16]


def test_the_gpu_that_is_asked_for_takes_what_needs_only_one_and_is_part_of_what_needs_more() -> None:
    here = node("a", devices=(*gpus(24, 20, 16), cpu()))
    alone = placed(node("b"), here, count=engine(10), request=ask(Constraints(main_gpu=2)))
    assert (alone.node_id, devices_of(alone)) == ("a", [("g2", LAYERS)])
    two = placed(here, count=engine(30), request=ask(Constraints(main_gpu=2)))
    assert two.shape is Shape.ONE_NODE
    assert "g2" in dict(devices_of(two))
    assert len(devices_of(two)) == 2


def test_one_device_of_another_node_is_better_than_two_of_a_roomier_one() -> None:
    nodes = (node("a", devices=(*gpus(20, 20, 20), cpu())), node("b", devices=(*gpus(30), cpu())))
    placement = placed(*nodes, count=engine(25))
    assert (placement.node_id, placement.shape) == ("b", Shape.ONE_DEVICE)


def test_backends_are_not_mixed() -> None:
    mixed = (gpu("c", free=12, total=12), replace(gpu("v", free=12, total=12), backend="Vulkan"))
    placement = placed(node(devices=(*mixed, cpu())), count=engine(20))
    assert placement.shape is Shape.PARTIAL
    assert len(placement.layout.devices) == 1


def test_layers_that_find_no_room_stay_in_host_ram() -> None:
    placement = placed(node(devices=(*gpus(12), cpu())), count=engine(20, graph_mib=500))
    assert placement.shape is Shape.PARTIAL
    assert devices_of(placement) == [("g0", 17)]
    assert placement.layout.output_on_host
    assert placement.report.host.weights_bytes == 15 * 20 * GIB // LAYERS


def test_experts_stay_in_host_ram_before_whole_layers_do() -> None:
    block = 20 * GIB // LAYERS
    facts = ModelFacts(
        layer_weights_bytes=(block,) * LAYERS,
        layer_expert_bytes=(*((block * 3 // 4,) * (LAYERS - 1)), 0),
        layer_key_width=(0,) * (LAYERS - 1),
        layer_value_width=(0,) * (LAYERS - 1),
        layer_state_bytes=(0,) * (LAYERS - 1),
        expert_count=8,
        expert_used_count=2,
    )
    file = replace(model(), facts=facts)

    def count(wanted: MeasureFirst) -> MemoryReport:
        report = counted(wanted.layout, weights=block * LAYERS)
        moved = sum(facts.layer_expert_bytes[: wanted.layout.experts_on_host])
        if not moved:
            return report
        (part,) = report.devices
        layers = tuple(
            count - (facts.layer_expert_bytes[layer] if layer < wanted.layout.experts_on_host else 0)
            for layer, count in enumerate(part.layer_weights_bytes)
        )
        kept = tuple(
            facts.layer_expert_bytes[layer] if layer < wanted.layout.experts_on_host else 0 for layer in range(LAYERS)
        )
        return replace(
            report,
            devices=(replace(part, weights_bytes=sum(layers), layer_weights_bytes=layers),),
            host=replace(report.host, weights_bytes=sum(kept), layer_weights_bytes=kept),
        )

    placement = placed(node(devices=(*gpus(12), cpu()), models=(file,)), count=count)
    assert placement.shape is Shape.EXPERTS_ON_HOST
    assert devices_of(placement) == [("g0", LAYERS)]
    # 20 GiB less 3/4 of 0.625 GiB a block must come under 12 GiB less what a process takes: 19 blocks, not 18.
    assert placement.layout.experts_on_host == 19


def test_a_gpu_that_takes_not_even_a_block_leaves_the_model_to_the_cpu() -> None:
    assert placed(node(devices=(*gpus(0.6), cpu())), count=engine(20)).shape is Shape.CPU


def idle(node_id: str, device_id: str, gib: float) -> tuple[Evictable, Promise]:
    size = {device_id: int(gib * GIB)}
    return (
        Evictable(placement_id="idle", idle_s=100, pool_bytes={(node_id, device_id): int(gib * GIB)}),
        Promise(placement_id="idle", node_id=node_id, device_bytes=size, starting=False, freed_bytes=size),
    )


@pytest.mark.parametrize(("evict_for_speed", "shape"), [(True, Shape.ONE_DEVICE), (False, Shape.PARTIAL)])
def test_idle_models_go_before_a_slower_shape_is_taken_unless_told_otherwise(
    evict_for_speed: bool, shape: Shape
) -> None:
    evictable, promise = idle("a", "gpu-0", 14)
    view = ClusterView(
        nodes=(node(devices=(gpu(free=10, total=24), cpu())),), promises=(promise,), evictable=(evictable,)
    )
    placement = placed(count=engine(16), view=view, policy=Policy(evict_for_speed=evict_for_speed))
    assert placement.shape is shape
    assert placement.victims == (("idle",) if evict_for_speed else ())


# Several nodes.


def lender(name: str, *free: float, build: str = "b1", has_file: bool = True, enabled: bool = True) -> NodeView:
    files = (model(),) if has_file else (model("other:latest"),)
    one = node(name, devices=(*gpus(*free), cpu(free=8, total=8)), models=files)
    return replace(one, rpc_enabled=enabled, engine_build=build)


def test_what_no_node_holds_is_joined_over_the_fewest_nodes_with_the_file_on_the_head() -> None:
    nodes = (lender("a", 12, 12, has_file=False), lender("b", 11, 11), lender("c", 8, 8, has_file=False))
    placement = placed(*nodes, count=engine(38))
    assert placement.shape is Shape.NODES
    assert placement.node_id == "b"
    # Remote devices come first and each node is contiguous; the head takes the end, logits never cross the network.
    assert [part.node_id for part in placement.layout.devices] == ["a", "a", "", ""]
    assert {need.node_id for need in placement.needs} == {"a", "b"}


@pytest.mark.parametrize("other", [lender("b", 12, 12, build="b2"), lender("b", 12, 12, enabled=False)])
def test_nodes_of_another_build_or_without_lending_are_not_joined(other: NodeView) -> None:
    outcome = decide(lender("a", 12, 12), other, count=engine(38))
    assert isinstance(outcome, Refusal)


def test_nodes_are_planned_by_estimate_where_nothing_can_be_measured_over_them() -> None:
    nodes = (lender("a", 12, 12), lender("b", 12, 12))
    placement = placed(*nodes, count=engine(38), policy=Policy(measure_over_nodes=False))
    assert placement.shape is Shape.NODES
    assert placement.report.origin is MemoryOrigin.ESTIMATED
    assert placement.needs[0].margin_bytes == 2 * POLICY.margin_bytes * 12 // 24  # of a card half as large


# Which of several.


def test_a_fast_gpu_with_some_work_beats_a_slow_idle_one() -> None:
    fast = replace(gpu("fast"), speed_bytes_s=900e9)
    slow = replace(gpu("slow", free=40, total=40), speed_bytes_s=300e9)
    view = ClusterView(nodes=(node(devices=(fast, slow, cpu())),), decoding={("a", "fast"): 1.0})
    assert devices_of(placed(count=engine(8), view=view))[0][0] == "fast"
    crowded = replace(view, decoding={("a", "fast"): 3.0})
    assert devices_of(placed(count=engine(8), view=crowded))[0][0] == "slow"


def test_within_a_tenth_the_roomier_one_is_taken() -> None:
    first = replace(gpu("first"), speed_bytes_s=300e9)
    roomier = replace(gpu("roomier", free=40, total=40), speed_bytes_s=280e9)
    assert devices_of(placed(node(devices=(first, roomier, cpu())), count=engine(8)))[0][0] == "roomier"


def test_a_second_replica_goes_to_another_node_then_to_another_device() -> None:
    nodes = (node("a", devices=(*gpus(40, 30), cpu())), node("b", devices=(*gpus(20), cpu())))
    request = ask(replicas=frozenset({("a", "g0")}))
    assert placed(*nodes, count=engine(8), request=request).node_id == "b"
    assert devices_of(placed(nodes[0], count=engine(8), request=request))[0][0] == "g1"


# What the user asks for.


def test_spread_takes_every_device_of_the_node() -> None:
    constraints = Constraints(policy=FillPolicy.SPREAD)
    placement = placed(node(devices=(*gpus(24, 24, 24, 24), cpu())), count=engine(8), request=ask(constraints))
    assert [count for _, count in devices_of(placement)] == [8, 8, 8, 8]


def test_a_given_count_of_layers_is_taken_exactly() -> None:
    placement = placed(node(devices=(*gpus(24), cpu())), count=engine(8), request=ask(Constraints(num_gpu=10)))
    assert devices_of(placement) == [("g0", 10)]
    assert not placement.layout.output_on_host


def test_a_given_count_that_cannot_be_had_is_refused_by_its_name() -> None:
    outcome = decide(node(devices=(*gpus(12), cpu())), count=engine(20), request=ask(Constraints(num_gpu=30)))
    assert isinstance(outcome, Refusal)
    assert outcome.message == "memory layout cannot be allocated with num_gpu = 30"


def test_shares_that_the_operator_gives_are_kept_in_their_order() -> None:
    constraints = Constraints(devices=("g1", "g0"), tensor_split=(3.0, 1.0))
    placement = placed(node(devices=(*gpus(24, 24), cpu())), count=engine(8), request=ask(constraints))
    assert devices_of(placement) == [("g1", 24), ("g0", 8)]


def test_a_cap_on_a_device_is_room_that_is_not_there() -> None:
    constraints = Constraints(max_bytes=(("g0", 6 * GIB),))
    placement = placed(node(devices=(*gpus(24, 12), cpu())), count=engine(8), request=ask(constraints))
    assert devices_of(placement) == [("g1", LAYERS)]


def test_a_shape_slower_than_the_slowest_that_is_acceptable_is_refused() -> None:
    outcome = decide(
        node(devices=(*gpus(12), cpu())), count=engine(20), request=ask(Constraints(max_shape=Shape.ONE_NODE))
    )
    assert isinstance(outcome, Refusal)
    assert outcome.kind is RefusalKind.INSUFFICIENT_MEMORY


# Values that step down.


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


# Copies of the graph.


@pytest.mark.parametrize(("copies_mib", "pipeline"), [(300, True), (3000, False)])
def test_devices_work_as_a_pipeline_where_the_copies_of_the_graph_fit(copies_mib: int, pipeline: bool) -> None:
    def count(wanted: MeasureFirst) -> MemoryReport:
        return counted(wanted.layout, weights=20 * GIB, graph=copies_mib * MIB if wanted.layout.pipeline else 0)

    placement = placed(node(devices=(*gpus(12, 12), cpu())), count=count)
    assert placement.shape is Shape.ONE_NODE
    assert placement.layout.pipeline is pipeline


# Pools.


def test_devices_that_lend_ram_never_take_more_together_than_there_is() -> None:
    def lent(name: str) -> DeviceView:
        return replace(gpu(name, free=10, total=10), backend="RPC", backing_pool_id="host")

    placement = placed(node(devices=(lent("r0"), lent("r1"), cpu(free=17, total=17))), count=engine(15))
    taken = sum(need.total_bytes for need in placement.needs)
    assert taken <= 16 * GIB


# Without measuring.


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


# Refusals.


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
