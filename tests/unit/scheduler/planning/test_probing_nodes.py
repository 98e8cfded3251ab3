"""A node whose host does not know its devices yet: loads wait for it, and nothing is placed there."""

from dataclasses import replace

import pytest

from scheduler.core.planning.candidates import Verdict
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.world import World, models, world_with

pytestmark = pytest.mark.behaviour("B-130", "B-135")

WHY = "the engine is being asked what there is"


def probing_world() -> World:
    unknown = replace(cpu(), usable=False, probing=True, state_reason=WHY)
    return world_with(node("near", devices=(unknown,), models=models("m")), m=8)


def test_a_load_waits_for_a_node_that_does_not_know_its_devices_and_begins_when_it_does() -> None:
    world = probing_world()
    world.ensure("c")
    world.settle()
    world.pass_time(20)
    world.settle()
    assert world.runners == {}
    explanation = world.explain()
    assert [(one.verdict, one.reason) for one in explanation.candidates] == [(Verdict.NODE_PROBING, WHY)]
    world.nodes["near"] = replace(world.nodes["near"], devices=(gpu("g0"), cpu()))
    world.report()
    world.settle()
    assert [one.node_id for one in world.runners.values()] == ["near"]


def test_another_node_is_not_waited_for() -> None:
    world = probing_world()
    world.nodes["far"] = node("far", devices=(gpu("g0"), cpu()), models=models("m"))
    world.report()
    world.ensure("c")
    world.settle()
    assert [one.node_id for one in world.runners.values()] == ["far"]


def test_what_runs_on_a_node_whose_new_host_does_not_know_its_devices_yet_goes_on() -> None:
    known = (gpu("g0"), cpu())
    world = world_with(node("near", devices=known, models=models("m")), m=8)
    world.ensure("c")
    world.settle()
    (running,) = world.runners
    unknown = replace(cpu(), usable=False, probing=True, state_reason=WHY)
    world.nodes["near"] = replace(world.nodes["near"], devices=(unknown,))
    world.report()
    world.pass_time(20)
    world.settle()
    assert list(world.runners) == [running]
    assert len(world.route()) == 1
    world.ensure("d")  # served by what is there
    world.settle()
    world.nodes["near"] = replace(world.nodes["near"], devices=known)
    world.report()
    world.pass_time(20)
    world.settle()
    assert list(world.runners) == [running]
    assert len(world.route()) == 1
