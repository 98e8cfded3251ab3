"""A leader comes, goes or rises again: what it takes from the store, what from hosts, and what it leaves alone."""

from dataclasses import replace

import pytest

from scheduler.core.reconcile import NODE_FORGOTTEN_S
from scheduler.core.state.cluster_state import FORGOTTEN_MAX
from scheduler.core.state.effects import PublishRoutes
from scheduler.core.state.events import AliasPut, LeadershipGained, LeadershipLost, QueuesReported, TimePassed
from scheduler.core.state.promises import promises
from scheduler.core.stopping.stopping import RECOVERY_S, order_stop
from scheduler.core.values.desired import DesiredPlacement, Phase
from scheduler.core.values.faults import Fault, store_unreachable
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import RunnerState
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.world import World, models, world_with


def served() -> World:
    """One replica that serves, of two models that fit one at a time; the store knows everything."""
    world = world_with(node("a", devices=(gpu(), cpu(free=3, total=3)), models=models("m", "n")), m=16, n=16)
    world.ensure("c", "m")
    world.settle()
    return world


def begun() -> World:
    """A load that is written down and was sent."""
    world = world_with(node("a", devices=(gpu(), cpu(free=3, total=3)), models=models("m", "n")), m=16, n=16)
    world.ensure("c", "m", keep_alive_ms=77_000)
    world.measure_all()
    world.writes_done()
    return world


def next_leader(world: World) -> None:
    """Another process leads, once it has seen the inventory."""
    world.restart_scheduler()
    world.report()
    world.lead()


def change(world: World, **of_the_runner: object) -> None:
    one = world.runners["p1"]
    one.view = replace(one.view, **of_the_runner)  # type: ignore[arg-type]


def record(world: World) -> DesiredPlacement | None:
    return world.core.state.desired.get("p1")


def test_what_a_leader_has_forgotten_does_not_come_back_from_a_store_that_missed_it() -> None:
    world = served()
    world.unload("u", "m")
    world.writes_done()
    world.stops_done()
    world.report()
    world.writes.clear()  # the removal is lost
    world.store["p1"] = world.store["p1"].in_phase(Phase.RUNNING)  # as was the intent
    world.lead()
    assert record(world) is None
    world.writes_done()
    assert world.store == {}


def test_what_a_leader_wanted_itself_is_newer_than_what_the_store_has_of_it() -> None:
    world = served()
    mine = record(world)
    assert mine is not None
    world.store["p1"] = replace(mine, keep_alive_ms=5)
    world.lead()
    assert record(world) == mine


def test_all_that_was_written_outlives_a_store_that_lost_its_last_writes() -> None:
    world = served()
    world.want("n", priority=2)
    world.drain("a")
    world.alias("old", "m")
    older = (dict(world.stored_constraints), dict(world.stored_drains), dict(world.stored_aliases or {}))
    world.want("n", priority=3)
    world.want("m", priority=4)
    world.drain("a", drain=False)
    world.alias("old", None)
    world.alias("new", "m")
    written = (dict(world.stored_constraints), dict(world.stored_drains), dict(world.stored_aliases or {}))
    assert all(one != other for one, other in zip(older, written, strict=True))
    world.stored_constraints, world.stored_drains, world.stored_aliases = older
    placements = dict(world.store)
    world.store.clear()
    world.lead()
    world.writes_done()
    assert (world.stored_constraints, world.stored_drains, world.stored_aliases) == written
    assert world.store == placements != {}


def test_constraints_that_were_set_hold_for_the_next_leader() -> None:
    world = served()
    world.want("m", pinned=True)
    next_leader(world)
    world.pass_time(400)
    world.settle()
    assert world.route("m:latest") == ["p1"]


def test_gateways_hear_of_every_change_of_the_fence() -> None:
    world = served()

    def table(event: LeadershipGained | LeadershipLost) -> PublishRoutes:
        (found,) = (one for one in world.core.handle(event, 1000.0) if isinstance(one, PublishRoutes))
        return found

    before = world.routes
    assert table(LeadershipLost(fault=store_unreachable("no store"))).fence == 0
    again = table(LeadershipGained(fence=9, leader_id="other", desired=tuple(world.store.values())))
    assert (again.fence, again.routes) == (9, before)


def test_before_an_inventory_was_seen_nothing_is_missing() -> None:
    world = served()
    world.restart_scheduler()
    world.lead()
    for _ in range(3):
        world.now_s += NODE_FORGOTTEN_S
        world.send(TimePassed())
    world.report()
    world.writes_done()
    assert "p1" in world.store
    assert world.noted("replica.forgotten") == []


def test_a_frozen_view_forgets_no_record() -> None:
    world = served()
    lost = record(world)
    assert lost is not None
    world.store["old"] = replace(lost, placement_id="old", node_id="gone")
    next_leader(world)
    world.lose_inventory()
    world.now_s += 3 * NODE_FORGOTTEN_S
    world.send(TimePassed())
    assert "old" in world.core.state.desired


def test_a_node_that_comes_and_goes_is_away_anew_each_time() -> None:
    world = served()
    here = world.nodes["a"]
    world.cut_off.add("a")
    for _ in range(2):
        del world.nodes["a"]
        world.pass_time(NODE_FORGOTTEN_S - 10)
        assert record(world) is not None
        world.nodes["a"] = here
        world.pass_time(2)
    assert world.noted("replica.forgotten") == []


def test_a_replica_that_is_on_its_way_out_is_not_lost_when_it_is_gone() -> None:
    world = served()
    world.work("p1", busy=1)
    world.report()
    world.unload("u", "m")
    world.runner_dies("p1")
    world.settle()
    world.pass_time(RECOVERY_S + 1)
    world.settle()
    assert world.noted("replica.lost") == []
    assert world.core.state.stops == {}
    assert world.store == {}


def test_a_newer_generation_that_serves_is_adopted_with_its_number() -> None:
    world = served()
    change(world, generation=2, incarnation="p1.2")
    world.report()
    found = record(world)
    assert found is not None
    assert (found.generation, found.phase) == (2, Phase.RUNNING)
    assert world.noted("replica.lost") == []


def test_a_newer_generation_that_does_not_serve_yet_is_neither_adopted_nor_a_loss() -> None:
    world = served()
    change(world, generation=2, incarnation="p1.2", state=RunnerState.LOADING)
    world.report()
    found = record(world)
    assert found is not None
    assert (found.generation, found.phase) == (1, Phase.RUNNING)


def test_an_older_generation_is_not_the_one_that_is_wanted() -> None:
    world = served()
    mine = record(world)
    assert mine is not None
    world.store["p1"] = replace(mine, generation=2)
    next_leader(world)
    found = record(world)
    assert found is not None
    assert (found.generation, found.phase) == (2, Phase.LOST)


def test_what_goes_is_not_adopted() -> None:
    world = served()
    world.work("p1", busy=1)
    world.report()
    world.core.state.forget_desired("p1")
    order_stop(world.core.state, "p1", reason="test", now_s=world.now_s)
    world.report()
    assert world.noted("replica.adopted") == []


@pytest.mark.parametrize("of_the_runner", [{"placement_id": ""}, {"state": RunnerState.LOADING}])
def test_a_process_without_a_placement_or_that_does_not_serve_is_not_adopted(of_the_runner: dict[str, object]) -> None:
    world = served()
    change(world, **of_the_runner)
    world.store.clear()
    next_leader(world)
    assert world.core.state.desired == {}


@pytest.mark.parametrize("state", [RunnerState.ERROR, RunnerState.DRAINING])
def test_a_start_whose_runner_has_failed_or_goes_is_not_sent_again(state: RunnerState) -> None:
    world = begun()
    world.hosts_take_starts()
    change(world, state=state)
    sent = len(world.all_starts)
    next_leader(world)
    assert len(world.all_starts) == sent


def test_a_start_is_sent_again_only_to_a_node_that_reports() -> None:
    world = begun()
    world.nodes["a"] = replace(world.nodes["a"], suspect=True)
    sent = len(world.all_starts)
    next_leader(world)
    assert len(world.all_starts) == sent
    assert record(world) is not None
    world.nodes["a"] = replace(world.nodes["a"], suspect=False)
    world.report()
    assert len(world.all_starts) == sent + 1


def test_a_load_that_runs_needs_no_second_room() -> None:
    world = begun()
    world.hosts_take_starts()
    world.load("p1", 0.5)
    next_leader(world)
    assert record(world) is not None
    world.settle()
    assert world.route("m:latest") == ["p1"]
    assert world.noted("replica.adopted") == []


def test_a_start_that_never_arrived_is_dropped_where_there_is_no_room_any_more() -> None:
    world = begun()
    world.nodes["a"] = replace(world.nodes["a"], devices=(gpu(free=2), cpu(free=3, total=3)))
    sent = len(world.all_starts)
    next_leader(world)
    assert record(world) is None
    assert len(world.all_starts) == sent
    world.writes_done()
    assert world.store == {}


def test_the_keep_alive_of_a_load_that_another_leader_began_holds() -> None:
    world = begun()
    next_leader(world)
    world.settle()
    found = record(world)
    assert found is not None
    assert found.keep_alive_ms == 77_000


def test_a_start_that_borrows_from_a_drained_node_is_not_begun_again() -> None:
    pair = [
        replace(node(name, devices=(gpu("g0", free=12, total=12), cpu(free=3, total=3))), rpc_enabled=True)
        for name in ("near", "far")
    ]
    world = world_with(*pair, m=16)
    world.ensure("c")
    world.settle()
    (mine,) = world.store.values()
    (lender,) = {part.node_id for part in mine.layout.devices if part.node_id}
    world.runners.clear()
    world.store[mine.placement_id] = mine.in_phase(Phase.STARTING)
    world.stored_drains[lender] = 60.0
    sent = len(world.all_starts)
    next_leader(world)
    assert world.core.state.desired == {}
    assert len(world.all_starts) == sent


def test_the_silence_of_a_node_that_is_suspect_loses_no_replica() -> None:
    world = served()
    world.runners.clear()
    world.nodes["a"] = replace(world.nodes["a"], suspect=True)
    next_leader(world)
    found = record(world)
    assert found is not None
    assert found.phase is Phase.RUNNING


def test_a_replica_that_failed_is_lost_for_the_reason_that_its_host_tells() -> None:
    world = served()
    change(world, state=RunnerState.ERROR, fault=Fault(reason="device_lost", message="it fell off the bus"))
    world.report()
    found = record(world)
    assert found is not None
    assert found.phase is Phase.LOST
    assert [note.fields["reason"] for note in world.noted("replica.lost")] == ["device_lost"]


def stopping_record() -> World:
    world = served()
    mine = record(world)
    assert mine is not None
    world.store["p1"] = mine.in_phase(Phase.STOPPING)
    return world


def test_a_stop_is_finished_only_by_reports_that_are_live() -> None:
    world = stopping_record()
    world.runners.clear()
    world.nodes["a"] = replace(world.nodes["a"], suspect=True)
    next_leader(world)
    assert record(world) is not None
    world.nodes["a"] = replace(world.nodes["a"], suspect=False)
    world.report()
    assert record(world) is None


def test_a_stop_whose_runner_has_failed_is_over() -> None:
    world = stopping_record()
    change(world, state=RunnerState.ERROR)
    next_leader(world)
    assert record(world) is None
    assert world.core.state.stops == {}


def test_who_does_not_lead_keeps_nothing_that_only_a_leader_may_act_on() -> None:
    world = world_with(node("a", models=models("m", "n")), node("b", models=models("m", "n")), m=16, n=16)
    world.ensure("c", "m")
    world.settle()
    world.want("n", pinned=True)
    world.drain("b")
    world.work("p1", busy=1)
    world.report()
    order_stop(world.core.state, "p1", reason="test", now_s=world.now_s)
    lost = record(world)
    assert lost is not None
    world.core.state.desired["old"] = replace(lost, placement_id="old", node_id="gone")
    world.ensure("d", "n")
    world.send(AliasPut(caller_id="operator", name="short", target="m:latest"))
    world.send(QueuesReported(gateway_id="g", waits_s={"m:latest": 60.0}))
    names = (
        "jobs", "stops", "measuring", "desired", "constraints", "drains", "pending_aliases", "queue_waits",
        "waits_since_s", "desired_unseen_since_s",
    )  # fmt: skip
    assert [name for name in names if not getattr(world.core.state, name)] == []
    world.lose_leadership()
    assert [name for name in names if getattr(world.core.state, name)] == []
    assert world.route("m:latest") == ["p1"], "what nobody may stop serves"


def test_time_alone_takes_the_routes_of_a_node_that_left() -> None:
    """No inventory comes meanwhile."""
    world = served()
    world.cut_off.add("a")
    del world.nodes["a"]
    world.report()
    world.now_s += Policy().node_lost_s - 0.01
    world.send(TimePassed())
    assert world.route("m:latest") == ["p1"]
    world.now_s += 0.01
    world.send(TimePassed())
    assert world.routes == ()


def test_what_its_host_reports_ready_is_remembered_before_an_inventory_shows_it() -> None:
    world = begun()
    world.hosts_take_starts()
    world.load("p1", 1.0)
    assert world.core.state.tracked["p1"].generation == 1


def test_of_what_was_forgotten_the_oldest_is_let_go_first() -> None:
    state = served().core.state
    for number in range(FORGOTTEN_MAX + 1):
        state.forget_desired(f"old-{number}")
    assert len(state.forgotten) == FORGOTTEN_MAX
    assert "old-0" not in state.forgotten
    assert {"old-1", f"old-{FORGOTTEN_MAX}"} <= state.forgotten.keys()


@pytest.mark.parametrize("first", ["p1", "p2"])
def test_of_unseen_starts_that_do_not_fit_together_none_is_repeated_and_what_runs_is_adopted(
    first: str,
) -> None:
    world = served()
    died = world.store["p1"].in_phase(Phase.STARTING)
    world.runner_dies("p1")
    world.ensure("c2", "n")
    world.measure_all()
    world.writes_done()
    world.hosts_take_starts()
    unseen = world.runners.pop("p2")
    world.store = {"p1": died, "p2": world.store["p2"]}  # all that was written of p1 since is lost
    world.store[first] = world.store.pop(first)
    world.store = dict(reversed(world.store.items()))
    next_leader(world)
    world.writes_done()
    assert (world.starts, world.store) == ([], {})
    world.runners["p2"] = unseen
    world.load("p2", 1.0)
    world.report()
    assert [one.placement_id for one in promises(world.core.state)] == ["p2"]
    assert world.route("n:latest") == ["p2"]


def test_a_start_outlives_the_leadership_in_which_it_was_sent() -> None:
    world = begun()
    world.hosts_take_starts()
    world.lose_leadership()
    world.lead()
    world.writes_done()
    assert world.store["p1"].phase is Phase.STARTING
    world.settle()
    assert world.route("m:latest") == ["p1"]
    assert world.runners["p1"].view.generation == 1
