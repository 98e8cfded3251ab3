"""Placement of a model, as a table of clusters."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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
    RefusalKind,
    Verdict,
)
from scheduler.core.planning.placement import plan_placement
from scheduler.core.sizes.eviction import Evictable
from scheduler.core.sizes.ledger import Promise
from scheduler.core.state_machine import SchedulerCore
from scheduler.core.values.asked import SLOTS_AUTO
from scheduler.core.values.constraints import Constraints, Shape
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import GIB, MemoryReport
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import Trust
from tests.unit.scheduler.builders import LAYERS, counted, cpu, gpu, integrated, model, node

POLICY = Policy()
REQUEST = PlacementRequest(
    model_digest=model().digest,
    layout=Layout(context_tokens=4096, slots=1, batch_tokens=512),
    slot_steps=SLOTS_AUTO,
)


def engine(weights_gib: float, *, cache_gib_per_slot: float = 0.0) -> Callable[[MeasureFirst], MemoryReport]:
    """Counts like an engine whose model has so many bytes; the cache grows with the slots."""

    def measure(wanted: MeasureFirst) -> MemoryReport:
        cache = int(cache_gib_per_slot * wanted.layout.slots * GIB)
        return counted(wanted.layout, weights=int(weights_gib * GIB), cache=cache)

    return measure


def decide(
    view: ClusterView,
    measure: Callable[[MeasureFirst], MemoryReport | Fault],
    request: PlacementRequest = REQUEST,
    policy: Policy = POLICY,
) -> tuple[Placement | Refusal, list[MeasureFirst]]:
    """Plan, measuring whatever is asked for."""
    reports: dict[MeasureKey, MemoryReport | Fault] = {}
    measured: list[MeasureFirst] = []
    while True:
        outcome = plan_placement(request, view, reports, policy)
        if not isinstance(outcome, MeasureFirst):
            return outcome, measured
        assert outcome.key not in reports, "asked twice for the same report"
        measured.append(outcome)
        reports[outcome.key] = measure(outcome)


def placed(view: ClusterView, measure: Callable[[MeasureFirst], MemoryReport | Fault]) -> Placement:
    outcome, _ = decide(view, measure)
    assert isinstance(outcome, Placement), outcome
    return outcome


def refused(view: ClusterView, measure: Callable[[MeasureFirst], MemoryReport | Fault]) -> Refusal:
    outcome, _ = decide(view, measure)
    assert isinstance(outcome, Refusal), outcome
    return outcome


def device_of(placement: Placement) -> str:
    return placement.layout.devices[0].device_id if placement.layout.devices else "host"


def layers_of(layout: Layout) -> int:
    return sum(part.layer_count for part in layout.devices)


def candidate(outcome: Placement | Refusal, device_id: str) -> Candidate:
    return next(one for one in outcome.candidates if one.device_id == device_id)


def test_a_model_that_fits_a_gpu_goes_there_with_all_its_layers() -> None:
    placement = placed(ClusterView(nodes=(node(),)), engine(8))
    assert placement.layout.devices[0].device_id == "gpu-0"
    assert placement.layout.devices[0].layer_count == 32  # 31 blocks and the output
    assert placement.layout.slots == 8
    assert placement.victims == ()


def test_the_roomiest_gpu_of_the_cluster_is_taken() -> None:
    view = ClusterView(
        nodes=(
            node("a", devices=(gpu(free=10), cpu())),
            node("b", devices=(gpu("gpu-1", free=20), gpu("gpu-2", free=23), cpu())),
        )
    )
    placement = placed(view, engine(8))
    assert (placement.node_id, device_of(placement)) == ("b", "gpu-2")


def test_free_bytes_count_and_not_the_size_of_the_card() -> None:
    view = ClusterView(nodes=(node(devices=(gpu("full", free=2, total=80), gpu("gpu-1", free=10, total=12), cpu())),))
    assert device_of(placed(view, engine(8))) == "gpu-1"


def test_without_room_for_a_layer_on_any_gpu_it_goes_to_host_ram() -> None:
    view = ClusterView(nodes=(node(devices=(gpu(free=0.5), cpu(free=32))),))
    placement = placed(view, engine(8))
    assert device_of(placement) == "host"
    assert placement.layout.devices == ()


def test_an_integrated_gpu_is_the_last_choice_and_none_where_its_host_leaves_it_out() -> None:
    shared = integrated(free=32, total=32)
    roomy = ClusterView(nodes=(node(devices=(shared, gpu(free=20), cpu(free=64))),))
    full = ClusterView(nodes=(node(devices=(shared, gpu(free=0.5), cpu(free=64))),))
    left_out = ClusterView(nodes=(node(devices=(replace(shared, usable=False), gpu(free=0.5), cpu(free=64))),))
    assert device_of(placed(roomy, engine(8))) == "gpu-0"
    assert device_of(placed(full, engine(8))) == "igpu"
    assert device_of(placed(left_out, engine(8))) == "host"


def test_devices_of_one_pool_are_not_added_up() -> None:
    # 16 GiB of shared RAM, of which the integrated GPU claims all: what the host lacks, it lacks too.
    view = ClusterView(nodes=(node(devices=(integrated(free=30, total=30), cpu(free=16, total=16))),))
    assert refused(view, engine(20)).kind is RefusalKind.INSUFFICIENT_MEMORY


def test_slots_step_down_before_a_slower_device_is_taken() -> None:
    view = ClusterView(nodes=(node(devices=(gpu(free=12), cpu(free=64))),))
    placement = placed(view, engine(8, cache_gib_per_slot=1))
    assert device_of(placement) == "gpu-0"
    assert placement.layout.slots == 2


def test_an_explicit_number_of_slots_is_never_changed() -> None:
    view = ClusterView(nodes=(node(devices=(gpu(free=12), cpu(free=64))),))
    request = PlacementRequest(model_digest=model().digest, layout=REQUEST.layout, slot_steps=(8,))
    outcome, _ = decide(view, engine(8, cache_gib_per_slot=1), request)
    assert isinstance(outcome, Placement)
    assert outcome.shape is Shape.PARTIAL
    assert outcome.layout.slots == 8


def test_fewer_slots_are_not_measured_where_the_weights_alone_are_too_large() -> None:
    view = ClusterView(nodes=(node(devices=(gpu(free=4), cpu(free=64))),))
    _, measured = decide(view, engine(8, cache_gib_per_slot=1))
    assert [one.layout.slots for one in measured if layers_of(one.layout) == LAYERS] == [8]


def test_a_report_is_shared_by_equal_devices_of_equal_builds() -> None:
    view = ClusterView(nodes=(node("a", devices=(gpu(free=4), cpu())), node("b", devices=(gpu("x", free=4), cpu()))))
    _, measured = decide(view, engine(8))
    assert [one.node_id for one in measured if layers_of(one.layout) == LAYERS] == ["a"]


def test_what_starts_is_subtracted_from_what_is_free() -> None:
    starting = Promise(placement_id="s", node_id="a", device_bytes={"gpu-0": 20 * GIB}, starting=True)
    view = ClusterView(nodes=(node(),), promises=(starting,))
    assert placed(view, engine(8)).shape is Shape.PARTIAL


def test_what_is_loaded_counts_against_the_total_and_not_twice_against_what_is_free() -> None:
    loaded = Promise(placement_id="l", node_id="a", device_bytes={"gpu-0": 12 * GIB}, starting=False)
    view = ClusterView(nodes=(node(devices=(gpu(free=11, total=24), cpu())),), promises=(loaded,))
    assert device_of(placed(view, engine(8))) == "gpu-0"


def test_a_gpu_that_loads_another_model_is_passed_over_for_a_free_one() -> None:
    view = ClusterView(
        nodes=(node(devices=(gpu("big", free=80, total=80), gpu("gpu-1"), cpu())),),
        loading_pools=frozenset({("a", "big")}),
    )
    assert device_of(placed(view, engine(8))) == "gpu-1"


def test_a_load_waits_where_only_a_loading_gpu_would_do() -> None:
    view = ClusterView(nodes=(node(devices=(gpu(), cpu(free=4, total=8))),), loading_pools=frozenset({("a", "gpu-0")}))
    assert refused(view, engine(8)).kind is RefusalKind.BUSY


@pytest.mark.behaviour("B-136")
def test_the_least_recently_used_idle_replica_goes() -> None:
    def idle(name: str, seconds: float) -> tuple[Evictable, Promise]:
        size = {"gpu-0": 10 * GIB}
        return (
            Evictable(placement_id=name, idle_s=seconds, pool_bytes={("a", "gpu-0"): 10 * GIB}),
            Promise(placement_id=name, node_id="a", device_bytes=size, starting=False, freed_bytes=size),
        )

    pairs = [idle("old", 100), idle("new", 5)]
    view = ClusterView(
        nodes=(node(devices=(gpu(free=3, total=24), cpu())),),
        promises=tuple(pair[1] for pair in pairs),
        evictable=tuple(pair[0] for pair in pairs),
    )
    placement = placed(view, engine(8))
    assert device_of(placement) == "gpu-0"
    assert placement.victims == ("old",)


@pytest.mark.behaviour("B-136")
def test_a_load_in_host_ram_evicts_no_gpu_model() -> None:
    promise = Promise(
        placement_id="g",
        node_id="a",
        device_bytes={"gpu-0": 20 * GIB, "cpu": 1 * GIB},
        starting=False,
        freed_bytes={"gpu-0": 20 * GIB, "cpu": 1 * GIB},
    )
    # Host RAM is left out of what it frees, as most of it lies on the GPU.
    on_gpu = Evictable(placement_id="g", idle_s=100, pool_bytes={("a", "gpu-0"): 20 * GIB})
    request = PlacementRequest(
        model_digest=model().digest, layout=REQUEST.layout, slot_steps=(1,), constraints=Constraints(num_gpu=0)
    )
    view = ClusterView(
        nodes=(node(devices=(gpu(free=2, total=24), cpu(free=33, total=35))),),
        promises=(promise,),
        evictable=(on_gpu,),
    )
    # 32.5 GiB: fits neither the GPU nor the RAM as it is; without the GPU model's host part it would.
    outcome, _ = decide(view, engine(31.5), request)
    assert isinstance(outcome, Refusal)
    assert outcome.kind is RefusalKind.BUSY


def test_what_fits_only_once_busy_ones_are_gone_waits() -> None:
    size = {"gpu-0": 20 * GIB}
    busy = Promise(placement_id="b", node_id="a", device_bytes=size, starting=False, freed_bytes=size)
    view = ClusterView(nodes=(node(devices=(gpu(free=3), cpu(free=4, total=8))),), promises=(busy,))
    assert refused(view, engine(8)).kind is RefusalKind.BUSY


def test_what_can_never_fit_is_refused_with_both_numbers() -> None:
    view = ClusterView(nodes=(node(devices=(gpu(free=0.5), cpu(free=32, total=64))),))
    refusal = refused(view, engine(40))
    assert refusal.kind is RefusalKind.INSUFFICIENT_MEMORY
    # 40 GiB and what a process takes; 32 GiB free less 5 % of the machine.
    assert refusal.message == "model requires more system memory (40.1 GiB) than is available (28.8 GiB)"


def test_memory_that_others_hold_is_not_ours_to_wait_for() -> None:
    view = ClusterView(nodes=(node(devices=(gpu(free=2, total=80), cpu(free=4, total=64))),))
    assert refused(view, engine(8)).kind is RefusalKind.INSUFFICIENT_MEMORY


@pytest.mark.parametrize(
    ("bad", "verdict"),
    [
        (node(suspect=True), Verdict.NODE_SUSPECT),
        (replace(node(), is_damped=True), Verdict.NODE_DAMPED),
        (node(age_s=6.0), Verdict.FIGURES_UNUSABLE),
        (node(devices=(gpu(trust=Trust.UNKNOWN), cpu(trust=Trust.UNKNOWN))), Verdict.FIGURES_UNUSABLE),
        (node(devices=(gpu(usable=False), cpu(usable=False))), Verdict.DEVICE_EXCLUDED),
        (node(models=(model("other:latest"),)), Verdict.FILE_MISSING),
    ],
)
def test_unusable_devices_are_left_out_with_the_reason(bad: object, verdict: Verdict) -> None:
    view = ClusterView(nodes=(bad,))  # type: ignore[arg-type]
    refusal = refused(view, engine(1))
    assert refusal.kind is RefusalKind.NO_DEVICE
    assert {one.verdict for one in refusal.candidates} == {verdict}
    assert all(one.reason for one in refusal.candidates)


def test_stale_figures_cost_a_tenth_of_what_was_free() -> None:
    fresh = ClusterView(nodes=(node(devices=(gpu(free=10), cpu(free=4, total=64))),))
    stale = ClusterView(nodes=(node(devices=(gpu(free=10), cpu(free=4, total=64)), age_s=3.0),))
    assert isinstance(decide(fresh, engine(9))[0], Placement)
    assert isinstance(decide(stale, engine(9))[0], Refusal)


def test_back_off_leaves_more_free_on_the_device_where_an_allocation_failed() -> None:
    view = ClusterView(nodes=(node(devices=(gpu(free=10), gpu("gpu-1", free=9.9), cpu())),))
    request = PlacementRequest(
        model_digest=model().digest, layout=REQUEST.layout, slot_steps=(1,), backoff={("a", "gpu-0"): 0.1}
    )
    outcome, _ = decide(view, engine(9), request)
    assert isinstance(outcome, Placement)
    assert device_of(outcome) == "gpu-1"


def test_a_required_gpu_is_not_replaced_by_host_ram() -> None:
    view = ClusterView(nodes=(node(devices=(gpu(free=4), cpu())),))
    request = PlacementRequest(
        model_digest=model().digest, layout=REQUEST.layout, slot_steps=(1,), constraints=Constraints(require_gpu=True)
    )
    outcome, _ = decide(view, engine(8), request)
    assert isinstance(outcome, Refusal)
    assert candidate(outcome, "cpu").verdict is Verdict.GPU_REQUIRED


def test_a_file_that_the_engine_refuses_is_refused_with_its_words() -> None:
    fault = Fault(reason="bad_model_file", message="tensor data is cut off")
    refusal = refused(ClusterView(nodes=(node(),)), lambda _: fault)
    assert refusal.kind is RefusalKind.MEASURE_FAILED
    assert refusal.fault == fault


@pytest.mark.parametrize(("is_learned", "source"), [(True, "learned"), (False, "setting")])
def test_a_process_takes_what_its_host_says_of_the_device(is_learned: bool, source: str) -> None:
    here = replace(gpu(free=4), process_bytes=GIB, process_learned=is_learned)
    placement = placed(ClusterView(nodes=(node(devices=(here, cpu(free=32))),)), engine(8))
    short = candidate(placement, "gpu-0")
    assert (short.needs[0].reserve_bytes, short.needs[0].reserve_source) == (GIB, source)
    assert short.short_bytes == 4 * GIB + GIB + POLICY.margin_bytes
    assert placement.candidates[-1].needs[-1].reserve_source == "default", "of RAM nothing was said"


def test_a_decision_carries_every_candidate_with_its_numbers() -> None:
    view = ClusterView(nodes=(node(devices=(gpu(free=4), cpu(free=32))),))
    placement = placed(view, engine(8))
    short = candidate(placement, "gpu-0")
    assert short.verdict is Verdict.SHORT_BYTES
    assert short.needs[0].weights_bytes == 8 * GIB
    assert short.needs[0].reserve_bytes == POLICY.device_reserve_bytes
    assert short.needs[0].margin_bytes == POLICY.margin_bytes
    assert short.available[0].available_bytes == 4 * GIB
    assert short.short_bytes == 4 * GIB + POLICY.device_reserve_bytes + POLICY.margin_bytes
    taken = placement.candidates[-1]
    assert (taken.verdict, taken.shape, taken.device_ids) == (Verdict.FITS, Shape.PARTIAL, ("gpu-0",))
    assert all(
        need.total_bytes <= have.available_bytes for need, have in zip(taken.needs, taken.available, strict=True)
    )


def _is_outward(event: str) -> bool:
    """Return True if the interpreter reports an event that reaches beyond this process."""
    return event in ("open", "os.posix_spawn", "os.fork") or event.startswith(("subprocess.", "socket.", "ctypes."))


@pytest.mark.behaviour("B-138")
def test_a_decision_starts_no_process_opens_nothing_and_waits_for_nothing() -> None:
    view = ClusterView(nodes=(node("a"), node("b", devices=(gpu(free=4), cpu(free=32)))))
    seen: list[str] = []
    watching = [False]
    sys.addaudithook(lambda event, _: seen.append(event) if watching[0] and _is_outward(event) else None)
    decide(view, engine(8))  # what is imported late is imported now
    watching[0] = True
    placed(view, engine(8))
    watching[0] = False
    assert seen == []
    assert not any(map(inspect.iscoroutinefunction, (plan_placement, SchedulerCore.handle)))
    watching[0] = True
    Path(__file__).open().close()
    watching[0] = False
    assert seen == ["open"], "it would have been seen"


@pytest.mark.behaviour("B-138")
def test_a_decision_is_a_function_of_values_alone() -> None:
    view = ClusterView(nodes=(node("a"), node("b")))
    assert decide(view, engine(8)) == decide(view, engine(8))
