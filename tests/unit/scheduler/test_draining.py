"""A node that is drained gets nothing new; what runs there goes elsewhere first, then ends."""

from dataclasses import replace

import pytest

from scheduler.core.draining import NODE_DRAIN_S
from scheduler.core.planning.candidates import Verdict
from scheduler.core.state.effects import AnswerFailed, AnswerReplicas, CheckLeadership, SaveDesired, SaveDrain
from scheduler.core.state.events import DrainAsked, SaveEnded, TimePassed
from scheduler.core.state.load_jobs import LoadState
from scheduler.core.values.desired import Phase
from scheduler.core.values.faults import STALE_FENCE, Fault
from scheduler.core.values.view import ModelFile
from tests.unit.scheduler.builders import cpu, gpu, model, node
from tests.unit.scheduler.world import World, models, world_with


def two_nodes(*, room_gib: float = 24) -> World:
    near = node("near", devices=(gpu("g0"), cpu()), models=models("m", "other"))
    far = node("far", devices=(gpu("g0", free=room_gib, total=room_gib), cpu(free=3, total=3)), models=models("m"))
    return world_with(near, far, m=8, other=3)


def loaded_on_near() -> World:
    world = two_nodes()
    world.drain("far")
    world.ensure("c")
    world.settle()
    world.drain("far", drain=False)
    assert [one.node_id for one in world.runners.values()] == ["near"]
    return world


def busy_and_drained_20_s_ago(*, budget_s: int) -> tuple[World, str]:
    """A world whose node `near` has drained for 20 s, and the replica there that has work."""
    world = loaded_on_near()
    (placement_id,) = world.runners
    world.work(placement_id, busy=1)
    world.drain("near", budget_s=budget_s)
    world.pass_time(20)
    return world, placement_id


def nodes_in_use(world: World) -> list[str]:
    return sorted(one.node_id for one in world.runners.values())


def test_nothing_is_placed_on_a_drained_node_and_the_explanation_says_so() -> None:
    world = two_nodes()
    world.drain("near")
    world.ensure("c", "other")
    world.settle()
    assert world.fault("c").reason == "model_unavailable"
    assert "drained" in world.fault("c").message
    world.ensure("d")
    world.settle()
    assert nodes_in_use(world) == ["far"]
    explanation = world.explain()
    verdicts = {one.node_id: one.verdict for one in explanation.candidates}
    assert verdicts["near"] is Verdict.NODE_DRAINED


def test_a_replica_elsewhere_takes_the_place_of_one_that_goes() -> None:
    world = loaded_on_near()
    world.drain("near")
    assert [one.node_id for one in world.runners.values()] == ["near"]
    assert world.route() != []
    world.settle()
    world.pass_time(10)
    world.settle()
    assert nodes_in_use(world) == ["far"]
    assert len(world.route()) == 1
    assert world.noted("node.drained")
    assert [start.is_extra for start in world.all_starts] == [False, True]


def test_without_room_elsewhere_it_ends_all_the_same_and_a_busy_one_first_finishes() -> None:
    world = loaded_on_near()
    world.nodes["far"] = replace(world.nodes["far"], devices=(gpu("g0", free=1, total=1), cpu(free=1, total=1)))
    world.report()
    (placement_id,) = world.runners
    world.work(placement_id, busy=1)
    world.report()
    world.drain("near")
    world.pass_time(20)
    world.settle()
    assert placement_id in world.runners
    assert world.route() == []  # nobody new is sent there
    world.work(placement_id, busy=0)
    world.pass_time(2)
    world.settle()
    assert world.runners == {}


def test_sequences_move_once_slots_elsewhere_are_free() -> None:
    world = loaded_on_near()
    (placement_id,) = world.runners
    world.want("m", replicas_min=2)
    world.pass_time(2)
    world.settle()
    world.want("m", replicas_min=1)
    (other,) = world.runners.keys() - {placement_id}
    world.work(placement_id, busy=2)
    world.work(other, busy=world.runners[other].view.slots_total - 1)
    world.report()
    world.drain("near", budget_s=300)
    world.pass_time(2)
    world.settle()
    assert not world.core.state.stops[placement_id].forced, "one free slot for two sequences"
    world.work(other, busy=0)
    world.pass_time(2)
    world.settle()
    assert nodes_in_use(world) == ["far"]


def test_after_its_budget_nothing_is_waited_for() -> None:
    world = loaded_on_near()
    world.nodes["far"] = replace(world.nodes["far"], devices=(gpu("g0", free=1, total=1), cpu(free=1, total=1)))
    (placement_id,) = world.runners
    world.work(placement_id, busy=1)
    world.report()
    world.drain("near", budget_s=30)
    world.pass_time(29)
    world.settle()
    assert placement_id in world.runners
    world.pass_time(3)
    world.settle()
    assert placement_id not in world.runners


def test_a_load_that_is_only_being_written_down_is_planned_elsewhere() -> None:
    world = two_nodes(room_gib=20)
    world.ensure("c")
    world.measure_all()
    (write,) = [one for one in world.writes if isinstance(one, SaveDesired)]
    assert write.record.node_id == "near"
    world.drain("near")
    world.pass_time(2)
    world.settle()
    assert world.is_ready("c")
    assert nodes_in_use(world) == ["far"]


def test_a_replica_that_uses_what_a_drained_node_lends_goes_too() -> None:
    world = world_with(
        replace(node("near", devices=(gpu("g0", free=12, total=12), cpu(free=3, total=3))), rpc_enabled=True),
        replace(node("far", devices=(gpu("g0", free=12, total=12), cpu(free=3, total=3))), rpc_enabled=True),
        m=16,
    )
    world.ensure("c")
    world.settle()
    assert world.is_ready("c")
    (one,) = world.runners.values()
    (lender,) = {part.node_id for part in one.view.layout.devices if part.node_id}
    world.drain(lender)
    world.pass_time(12)
    world.settle()
    assert world.runners == {}


def test_the_next_leader_keeps_to_it_until_it_is_undone() -> None:
    world = two_nodes(room_gib=20)
    world.drain("near")
    world.lose_leadership()
    world.restart_scheduler()
    world.report()
    world.lead()
    world.ensure("c")
    world.settle()
    assert nodes_in_use(world) == ["far"]
    world.drain("near", drain=False)
    world.ensure("d", "other")
    world.settle()
    assert nodes_in_use(world) == ["far", "near"]


def test_a_store_that_forgot_it_is_told_again_by_the_leader_who_knows() -> None:
    world = two_nodes()
    world.drain("near")
    world.stored_drains.clear()
    world.lead()
    world.writes_done()
    assert world.stored_drains == {"near": NODE_DRAIN_S}


def test_a_start_that_a_former_leader_wrote_is_not_begun_on_a_drained_node() -> None:
    world = two_nodes(room_gib=20)
    world.ensure("c")
    world.measure_all()
    world.writes_done()
    world.starts.clear()  # never arrived
    world.stored_drains["near"] = 60.0
    world.lose_leadership()
    world.restart_scheduler()
    world.report()
    world.lead()
    world.settle()
    assert world.runners == {}
    assert not [one for one in world.store.values() if one.phase is Phase.STARTING]


def test_whoever_asks_hears_what_is_left_or_why_not() -> None:
    world = loaded_on_near()
    world.drain("near")
    assert world.answers["operator"][-1] == AnswerReplicas(caller_id="operator", replicas=1)
    world.drain("nobody")
    (*_, refused) = world.answers["operator"]
    assert isinstance(refused, AnswerFailed)
    assert "nobody" in refused.fault.message
    world.writes.clear()
    world.lose_leadership()
    world.drain("near")
    (*_, refused) = world.answers["operator"]
    assert isinstance(refused, AnswerFailed)
    assert refused.fault.reason == "store_unreachable"


@pytest.mark.parametrize("drain", [True, False])
def test_what_cannot_be_written_down_does_not_count(drain: bool) -> None:
    world = two_nodes()
    if not drain:
        world.drain("near")
    world.send(DrainAsked(caller_id="operator", node_id="near", drain=drain))
    world.writes_fail(Fault(reason="model_unavailable", message="state store unreachable"))
    assert isinstance(world.answers["operator"][-1], AnswerFailed)
    assert ("near" in world.core.state.drains) is not drain


def test_a_leader_that_rises_again_does_not_begin_the_budget_anew() -> None:
    world, placement_id = busy_and_drained_20_s_ago(budget_s=30)
    world.lead()
    world.pass_time(11)
    world.settle()
    assert placement_id not in world.runners


def test_a_drain_that_the_store_forgot_goes_on_where_it_was() -> None:
    world, placement_id = busy_and_drained_20_s_ago(budget_s=30)
    world.stored_drains.clear()
    world.lead()
    world.pass_time(11)
    world.settle()
    assert placement_id not in world.runners


def test_another_budget_counts_from_when_the_drain_began_and_is_no_second_drain() -> None:
    world, placement_id = busy_and_drained_20_s_ago(budget_s=300)
    world.drain("near", budget_s=30)
    assert [note.fields["node"] for note in world.noted("node.drained")] == ["far", "near"]
    world.pass_time(11)
    world.settle()
    assert placement_id not in world.runners
    world.drain("near", drain=False)
    world.drain("near", drain=False)
    assert [note.fields for note in world.noted("node.undrained")][1:] == [{"node": "near"}]


def test_a_node_that_is_gone_can_be_undrained() -> None:
    world = two_nodes()
    world.drain("near")
    world.cut_off.add("near")
    del world.nodes["near"]
    world.pass_time(world.policy.node_lost_s + 1)
    assert world.core.state.node("near") is None
    world.drain("near", drain=False)
    assert world.answers["operator"][-1] == AnswerReplicas(caller_id="operator", replicas=0)
    assert world.core.state.drains == {}
    assert world.stored_drains == {}


def test_a_drain_that_only_a_former_leader_could_write_has_leadership_checked() -> None:
    world = two_nodes()
    world.send(DrainAsked(caller_id="operator", node_id="near", drain=True))
    world.writes_fail(Fault(reason=STALE_FENCE, message="the state store is at fence 9"))
    assert any(isinstance(one, CheckLeadership) for one in world.dropped)


def test_a_load_that_would_borrow_from_a_drained_node_is_planned_without_it() -> None:
    world = world_with(
        replace(node("near", devices=(gpu("g0", free=12, total=12), cpu(free=3, total=3))), rpc_enabled=True),
        replace(node("far", devices=(gpu("g0", free=12, total=12), cpu(free=3, total=3))), rpc_enabled=True),
        m=16,
    )
    world.ensure("c")
    while not (written := [one for one in world.writes if isinstance(one, SaveDesired)]):
        world.measure_all()
    (lender,) = {part.node_id for part in written[0].record.layout.devices if part.node_id}
    asked = DrainAsked(caller_id="operator", node_id=lender, drain=True)
    world.send(asked)
    world.writes.reverse()  # the drain is written first
    world.writes_done()
    assert world.all_starts == []


def test_the_budget_is_over_at_its_moment_also_while_a_replica_elsewhere_is_being_loaded() -> None:
    world = loaded_on_near()
    (placement_id,) = world.runners
    world.work(placement_id, busy=1)
    world.report()
    world.drain("near", budget_s=10)
    assert world.core.state.jobs, "one elsewhere is on its way"
    world.now_s += 9.99
    world.send(TimePassed())
    assert placement_id not in world.core.state.stops
    world.now_s += 0.01
    world.send(TimePassed())
    assert world.core.state.stops[placement_id].forced


def borrowed() -> tuple[World, str, str]:
    """A busy replica over two nodes: its own, and the one that lends to it."""
    world = world_with(
        replace(node("near", devices=(gpu("g0", free=12, total=12), cpu(free=3, total=3))), rpc_enabled=True),
        replace(node("far", devices=(gpu("g0", free=12, total=12), cpu(free=3, total=3))), rpc_enabled=True),
        m=16,
    )
    world.ensure("c")
    world.settle()
    ((placement_id, one),) = world.runners.items()
    world.work(placement_id, busy=1)
    world.report()
    (lender,) = {part.node_id for part in one.view.layout.devices if part.node_id}
    return world, one.node_id, lender


def test_a_replica_on_two_drained_nodes_has_the_shorter_of_their_budgets() -> None:
    world, head, lender = borrowed()
    world.drain(head, budget_s=300)
    world.drain(lender, budget_s=10)
    world.pass_time(11)
    world.settle()
    assert world.runners == {}


def test_whoever_drains_a_lender_hears_of_what_it_lends() -> None:
    world, _, lender = borrowed()
    world.drain(lender)
    assert world.answers["operator"][-1] == AnswerReplicas(caller_id="operator", replicas=1)


def test_what_was_stopped_is_not_stopped_again_before_an_inventory_shows_it() -> None:
    world = loaded_on_near()
    world.nodes["far"] = replace(world.nodes["far"], devices=(gpu("g0", free=1, total=1), cpu(free=1, total=1)))
    world.report()
    world.drain("near")
    world.measure_all()
    world.writes_done()
    world.stops_done()
    world.pass_time(8, reporting=False)
    world.writes_done()
    assert len(world.all_stops) == 1


def test_replicas_that_an_operator_keeps_are_all_there_before_one_goes() -> None:
    world = world_with(*(node(name) for name in "abc"), m=16)
    world.want("m", replicas_min=2)
    world.settle()
    world.report()
    world.settle()
    assert len(world.route()) == 2
    leaving = min(one.node_id for one in world.runners.values())
    world.drain(leaving)
    assert len(world.route()) == 2
    world.settle()
    world.report()
    world.settle()
    assert nodes_in_use(world) == sorted(set("abc") - {leaving})


def test_no_model_is_evicted_for_what_leaves_a_drained_node() -> None:
    world = two_nodes(room_gib=12)
    world.nodes["far"] = replace(world.nodes["far"], models=models("m", "n"))
    world.sizes_gib["digest-n"] = 8
    world.report()
    world.drain("far")
    world.ensure("c", "m")
    world.settle()
    world.drain("far", drain=False)
    world.ensure("d", "n")
    world.settle()
    world.pass_time(20)
    assert nodes_in_use(world) == ["far", "near"]
    world.drain("near")
    world.settle()
    world.pass_time(10)
    world.settle()
    assert len(world.route("n:latest")) == 1
    assert world.route("m:latest") == []


@pytest.mark.parametrize("files", [models("other"), (model(error="wrong magic"),)])
def test_a_replica_whose_file_is_gone_or_broken_is_followed_by_none(files: tuple[ModelFile, ...]) -> None:
    world = loaded_on_near()
    for name in ("near", "far"):
        world.nodes[name] = replace(world.nodes[name], models=files)
    world.report()
    world.drain("near")
    world.settle()
    world.pass_time(10)
    world.settle()
    assert world.runners == {}


def test_a_drain_leaves_loads_on_other_nodes_alone() -> None:
    world = two_nodes(room_gib=20)
    world.ensure("c")
    world.measure_all()
    (written,) = [one for one in world.writes if isinstance(one, SaveDesired)]
    assert written.record.node_id == "near"
    world.send(SaveEnded(save=SaveDrain(fence=1, caller_id="operator", node_id="far", budget_s=60.0)))
    (job,) = world.core.state.jobs.values()
    assert (job.state, job.record) == (LoadState.PLANNED, written.record)
