"""Fetches that fail: from others who have the model, then to other nodes, so many times, and with every reason told."""

from dataclasses import replace

import pytest

from scheduler.core.planning.candidates import Verdict
from scheduler.core.state.events import MeasureEnded, StartFailed
from scheduler.core.state.load_jobs import LOAD_NODES_MAX
from scheduler.core.values.faults import Fault
from scheduler.core.values.view import NodeView
from tests.unit.scheduler.builders import cpu, gpu
from tests.unit.scheduler.planning.test_fetching import FILE, fetches, fetching_world, holder, without
from tests.unit.scheduler.world import World

SMALL = (gpu(free=1, total=1), cpu(free=2, total=2))
BROKEN = Fault(reason="registry_failed", message="m could not be fetched: a:1: connection refused")


def small_holder(name: str = "a", manifest: str = "") -> NodeView:
    return holder(name, devices=SMALL, file=replace(FILE, manifest_digest=manifest))


def next_start(world: World) -> StartFailed:
    """The next start, as it fails."""
    world.measure_all()
    world.writes_done()
    record = world.starts.pop().record
    return StartFailed(placement_id=record.placement_id, generation=record.generation, fault=BROKEN)


@pytest.mark.parametrize("reason", ["registry_failed", "digest_mismatch", "model_not_found"])
def test_a_fetch_that_fails_sends_the_load_to_the_next_node_and_explain_says_why(reason: str) -> None:
    world = fetching_world(small_holder(), without("b"), without("c"))
    world.ensure("x")
    failed = next_start(world)
    first = world.all_starts[0].record
    world.send(replace(failed, fault=replace(BROKEN, reason=reason)))
    world.settle()
    assert world.is_ready("x")
    assert {one.record.node_id for one in world.all_starts} == {"b", "c"}
    told = [one for one in world.explain(last=True).candidates if one.node_id == first.node_id]
    assert told
    assert {one.verdict for one in told} == {Verdict.LOAD_FAILED}
    assert {one.reason for one in told} == {BROKEN.message}


def test_a_fetch_that_breaks_off_while_it_moves_goes_elsewhere_too() -> None:
    world = fetching_world(small_holder(), without("b"), without("c"))
    world.ensure("x")
    world.measure_all()
    world.writes_done()
    world.hosts_take_starts()
    record = world.all_starts[0].record
    fetches(world, record.placement_id, 0.4)
    del world.runners[record.placement_id]
    world.start_fails(record, BROKEN)
    world.settle()
    assert world.is_ready("x")
    assert len({one.record.node_id for one in world.all_starts}) == 2


def test_another_source_is_tried_before_another_node() -> None:
    """Two nodes have the same weights under different manifests: one cannot go on where the other broke off."""
    world = fetching_world(small_holder("a", "c" * 64), small_holder("d", "d" * 64), without("b"))
    world.ensure("x")
    failed = next_start(world)
    world.send(failed)
    world.settle()
    assert world.is_ready("x")
    assert [one.record.node_id for one in world.all_starts] == ["b", "b"]
    assert [one.origin and one.origin.addresses for one in world.all_starts] == [("a:1",), ("d:1",)]


def test_the_attempts_are_bounded_and_all_of_them_are_told() -> None:
    world = fetching_world(small_holder(), *(without(f"n{number}") for number in range(9)))
    world.ensure("x")
    for _ in range(9):
        world.measure_all()
        world.writes_done()
        if not world.starts:
            break
        record = world.starts.pop().record
        world.start_fails(record, BROKEN)
    fault = world.fault("x")
    tried = [one.record.node_id for one in world.all_starts]
    assert len(tried) == len(set(tried)) == LOAD_NODES_MAX
    assert fault.reason == BROKEN.reason
    assert fault.message == "; ".join(f"attempt {at} on {name}: {BROKEN.message}" for at, name in enumerate(tried, 1))


def test_headers_that_do_not_come_say_nothing_about_the_same_devices_elsewhere() -> None:
    world = fetching_world(small_holder(), without("b"), without("c"))
    world.ensure("x")
    while (measure := world.measures[0]).origin is None:
        report = world.count(measure.key.model_digest, measure.layout)
        world.send(MeasureEnded(node_id=measure.node_id, key=measure.key, found=report))
        del world.measures[0]
    world.measure_fails(BROKEN)
    assert measure.key not in world.core.state.jobs[1].failed.measures
    world.settle()
    assert world.is_ready("x")
    (started,) = world.all_starts
    assert started.record.node_id != measure.node_id
    assert started.record.planned is not None
    assert started.record.planned.origin.is_counted


def test_a_file_of_no_use_where_it_always_was_is_not_looked_for_elsewhere() -> None:
    world = fetching_world(holder("a"), holder("b"))
    world.ensure("x")
    world.send(replace(next_start(world), fault=Fault(reason="digest_mismatch", message="blob is not what it says")))
    assert world.fault("x").message == "blob is not what it says"
