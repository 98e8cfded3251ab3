"""Runners are the truth: what is lost, adopted, taken over and routed."""

import math

import pytest

from common.spec.layout import Layout
from scheduler.core.state.events import TimePassed
from scheduler.core.state.promises import promises
from scheduler.core.values.desired import DesiredPlacement, Phase
from scheduler.core.values.view import RunnerState
from tests.unit.scheduler.builders import node, runner
from tests.unit.scheduler.surroundings import FakeRunner
from tests.unit.scheduler.world import World, world_with


def running() -> World:
    world = world_with(node())
    world.ensure("c")
    world.settle()
    return world


@pytest.mark.behaviour("B-140")
def test_a_dead_runner_leaves_the_route_at_once_and_the_next_request_starts_its_next_generation() -> None:
    world = running()
    world.runner_dies("p1")
    assert world.route() == []
    world.ensure("c2")
    world.pass_time(1)
    world.settle()
    assert world.is_ready("c2")
    assert [(one.record.placement_id, one.record.generation) for one in world.all_starts] == [("p1", 1), ("p1", 2)]


@pytest.mark.parametrize("state", [RunnerState.ERROR, RunnerState.NOT_RESPONDING, RunnerState.DRAINING])
def test_a_runner_that_does_not_serve_is_not_routed(state: RunnerState) -> None:
    world = running()
    one = world.runners["p1"]
    one.view = runner("p1", state=state, layout=one.view.layout)
    world.report()
    assert world.route() == []


def test_a_runner_that_dies_right_after_it_was_ready_does_not_linger() -> None:
    world = running()
    world.report()
    world.runner_dies("p1")
    assert world.route() == []


def test_what_was_just_loaded_stays_promised_while_no_inventory_comes() -> None:
    """Discovery hangs: until that is known, nothing contradicts what the host has reported."""
    world = world_with(node())
    world.ensure("c")
    world.measure_all()
    world.writes_done()
    world.hosts_take_starts()
    world.load("p1", 1.0)
    world.writes_done()
    for _ in range(10):
        world.now_s += 1
        world.send(TimePassed())
        assert [one.placement_id for one in promises(world.core.state)] == ["p1"]
        assert world.route() == ["p1"]
    world.lose_inventory()
    world.pass_time(30, reporting=False)
    assert [one.placement_id for one in promises(world.core.state)] == ["p1"]
    del world.runners["p1"]
    world.report()
    assert world.route() == []


def test_a_node_that_leaves_keeps_its_routes_for_a_moment_and_gets_nothing_new() -> None:
    world = world_with(node("a"), node("b", devices=()))
    world.ensure("c")
    world.settle()
    home = world.runners["p1"].node_id
    gone = world.nodes.pop(home)
    world.report()
    assert world.route() == ["p1"]
    world.pass_time(3)
    world.nodes[home] = gone
    world.report()
    world.pass_time(60)
    assert world.route() == ["p1"]
    assert world.noted("replica.lost") == []


def test_runners_of_a_silent_node_stay_routed_for_as_long_as_they_answer_themselves() -> None:
    world = running()
    away = world.nodes.pop("a")
    world.pass_time(60)
    assert world.route() == ["p1"]
    assert 30 <= world.questions <= 45
    world.ensure("c2")
    assert world.is_ready("c2")
    assert world.all_stops == []
    world.nodes["a"] = away
    world.report()
    asked = world.questions
    world.pass_time(10)
    assert world.questions == asked
    assert world.route() == ["p1"]


def test_a_runner_of_a_silent_node_that_stops_answering_loses_its_route() -> None:
    world = running()
    del world.nodes["a"]
    world.pass_time(20)
    del world.runners["p1"]
    world.pass_time(3)
    assert world.route() == ["p1"]
    world.pass_time(4)
    assert world.routes == ()
    asked = world.questions
    world.pass_time(10)
    assert world.questions == asked


def test_a_node_that_stays_away_loses_its_routes() -> None:
    world = running()
    del world.nodes["a"]
    world.cut_off.add("a")
    world.pass_time(4)
    assert world.route() == ["p1"]
    world.pass_time(2)
    assert world.routes == ()


def test_a_restarted_discovery_that_knows_nobody_yet_contradicts_nothing() -> None:
    world = running()
    nodes = world.nodes
    world.nodes = {}
    world.uptime_s = 0.1
    world.report()
    world.now_s += 8
    world.uptime_s = 8
    world.report()
    assert world.route() == ["p1"]
    world.nodes = nodes
    world.report()
    assert world.route() == ["p1"]
    assert world.all_stops == []
    assert world.noted("replica.lost") == []


def test_a_lost_watch_withdraws_nothing() -> None:
    world = running()
    world.lose_inventory()
    world.pass_time(1000, reporting=False)
    assert world.route() == ["p1"]


def test_an_empty_store_is_filled_again_from_what_runs() -> None:
    world = running()
    world.writes_done()
    world.store.clear()
    world.restart_scheduler()
    world.report()
    world.lead()
    world.settle()
    assert world.route() == ["p1"]
    assert world.store["p1"].phase is Phase.RUNNING
    assert world.all_stops == []


def test_a_store_emptied_under_a_leader_is_filled_again_and_nothing_stops() -> None:
    world = running()
    world.writes_done()
    world.store.clear()
    world.lead()
    world.settle()
    assert world.store["p1"].phase is Phase.RUNNING
    assert world.route() == ["p1"]
    assert world.all_stops == []


def test_a_standby_publishes_the_routes_that_hosts_report() -> None:
    world = running()
    world.restart_scheduler()
    world.report()
    assert world.route() == ["p1"]
    world.ensure("c2")
    assert world.is_ready("c2")


def test_an_adopted_replica_expires_like_any_other() -> None:
    world = running()
    world.restart_scheduler()
    world.report()
    world.lead()
    world.settle()
    world.pass_time(301)
    world.settle()
    assert world.runners == {}


def test_a_keep_alive_at_the_former_leader_is_known_to_the_next() -> None:
    world = world_with(node())
    world.ensure("c", keep_alive_ms=-1)
    world.settle()
    world.restart_scheduler()
    world.report()
    world.lead()
    world.pass_time(4000)
    assert world.route() == ["p1"]


@pytest.mark.parametrize("crash_after", ["planning", "writing", "sending", "loading", "ready"])
def test_the_next_leader_finishes_what_the_last_one_began_with_one_runner(crash_after: str) -> None:
    world = world_with(node())
    world.ensure("c")
    world.measure_all()
    if crash_after != "planning":
        world.writes_done()
    if crash_after in ("sending", "loading", "ready"):
        world.hosts_take_starts()
    if crash_after in ("loading", "ready"):
        world.load("p1", 0.5)
    if crash_after == "ready":
        world.load("p1", 1.0)  # the mark is not written
    world.restart_scheduler()
    world.report()
    world.lead()
    world.settle()
    if crash_after == "planning":
        assert world.runners == {}
    else:
        assert world.route() == ["p1"]
        assert world.store["p1"].phase is Phase.RUNNING
        assert {(one.record.placement_id, one.record.generation) for one in world.all_starts} == {("p1", 1)}


def test_the_next_leader_finishes_a_stop() -> None:
    world = running()
    world.unload("u")
    world.writes_done()
    world.restart_scheduler()
    world.report()
    world.lead()
    world.settle()
    assert world.runners == {}
    assert world.store == {}


def test_a_runner_that_died_while_nobody_led_is_not_started_unasked() -> None:
    world = running()
    world.writes_done()
    world.lose_leadership()
    del world.runners["p1"]
    world.report()
    world.lead()
    world.settle()
    assert len(world.all_starts) == 1
    assert world.store["p1"].phase is Phase.LOST


def test_a_record_of_a_node_that_never_comes_back_is_forgotten() -> None:
    world = running()
    world.writes_done()
    world.store["old"] = DesiredPlacement(
        placement_id="old",
        generation=3,
        phase=Phase.STARTING,
        node_id="gone",
        model_name="m:latest",
        model_digest="digest-m",
        layout=Layout(context_tokens=4096, slots=8, batch_tokens=512),
    )
    world.lead()
    world.pass_time(59)
    assert "old" in world.store
    world.pass_time(3)
    world.writes_done()
    assert "old" not in world.store
    assert len(world.all_starts) == 1


def test_a_waiting_load_ends_when_a_replica_appears_by_itself() -> None:
    world = world_with(node())
    world.ensure("c")
    view = runner("elsewhere", layout=Layout(context_tokens=4096, slots=8, batch_tokens=512))
    world.runners["elsewhere"] = FakeRunner(node_id="a", view=view)
    world.report()
    world.measure_all()
    assert world.is_ready("c")
    assert world.all_starts == []


@pytest.mark.behaviour("B-139")
def test_versions_of_the_routes_grow_with_every_change_and_only_then() -> None:
    world = running()
    before = list(world.routes_versions)
    for _ in range(10):
        world.now_s += 1
        world.report()
    assert world.routes_versions == before
    world.work("p1", busy=1)
    world.report()
    assert world.routes_versions == [*before, before[-1] + 1]


def test_a_route_shows_when_an_idle_replica_expires() -> None:
    world = running()
    (route,) = world.routes
    (replica,) = route.replicas
    assert replica.expires_at_s == pytest.approx(world.now_s + 300, abs=1)
    world.work("p1", busy=1)
    world.report()
    assert world.routes[0].replicas[0].expires_at_s is None
    world.work("p1", busy=1, keep_alive_ms=-1)
    world.report()
    assert world.routes[0].replicas[0].expires_at_s == math.inf
