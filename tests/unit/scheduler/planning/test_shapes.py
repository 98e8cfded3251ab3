"""Shapes, their order, and what a request may ask of them: each rule of placement 4.2, 4.5 and 4.6 once."""

from dataclasses import replace

import pytest

from scheduler.core.planning.candidates import (
    ClusterView,
    MeasureFirst,
    Refusal,
    RefusalKind,
)
from scheduler.core.values.constraints import Constraints, FillPolicy, Shape
from scheduler.core.values.facts import ModelFacts
from scheduler.core.values.memory import GIB, MemoryReport
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import NodeView
from tests.unit.scheduler.builders import LAYERS, counted, cpu, gpu, model, node
from tests.unit.scheduler.shape_planning import ask, decide, devices_of, engine, gpus, idle, lender, placed


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


def test_slices_of_a_card_hold_a_model_alone_or_not_at_all() -> None:
    slices = [replace(gpu(f"MIG-{number}", free=12, total=12), alone=True) for number in (1, 2)]
    assert devices_of(placed(node(devices=(*slices, cpu())), count=engine(10)))[0][1] == LAYERS
    beside = node(devices=(*slices, *gpus(12, 12), cpu()))
    joint = placed(beside, count=engine(20))
    assert (joint.shape, [name for name, _ in devices_of(joint)]) == (Shape.ONE_NODE, ["g0", "g1"])
    partial = placed(node(devices=(*slices, cpu())), count=engine(20))
    assert (partial.shape, len(partial.layout.devices)) == (Shape.PARTIAL, 1)


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
