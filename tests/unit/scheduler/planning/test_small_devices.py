"""Several small lent devices on a node: the figures are those of a model of 8 blocks as the engine counts it there.

Beside the engine's caches a runner keeps copies of prompts in host RAM. Its report has them with the host's share of
the output layer, wherever that layer lies; on a device they take nothing.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from common.spec.layout import Layout
from scheduler.core.planning.candidates import (
    Candidate,
    ClusterView,
    MeasureFirst,
    MeasureKey,
    Placement,
    PlacementRequest,
    Refusal,
)
from scheduler.core.planning.placement import plan_placement
from scheduler.core.planning.steps import steps
from scheduler.core.sizes.estimate import estimate_report, sizes_by_facts
from scheduler.core.sizes.layers import sizes_by_report
from scheduler.core.sizes.margins import FULL_SIZE_BYTES
from scheduler.core.values.asked import SLOTS_AUTO
from scheduler.core.values.constraints import NO_CONSTRAINTS, Constraints, Shape
from scheduler.core.values.facts import ModelFacts
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import GIB, MIB, MemoryOrigin, MemoryReport
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import DeviceKind, DeviceView, NodeView
from tests.unit.scheduler.builders import cpu, gpu, model, node

BLOCKS = 8
FACTS = ModelFacts(
    architecture="llama",
    embedding_length=512,
    vocabulary_size=1024,
    head_count=8,
    layer_weights_bytes=(*((13 * MIB // 2,) * BLOCKS), 1 * MIB),
    input_weights_bytes=1 * MIB,
    layer_key_width=(512,) * BLOCKS,
    layer_value_width=(512,) * BLOCKS,
    layer_state_bytes=(0,) * BLOCKS,
)
FILE = replace(model(), layer_count=BLOCKS, facts=FACTS)
COPIES_BYTES = 256 * MIB
LENT_MIB = 193
UNLEARNED_BYTES = Policy().margin_bytes * (LENT_MIB * MIB) // FULL_SIZE_BYTES
REQUEST = PlacementRequest(
    model_digest=FILE.digest, layout=Layout(context_tokens=16384, slots=1, batch_tokens=512), slot_steps=SLOTS_AUTO
)


def count(layout: Layout) -> MemoryReport:
    """Weights, cells and graphs by layer, and the copies with the host's output layer."""
    graph = (12 + 16 * layout.slots) * MIB
    plain = estimate_report(sizes_by_facts(FACTS, layout), graph, layout)
    caches = (*plain.host.layer_cache_bytes[:-1], COPIES_BYTES)
    host = replace(plain.host, layer_cache_bytes=caches, cache_bytes=sum(caches))
    return replace(plain, origin=MemoryOrigin.MEASURED, host=host)


def lent(name: str, *, mib: int = LENT_MIB) -> DeviceView:
    return replace(gpu(name, free=mib / 1024, total=mib / 1024), backend="RPC", id=f"RPC:{name}/0", pool_id=name)


def small(name: str, devices: int, *, ram_gib: float = 64, lends: bool = False) -> NodeView:
    lenders = tuple(lent(f"{name}{index}") for index in range(devices))
    one = node(name, devices=(*lenders, cpu(free=ram_gib, total=ram_gib)), models=(FILE,))
    return replace(one, rpc_enabled=lends)


def decide(
    *nodes: NodeView, constraints: Constraints = NO_CONSTRAINTS, counts: Callable[[Layout], MemoryReport] = count
) -> Placement | Refusal:
    reports: dict[MeasureKey, MemoryReport | Fault] = {}
    for _ in range(200):
        request = replace(REQUEST, constraints=constraints)
        outcome = plan_placement(request, ClusterView(nodes=nodes), reports, Policy())
        if not isinstance(outcome, MeasureFirst):
            return outcome
        reports[outcome.key] = counts(outcome.layout)
    raise AssertionError("measures without end")


def placed(
    *nodes: NodeView, constraints: Constraints = NO_CONSTRAINTS, counts: Callable[[Layout], MemoryReport] = count
) -> Placement:
    outcome = decide(*nodes, constraints=constraints, counts=counts)
    assert isinstance(outcome, Placement), outcome
    return outcome


def test_copies_in_host_ram_are_no_part_of_the_output_layer() -> None:
    sizes = sizes_by_report(count(REQUEST.layout.on("d", BLOCKS + 1)), FACTS)
    assert sizes.caches == (*((32 * MIB,) * BLOCKS), 0)
    assert sizes.beside_bytes == COPIES_BYTES
    estimated = estimate_report(sizes, 0, REQUEST.layout.on("d", BLOCKS + 1))
    assert estimated.devices[0].cache_bytes == sum(sizes.caches)
    assert estimated.host.cache_bytes == COPIES_BYTES, "what is estimated from a measurement knows them, too"


def test_four_small_devices_hold_what_by_arithmetic_fits_over_them_once_slots_have_stepped_down() -> None:
    # 193 MiB less 64 for the process, a margin of half of one and 28 of graph leave 100: two blocks of 38.5 each.
    placement = placed(small("a", 4), constraints=Constraints(require_gpu=True))
    assert placement.shape is Shape.ONE_NODE
    assert placement.layout.slots == 1
    assert sum(part.layer_count for part in placement.layout.devices) == BLOCKS + 1


def test_more_devices_of_a_node_come_before_layers_in_host_ram() -> None:
    placement = placed(small("a", 4))
    assert placement.shape is Shape.ONE_NODE
    assert sum(part.layer_count for part in placement.layout.devices) == BLOCKS + 1


def test_devices_of_other_nodes_come_before_layers_in_host_ram() -> None:
    placement = placed(small("a", 2, lends=True), small("b", 2, lends=True))
    assert placement.shape is Shape.NODES
    assert sum(part.layer_count for part in placement.layout.devices) == BLOCKS + 1


def test_the_figures_of_a_candidate_are_those_of_the_values_it_names() -> None:
    placement = placed(small("a", 4))
    seen: list[Candidate] = [one for one in placement.candidates if one.needs]
    assert len(seen) == 5, "four devices by themselves, and all of them"
    for one in seen:
        layout = replace(REQUEST.layout, slots=one.slots)
        cells = sum(need.cache_bytes for need in one.needs[:-1])
        assert cells == sum(sizes_by_facts(FACTS, layout).caches), one
        is_doubled = one.needs[0].margin_bytes == pytest.approx(2 * UNLEARNED_BYTES, abs=2)
        assert is_doubled == (one.origin is MemoryOrigin.ESTIMATED), one
        assert len(one.device_layers) == len(one.needs) - 1
        assert sum(one.device_layers) == one.layer_count == BLOCKS + 1


def test_the_copies_need_room_in_host_ram() -> None:
    # Whatever lies where, RAM holds the copies: 1 GiB is the machine's, 64 MiB the process's, 64 MiB the margin.
    held = 1 * GIB + (64 + 64 + 1 + 28) * MIB + COPIES_BYTES
    enough, scarce = held / GIB, (held - 2 * MIB) / GIB
    assert placed(small("a", 4, ram_gib=enough)).shape is Shape.ONE_NODE
    assert isinstance(decide(small("a", 4, ram_gib=scarce)), Refusal)


def test_what_the_formula_takes_for_too_large_is_measured_before_it_is_given_up() -> None:
    # Sliding windows: the header tells the widths, and only the engine knows that most blocks keep few cells.
    def windowed(layout: Layout) -> MemoryReport:
        return count(replace(layout, context_tokens=layout.context_tokens // 8))

    one = node("a", devices=(gpu(free=1.5, total=1.5), cpu()), models=(FILE,))
    by_formula = sum(sizes_by_facts(FACTS, replace(REQUEST.layout, slots=SLOTS_AUTO[0])).caches)
    assert by_formula > 1.5 * GIB
    placement = placed(one, constraints=Constraints(require_gpu=True), counts=windowed)
    assert (placement.shape, placement.layout.slots) == (Shape.ONE_DEVICE, SLOTS_AUTO[0])


@pytest.mark.parametrize("may_evict", [False, True])
def test_shapes_are_tried_fastest_first(may_evict: bool) -> None:
    tried = steps(
        NO_CONSTRAINTS, slot_steps=SLOTS_AUTO, context_steps=1, cache_steps=1, may_evict=may_evict, evict_for_speed=True
    )
    order = [step.shape for step in tried if step.kind is not DeviceKind.INTEGRATED]
    assert list(dict.fromkeys(order)) == list(Shape)
    # One device and one node are tried without and then with victims, before anything slower is.
    ranks = [max(list(Shape).index(shape), list(Shape).index(Shape.ONE_NODE)) for shape in order]
    assert ranks == sorted(ranks)


def test_slots_step_down_before_a_shape_is_given_up() -> None:
    # With 8 slots the cache alone is 2 GiB: four devices of 1 GiB hold it, one of 2 GiB does not, until there are 4.
    placement = placed(
        node(
            "a",
            devices=(*(lent(f"d{index}", mib=1024) for index in range(4)), lent("big", mib=2048), cpu()),
            models=(FILE,),
        )
    )
    assert (placement.shape, placement.layout.slots) == (Shape.ONE_DEVICE, 4)
