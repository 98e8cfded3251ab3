"""A draft model is placed with its target, or the target without it."""

from dataclasses import replace

import pytest

from scheduler.core.planning.candidates import ClusterView, MeasureFirst, MeasureKey, Placement
from scheduler.core.planning.drafts import plan_with_draft
from scheduler.core.state.events import MeasureEnded
from scheduler.core.values.constraints import Constraints, Shape
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import GIB, MemoryReport
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import ModelFile, NodeView
from tests.unit.scheduler.builders import cpu, gpu, model, node
from tests.unit.scheduler.planning.test_fetching import fetching_world
from tests.unit.scheduler.planning.test_placement import REQUEST, engine
from tests.unit.scheduler.world import World, world_with

TARGET, DRAFT = replace(model(), blob_digests=("b" * 64,)), replace(model("small:latest"), blob_digests=("d" * 64,))
OTHER = model("other:latest")
NOT_FETCHABLE = replace(DRAFT, blob_digests=())


def having(name: str, *files: ModelFile, free: float = 24, room_gib: int = 100) -> NodeView:
    devices = (gpu(free=free, total=max(free, 24)), cpu())
    return replace(node(name, devices=devices, models=files or (OTHER,)), models_free_bytes=room_gib * GIB)


def decide(*nodes: NodeView, draft: str = "small", gib: int = 10, draft_gib: int = 4) -> Placement:
    reports: dict[MeasureKey, MemoryReport | Fault] = {}
    request = replace(REQUEST, constraints=Constraints(draft=draft))
    while True:
        outcome = plan_with_draft(request, ClusterView(nodes=nodes), reports, Policy())
        if not isinstance(outcome, MeasureFirst):
            assert isinstance(outcome, Placement)
            return outcome
        assert outcome.key not in reports
        report = engine(gib)(outcome)
        taken = draft_gib * GIB if outcome.layout.draft_digest else 0
        if report.devices:
            device, *others = report.devices
            report = replace(report, devices=(replace(device, projector_bytes=taken), *others))
        else:
            report = replace(report, host=replace(report.host, projector_bytes=taken))
        reports[outcome.key] = report


def test_it_is_counted_and_placed_with_its_target_where_both_are() -> None:
    placed = decide(having("a", TARGET), having("b", TARGET, DRAFT))
    assert (placed.node_id, placed.layout.draft_digest, placed.note) == ("b", DRAFT.digest, "")
    assert placed.needs[0].projector_bytes == 4 * GIB


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        ((having("b", DRAFT),), "b"),  # fetches the target
        ((having("b"),), "b"),  # fetches both
        ((having("b"), having("c", DRAFT)), "c"),
        ((having("b", DRAFT), having("c", TARGET)), "c"),  # the draft model is what is fetched
    ],
)
def test_what_a_node_lacks_of_both_is_fetched_as_little_as_possible(others: tuple[NodeView, ...], chosen: str) -> None:
    full = having("a", TARGET, DRAFT, free=2)
    placed = decide(full, *others)
    assert (placed.node_id, placed.layout.draft_digest, placed.note) == (chosen, DRAFT.digest, "")


def test_the_room_of_a_store_has_to_take_both() -> None:
    fetched_gib = -(-(TARGET.fetched_bytes + DRAFT.fetched_bytes) // GIB)
    full = having("a", TARGET, DRAFT, free=2)
    assert decide(full, having("b", room_gib=fetched_gib)).layout.draft_digest
    placed = decide(full, having("b", room_gib=fetched_gib - 1))
    assert (placed.node_id, placed.layout.draft_digest) == ("b", "")


@pytest.mark.parametrize(
    ("nodes", "draft", "words"),
    [
        ((having("a", TARGET),), "small", 'no node has the draft model "small"'),
        ((having("a", TARGET, room_gib=0), having("b", DRAFT)), "small", "or can fetch it"),
        ((having("a", TARGET), having("b", NOT_FETCHABLE)), "small", "or can fetch it"),
        ((having("a", TARGET, model("small:latest", error="broken")),), "small", "no node has the draft model"),
        ((having("a", TARGET),), "m", "has the file of the model"),
        ((having("a", TARGET, DRAFT, free=13),), "small", "there is no room for the draft model"),
    ],
)
def test_without_it_the_model_is_placed_alone_and_the_reason_is_noted(
    nodes: tuple[NodeView, ...], draft: str, words: str
) -> None:
    placed = decide(*nodes, draft=draft)
    assert (placed.shape, placed.layout.draft_digest) == (Shape.ONE_DEVICE, "")
    assert words in placed.note


def test_it_never_costs_its_target_a_faster_shape_or_slots() -> None:
    alone = decide(having("a", TARGET), draft="")
    for free in range(11, 25):
        placed = decide(having("a", TARGET, DRAFT, free=free), draft_gib=6)
        without = decide(having("a", TARGET, free=free))
        assert (placed.shape, placed.layout.slots) == (without.shape, without.layout.slots)
        assert bool(placed.layout.draft_digest) == (not placed.note)
    assert placed.layout.slots == alone.layout.slots
    assert placed.layout.draft_digest


def test_a_model_that_is_its_own_draft_is_refused_and_an_unknown_one_noted_by_explain() -> None:
    world = world_with(node())
    world.want("m", draft="m:latest")
    assert "itself" in world.fault("want-m").message
    world.want("m", draft="gone")
    world.ensure("c")
    world.settle()
    assert world.is_ready("c")
    assert 'no node has the draft model "gone"' in world.explain().message
    assert [one.name for one in world.explain(last=True).constraints] == ["draft"]


def drafting_world() -> World:
    """Node a has the target, b the draft model: its fetch to a is cheaper than that of the target to b."""
    world = fetching_world(having("a", TARGET), having("b", DRAFT))
    world.want("m", draft="small")
    world.settle()
    world.ensure("c")
    return world


def test_a_host_is_told_where_the_draft_model_is_to_count_and_to_load_it() -> None:
    world = drafting_world()
    counted = [(one.origin, one.draft_origin) for one in world.measures]
    world.settle()
    assert world.is_ready("c")
    (started,) = world.all_starts
    assert (started.record.node_id, started.record.layout.draft_digest) == ("a", DRAFT.digest)
    assert started.origin is None
    assert started.draft_origin is not None
    assert (started.draft_origin.addresses, started.draft_origin.name) == (("b:1",), "small:latest")
    assert counted == [(None, None)], "the target alone is counted first"


@pytest.mark.parametrize("reason", ["registry_failed", "disk_full", "bad_model_file"])
def test_a_draft_model_whose_fetch_fails_is_done_without_and_noted_by_explain(reason: str) -> None:
    world = drafting_world()
    world.measure_all()
    world.writes_done()
    world.start_fails(world.starts.pop().record, Fault(reason=reason, message="b:1 does not answer"))
    world.settle()
    assert world.is_ready("c")
    assert [one.record.layout.draft_digest for one in world.all_starts] == [DRAFT.digest, ""]
    assert {one.record.node_id for one in world.all_starts} == {"a"}
    assert world.explain(last=True).message == (
        'the draft model "small" is not fetched, the model is loaded alone: b:1 does not answer'
    )


def test_a_draft_model_whose_header_does_not_come_is_done_without() -> None:
    world = drafting_world()
    while not world.measures[0].layout.draft_digest:
        measure = world.measures.pop(0)
        report = world.count(measure.key.model_digest, measure.layout)
        world.send(MeasureEnded(node_id=measure.node_id, key=measure.key, found=report))
    assert world.measures[0].draft_origin is not None
    world.measure_fails(Fault(reason="bad_model_file", message="it is no GGUF"))
    world.settle()
    assert world.is_ready("c")
    assert [one.record.layout.draft_digest for one in world.all_starts] == [""]
    assert "it is no GGUF" in world.explain(last=True).message
