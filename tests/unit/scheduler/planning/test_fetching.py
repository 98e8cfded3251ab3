"""Nodes that lack a model: after those that have it, unless a fetch brings what those cannot."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from scheduler.core.loading.expecting import usual_load_s
from scheduler.core.planning.candidates import (
    ClusterView,
    MeasureFirst,
    MeasureKey,
    Placement,
    PlacementRequest,
    Refusal,
    RefusalKind,
)
from scheduler.core.planning.fetching import plan_anywhere
from scheduler.core.sizes.eviction import Evictable
from scheduler.core.sizes.ledger import Promise
from scheduler.core.state.effects import AnswerLoading
from scheduler.core.values.constraints import Constraints, Shape
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import GIB, MemoryReport
from scheduler.core.values.origins import Origin, origins_for
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import ModelFile, NodeView, RunnerState
from tests.unit.scheduler.builders import cpu, gpu, model, node
from tests.unit.scheduler.planning.test_placement import REQUEST, engine
from tests.unit.scheduler.world import World

FILE = replace(model(), blob_digests=("b" * 64,))
OTHER = model("other:latest")


def holder(name: str, *, file: ModelFile = FILE, **more: object) -> NodeView:
    return replace(node(name, models=(file,)), **more)  # type: ignore[arg-type]


def without(name: str, *, room_gib: float = 100, **more: object) -> NodeView:
    return replace(node(name, models=(OTHER,)), models_free_bytes=int(room_gib * GIB), **more)  # type: ignore[arg-type]


def decide(
    nodes: tuple[NodeView, ...],
    request: PlacementRequest = REQUEST,
    *,
    counts: Callable[[MeasureFirst], MemoryReport] = engine(10),  # noqa: B008  # a function without state
    **view: object,
) -> Placement | Refusal:
    reports: dict[MeasureKey, MemoryReport | Fault] = {}
    while True:
        outcome = plan_anywhere(request, ClusterView(nodes=nodes, **view), reports, Policy())  # type: ignore[arg-type]
        if not isinstance(outcome, MeasureFirst):
            return outcome
        assert outcome.key not in reports
        reports[outcome.key] = counts(outcome)


def pinned(*names: str) -> PlacementRequest:
    return replace(REQUEST, constraints=Constraints(nodes=names))


def test_a_node_that_has_the_file_comes_first_however_roomy_others_are() -> None:
    placed = decide((holder("a", devices=(gpu(free=12), cpu())), without("b", devices=(gpu(total=80, free=80), cpu()))))
    assert isinstance(placed, Placement)
    assert placed.node_id == "a"


def test_a_model_that_is_kept_on_a_node_without_the_file_goes_there() -> None:
    placed = decide((holder("a"), without("b")), pinned("b"))
    assert isinstance(placed, Placement)
    assert placed.node_id == "b"
    assert placed.shape is Shape.ONE_DEVICE


def test_what_does_not_fit_where_its_file_is_is_fetched_to_where_it_fits() -> None:
    placed = decide((holder("a", devices=(gpu(free=2, total=2), cpu(free=2, total=2))), without("b")))
    assert isinstance(placed, Placement)
    assert placed.node_id == "b"


def test_a_gpu_elsewhere_is_worth_a_fetch_where_there_is_only_a_processor() -> None:
    placed = decide((holder("a", devices=(cpu(),)), without("b")))
    assert isinstance(placed, Placement)
    assert placed.node_id == "b"
    placed = decide((holder("a", devices=(cpu(),)), without("b", devices=(cpu(),))))
    assert isinstance(placed, Placement)
    assert placed.node_id == "a"


def test_nobody_goes_for_a_model_that_has_a_free_place_elsewhere() -> None:
    idle = Promise(
        placement_id="p", node_id="a", device_bytes={"gpu-0": 20 * GIB}, starting=False, freed_bytes={"gpu-0": 20 * GIB}
    )
    may_go = Evictable(placement_id="p", idle_s=60.0, pool_bytes={("a", "gpu-0"): 20 * GIB})
    full = holder("a", devices=(gpu(free=4), cpu(free=9)))
    placed = decide((full, without("b")), promises=(idle,), evictable=(may_go,))
    assert isinstance(placed, Placement)
    assert (placed.node_id, placed.victims) == ("b", ())
    placed = decide((full, without("b", room_gib=0.5)), promises=(idle,), evictable=(may_go,))
    assert isinstance(placed, Placement)
    assert (placed.node_id, placed.victims) == ("a", ("p",))


def test_one_replica_more_goes_to_another_node_even_if_it_has_to_be_fetched() -> None:
    more = replace(REQUEST, replicas=frozenset({("a", "gpu-0")}))
    both = (holder("a", devices=(gpu(total=80, free=60), cpu())), without("b"))
    placed = decide(both, more)
    assert isinstance(placed, Placement)
    assert placed.node_id == "b"


def test_a_store_without_room_is_no_place_and_the_explanation_says_so() -> None:
    refused = decide((holder("a"), without("b", room_gib=0.5)), pinned("b"))
    assert isinstance(refused, Refusal)
    assert refused.kind is RefusalKind.NO_DEVICE
    assert "its store has room for 512.0 MiB, 1.0 GiB are needed" in refused.message
    assert any("its store has room" in one.reason for one in refused.candidates if one.node_id == "b")


def test_a_file_that_nobody_can_hand_over_stays_where_it_is() -> None:
    for nodes in (
        (holder("a", file=model()), without("b")),
        (holder("a", suspect=True), without("b")),
    ):
        assert isinstance(decide(nodes, pinned("b")), Refusal)


def test_a_node_is_told_of_all_who_have_the_same_files() -> None:
    stored = replace(FILE, manifest_digest="c" * 64)
    nodes = (
        without("b"),
        holder("a", file=stored),
        holder("d", file=stored),
        holder("e", file=stored, suspect=True),
        holder("f", file=replace(FILE, manifest_digest="d" * 64)),
    )
    first, other = origins_for(nodes, nodes[0], FILE.digest, "")
    assert first == Origin(
        addresses=("a:1", "d:1"),
        name=FILE.name,
        manifest_digest="c" * 64,
        blob_digests=FILE.blob_digests,
        projector_digest="",
    )
    assert other == replace(first, addresses=("f:1",), manifest_digest="d" * 64)
    assert origins_for(nodes, nodes[1], FILE.digest, "") == []
    assert origins_for(nodes[:1], nodes[0], FILE.digest, "") == []


def test_a_model_without_its_projector_is_as_good_as_none() -> None:
    seeing = replace(FILE, projector_digest="e" * 64)
    nodes = (holder("a", file=seeing), holder("b"))
    (found,) = origins_for(nodes, nodes[1], FILE.digest, "e" * 64)
    assert found.addresses == ("a:1",)
    assert found.projector_digest == "e" * 64


def test_the_host_that_fetches_hears_from_whom() -> None:
    world = World()
    world.nodes = {one.id: one for one in (holder("a"), without("b"))}
    world.lead()
    world.report()
    world.want("m", nodes=["b"])
    world.ensure("c")
    assert [effect.origin.addresses for effect in world.measures if effect.origin is not None] == [("a:1",)]
    world.settle()
    assert world.is_ready("c")
    (started,) = world.all_starts
    assert started.record.node_id == "b"
    assert started.origin is not None
    assert started.origin.addresses == ("a:1",)
    assert started.origin.blob_digests == FILE.blob_digests


def test_a_node_with_the_file_is_not_told_of_others() -> None:
    world = World()
    world.nodes = {one.id: one for one in (holder("a"), holder("b"))}
    world.lead()
    world.report()
    world.ensure("c")
    assert all(effect.origin is None for effect in world.measures)
    world.settle()
    assert [started.origin for started in world.all_starts] == [None]


def test_an_explanation_names_the_store_that_is_too_small() -> None:
    world = World()
    world.nodes = {one.id: one for one in (holder("a", devices=(cpu(),)), without("b", room_gib=1))}
    world.lead()
    world.report()
    world.ensure("c")
    world.settle()
    reasons = [one.reason for one in world.explain().candidates if one.node_id == "b"]
    assert reasons
    assert all("its store has room for 1.0 GiB, 8.0 GiB are needed" in reason for reason in reasons)


# Room in stores, and time.


def fetching_world(*nodes: NodeView, **sizes: float) -> World:
    world = World(sizes_gib={f"digest-{name}": size for name, size in sizes.items()})
    world.nodes = {one.id: one for one in nodes}
    world.lead()
    world.report()
    return world


def fetches(world: World, placement_id: str, fraction: float) -> None:
    """The host of a start tells how far its fetch is."""
    one = world.runners[placement_id]
    one.view = replace(one.view, state=RunnerState.LOADING, is_fetching=True, load_fraction=fraction)
    world.tell(placement_id)


def test_two_fetches_to_one_node_promise_its_store_against_each_other() -> None:
    files = tuple(replace(model(name), blob_digests=(name[0] * 64,)) for name in ("m:latest", "n:latest"))
    big = (gpu(total=80, free=80), cpu())
    small = (gpu(free=1, total=1), cpu(free=2, total=2))
    world = fetching_world(
        replace(node("a", devices=small, models=files)), without("b", devices=big, room_gib=12), m=8, n=8
    )
    world.ensure("first", "m")
    world.measure_all()
    world.writes_done()
    world.hosts_take_starts()
    (started,) = world.all_starts
    assert started.record.node_id == "b"
    fetches(world, started.record.placement_id, 0.1)
    world.ensure("second", "n")
    world.measure_all()
    assert world.fault("second").reason == "insufficient_memory"
    reasons = [one.reason for one in world.explain("n", last=True).candidates if one.node_id == "b"]
    assert any("its store has room for 4.8 GiB, 8.0 GiB are needed" in reason for reason in reasons)
    fetches(world, started.record.placement_id, 0.9)
    world.ensure("third", "n")
    world.measure_all()
    world.writes_done()
    assert [one.record.node_id for one in world.all_starts] == ["b", "b"]


def test_a_store_that_is_full_after_all_sends_the_load_to_the_next_node() -> None:
    small = (gpu(free=1, total=1), cpu(free=2, total=2))
    world = fetching_world(holder("a", devices=small), without("b"), without("c"))
    world.ensure("x")
    world.measure_all()
    world.writes_done()
    first = world.starts.pop().record
    world.start_fails(first, Fault(reason="disk_full", message="the store cannot be written: no space left"))
    world.settle()
    assert world.is_ready("x")
    assert {one.record.node_id for one in world.all_starts} == {"b", "c"}


def test_a_cluster_whose_stores_are_all_full_says_where_it_was_tried() -> None:
    small = (gpu(free=1, total=1), cpu(free=2, total=2))
    world = fetching_world(holder("a", devices=small), without("b"))
    world.ensure("x")
    world.measure_all()
    world.writes_done()
    full = Fault(reason="disk_full", message="the store cannot be written: no space left")
    world.start_fails(world.starts.pop().record, full)
    world.settle()
    fault = world.fault("x")
    assert (fault.reason, fault.message) == ("disk_full", f"attempt 1 on b: {full.message}")


def test_a_fetch_that_moves_has_all_the_time_it_needs_and_the_load_after_it_has_its_own() -> None:
    small = (gpu(free=1, total=1), cpu(free=2, total=2))
    world = fetching_world(holder("a", devices=small), without("b"))
    world.ensure("x")
    world.measure_all()
    world.writes_done()
    world.hosts_take_starts()
    (started,) = world.all_starts
    placement = started.record.placement_id
    for step in range(60):  # four hours
        world.pass_time(240)
        fetches(world, placement, 0.9 * (step + 1) / 60)
    assert world.finals("x") == []
    one = world.runners[placement]
    for step in range(12):  # of reading files, which is what the deadline is about
        one.view = replace(one.view, is_fetching=False, load_fraction=0.9 + step / 1000)
        world.tell(placement)
        world.pass_time(240)
    assert "loading took longer than" in world.fault("x").message


def test_a_fetch_that_stands_still_is_given_up() -> None:
    small = (gpu(free=1, total=1), cpu(free=2, total=2))
    world = fetching_world(holder("a", devices=small), without("b"))
    world.ensure("x")
    world.measure_all()
    world.writes_done()
    world.hosts_take_starts()
    fetches(world, world.all_starts[0].record.placement_id, 0.4)
    world.pass_time(301)
    assert "progress 0.40" in world.fault("x").message


def test_a_load_after_a_fetch_is_expected_and_remembered_without_the_fetch() -> None:
    small = (gpu(free=1, total=1), cpu(free=2, total=2))
    world = fetching_world(holder("a", devices=small), without("b"))
    world.ensure("x")
    world.measure_all()
    world.writes_done()
    world.hosts_take_starts()
    (started,) = world.all_starts
    placement = started.record.placement_id
    world.pass_time(90)
    fetches(world, placement, 0.45)
    assert last_loading(world, "x").eta_s == pytest.approx(110, abs=1), "one rate for the whole way"
    assert last_loading(world, "x").bytes_done == 0
    world.pass_time(90)
    one = world.runners[placement]
    total = one.view.load_bytes_total
    one.view = replace(one.view, is_fetching=False, load_fraction=0.9)
    world.tell(placement)
    world.pass_time(10)
    one.view = replace(one.view, load_fraction=0.95, load_bytes_done=total // 2)
    world.tell(placement)
    assert last_loading(world, "x").eta_s == pytest.approx(10, abs=1)
    assert last_loading(world, "x").bytes_done == total // 2
    world.pass_time(10)
    world.load(placement, 1.0)
    assert last_loading(world, "x").bytes_done == last_loading(world, "x").bytes_total == total
    assert usual_load_s(world.core.state, started.record.model_digest) == pytest.approx(20, abs=1)


def last_loading(world: World, caller: str) -> AnswerLoading:
    return [one for one in world.answers[caller] if isinstance(one, AnswerLoading)][-1]


@pytest.mark.parametrize(
    ("other", "node_id"),
    [(holder("b"), "b"), (without("b"), "b"), (without("b", room_gib=0), "a"), (holder("b", suspect=True), "a")],
    ids=["has-it", "fetches-it", "has-no-room", "is-silent"],
)
def test_a_node_that_comes_and_goes_takes_a_model_only_if_no_steady_one_can(other: NodeView, node_id: str) -> None:
    placed = decide((holder("a", is_damped=True), other))
    assert isinstance(placed, Placement)
    assert placed.node_id == node_id
