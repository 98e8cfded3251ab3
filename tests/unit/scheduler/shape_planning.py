"""Planning with an engine that is counted by a formula, and what came of it."""

from collections.abc import Callable
from dataclasses import replace

from common.spec.layout import Layout
from scheduler.core.planning.candidates import (
    ClusterView,
    MeasureFirst,
    MeasureKey,
    Placement,
    PlacementRequest,
    Refusal,
)
from scheduler.core.planning.placement import plan_placement
from scheduler.core.sizes.eviction import Evictable
from scheduler.core.sizes.ledger import Promise
from scheduler.core.values.constraints import NO_CONSTRAINTS, Constraints
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import GIB, MIB, MemoryReport
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import DeviceView, NodeView
from tests.unit.scheduler.builders import counted, cpu, gpu, model, node

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


def idle(node_id: str, device_id: str, gib: float) -> tuple[Evictable, Promise]:
    size = {device_id: int(gib * GIB)}
    return (
        Evictable(placement_id="idle", idle_s=100, pool_bytes={(node_id, device_id): int(gib * GIB)}),
        Promise(placement_id="idle", node_id=node_id, device_bytes=size, starting=False, freed_bytes=size),
    )


def lender(name: str, *free: float, build: str = "b1", has_file: bool = True, enabled: bool = True) -> NodeView:
    files = (model(),) if has_file else (model("other:latest"),)
    one = node(name, devices=(*gpus(*free), cpu(free=8, total=8)), models=files)
    return replace(one, rpc_enabled=enabled, engine_build=build)
