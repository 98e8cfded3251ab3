"""Placements over several nodes, as the core sees them."""

from dataclasses import replace

import pytest

from common.spec.layout import DeviceLayers, Layout
from scheduler.core.planning.lending import LenderGone, lenders_of, lent_promises, loans_for, loans_of, own_report
from scheduler.core.sizes.ledger import LentTo, Promise, available
from scheduler.core.state.effects import StartRunner
from scheduler.core.state.events import StartFailed
from scheduler.core.state.promises import promises
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import MIB, DeviceBytes, MemoryOrigin, MemoryReport
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import DeviceKind, DeviceView, NodeView, RunnerState
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.world import World, models, world_with

POLICY = Policy()
LAYOUT = Layout(
    devices=(
        DeviceLayers(device_id="gpu-1", layer_count=3, node_id="far"),
        DeviceLayers(device_id="gpu-2", layer_count=2, node_id="far"),
        DeviceLayers(device_id="gpu-1", layer_count=4),
    ),
    context_tokens=1024,
    slots=1,
    batch_tokens=512,
)
BORROWER = LentTo(placement_id="p", model_name="m:latest", node_id="near")
REPORT = MemoryReport(
    origin=MemoryOrigin.MEASURED,
    devices=tuple(
        DeviceBytes(device_id=name, weights_bytes=count * MIB) for name, count in (("x", 3), ("y", 2), ("z", 4))
    ),
    host=DeviceBytes(weights_bytes=MIB),
)


def far(**changes: object) -> NodeView:
    return replace(node(), id="far", address="far:1", rpc_enabled=True, **changes)  # type: ignore[arg-type]


def near() -> NodeView:
    return replace(node(), id="near", tunnel_certificate=b"near")


def test_every_other_node_lends_exactly_what_the_layout_names_there() -> None:
    assert lenders_of(LAYOUT) == ("far",)
    (loan,) = loans_of(LAYOUT, REPORT, {"far": far(), "near": near()})
    assert loan.address == "far:1"
    assert [(part.device_id, part.weights_bytes) for part in loan.planned] == [("gpu-1", 3 * MIB), ("gpu-2", 2 * MIB)]


def test_the_head_is_named_by_its_certificate() -> None:
    loans = loans_for(LAYOUT, REPORT, {"far": far()}, head=near(), reference=("p", 2), command=(7, "leader"))
    assert loans is not None
    assert (loans.borrower_node_id, loans.borrower_certificate) == ("near", b"near")
    assert (loans.placement_id, loans.generation, loans.fence, loans.leader_id) == ("p", 2, 7, "leader")


def test_a_layout_of_one_node_borrows_nothing() -> None:
    alone = replace(LAYOUT, devices=LAYOUT.devices[2:])
    assert loans_for(alone, None, {}, head=near(), reference=("p", 1), command=(1, "x")) is None
    assert own_report(alone, REPORT) is REPORT


@pytest.mark.parametrize("nodes", [{}, {"far": replace(far(), rpc_enabled=False)}])
def test_a_lender_that_is_gone_or_lends_no_more_is_named(nodes: dict[str, NodeView]) -> None:
    with pytest.raises(LenderGone, match="node far lends no devices"):
        loans_of(LAYOUT, REPORT, nodes)


def test_what_is_lent_is_promised_where_it_is() -> None:
    (promise,) = lent_promises(BORROWER, LAYOUT, (REPORT, None), {"far": far()}, POLICY, starting=True)
    assert promise.node_id == "far"
    assert promise.lent_to == BORROWER
    assert promise.device_bytes["gpu-2"] >= 2 * MIB
    assert promise.freed_bytes == {"gpu-1": 3 * MIB, "gpu-2": 2 * MIB}
    mine = own_report(LAYOUT, REPORT)
    assert mine is not None
    assert [part.device_id for part in mine.devices] == ["z"]


def server(number: int = 0) -> DeviceView:
    return replace(gpu(free=24, total=24), id=f"RPC:127.0.0.1:5001/{number}", backend="RPC", kind=DeviceKind.GPU)


def test_a_device_of_an_rpc_server_has_room_for_one_placement() -> None:
    machine = node(devices=(server(0), server(1), cpu()))
    taken = Promise(placement_id="p", node_id=machine.id, device_bytes={server(0).id: MIB}, starting=False)
    for device in (server(0), server(1)):
        assert available(machine, device, [taken], POLICY).available_bytes == 0
        assert available(machine, device, [taken], POLICY, without=frozenset({"p"})).available_bytes > 0
    assert available(machine, server(0), [], POLICY).available_bytes > 0


def cluster() -> World:
    """Three nodes with one GPU of 24 GiB each, and a model of 30 GiB."""
    nodes = [
        replace(node(name, devices=(gpu(), cpu())), rpc_enabled=True, tunnel_certificate=name.encode())
        for name in ("n1", "n2", "n3")
    ]
    world = world_with(*nodes)
    world.sizes_gib["digest-m"] = 30
    world.want("m", require_gpu=True)
    return world


def written_start(world: World) -> StartRunner:
    """The next start, once everything that has to be counted is counted and written."""
    while not world.starts:
        world.measure_all()
        world.writes_done()
    return world.starts[-1]


def test_a_model_that_no_node_holds_is_measured_and_started_with_what_another_lends() -> None:
    world = cluster()
    world.ensure("c")
    joint = [one for one in world.measures if lenders_of(one.layout)]
    world.measure_all()
    start = written_start(world)
    lenders = lenders_of(start.record.layout)
    assert len(lenders) == 1
    assert start.record.node_id not in lenders
    assert start.loans is not None
    assert [loan.node_id for loan in start.loans.loans] == list(lenders)
    assert start.loans.borrower_certificate == start.record.node_id.encode()
    assert all(one.loans is not None for one in joint)
    promised = {promise.node_id for promise in promises(world.core.state)}
    assert promised == {start.record.node_id, *lenders}


@pytest.mark.parametrize("reason", ["model_unavailable", "device_memory_exhausted"])
def test_a_node_that_does_not_lend_is_left_out_of_the_next_plan(reason: str) -> None:
    world = cluster()
    world.ensure("c")
    first = written_start(world)
    world.starts.clear()
    (lender,) = lenders_of(first.record.layout)
    if reason == "device_memory_exhausted":  # somebody else has taken it
        held = world.nodes[lender]
        world.nodes[lender] = replace(held, devices=(gpu(free=2), cpu()))
    world.send(
        StartFailed(
            placement_id=first.record.placement_id,
            generation=first.record.generation,
            fault=Fault(reason=reason, message="no", lender_id=lender),
        )
    )
    world.pass_time(3)
    second = written_start(world)
    assert lender not in (*lenders_of(second.record.layout), second.record.node_id)
    assert world.finals("c") == []


def test_a_node_that_the_borrower_cannot_reach_is_left_out_of_the_next_plan() -> None:
    """It lends, and the scheduler reaches both: only the link between them is cut."""
    world = cluster()
    world.ensure("c")
    first = written_start(world)
    world.hosts_take_starts()
    world.starts.clear()
    (lender,) = lenders_of(first.record.layout)
    text = f"node {lender} does not lend: no route"
    one = world.runners[first.record.placement_id]
    fault = Fault(reason="model_unavailable", message=text, lender_id=lender)
    one.view = replace(one.view, state=RunnerState.ERROR, fault=fault)
    world.tell(first.record.placement_id)
    world.pass_time(3)
    second = written_start(world)
    assert lender not in (*lenders_of(second.record.layout), second.record.node_id)
    assert world.finals("c") == []


def test_a_lender_that_goes_while_loading_leads_to_another_plan() -> None:
    world = cluster()
    world.ensure("c")
    first = written_start(world)
    world.starts.clear()
    (lender,) = lenders_of(first.record.layout)
    del world.nodes[lender]
    world.report()
    lost = Fault(reason="runner_lost", message=f"node {lender} no longer lends the devices that the runner uses")
    world.send(StartFailed(placement_id=first.record.placement_id, generation=first.record.generation, fault=lost))
    world.pass_time(15)
    second = written_start(world)
    assert lender not in (*lenders_of(second.record.layout), second.record.node_id)


def lost_under_idle(world: World) -> StartRunner:
    """A replica over two nodes that idles beside a small one on the third; then its lender dies."""
    world.ensure("c")
    start = written_start(world)
    world.settle()
    world.pass_time(30)
    (lender,) = lenders_of(start.record.layout)
    held = world.nodes[lender]
    world.nodes[lender] = replace(held, devices=(replace(gpu(), usable=False, lost=True), cpu()))
    message = f"node {lender} no longer lends the devices that the runner uses"
    world.crash(start.record.placement_id, Fault(reason="runner_lost", message=message))
    return start


def test_a_lender_that_dies_under_an_idle_replica_ends_the_placement_and_no_other() -> None:
    world = cluster()
    world.sizes_gib["digest-n"] = 1
    world.nodes = {name: replace(one, models=models("m", "n")) for name, one in world.nodes.items()}
    world.report()
    world.ensure("small", "n")
    world.settle()
    beside = world.route("n:latest")
    start = lost_under_idle(world)
    assert world.route() == []
    assert world.route("n:latest") == beside
    assert world.stops == []
    assert world.starts == [], "nobody asked for it"
    assert [note.fields["reason"] for note in world.noted("replica.lost")] == ["runner_lost"]
    assert {promise.placement_id for promise in promises(world.core.state)} == set(beside)
    assert start.record.placement_id in world.core.state.desired


def test_a_replica_that_is_kept_is_placed_anew_without_its_dead_lender() -> None:
    world = cluster()
    world.want("m", require_gpu=True, replicas_min=1)
    world.pass_time(30)
    start = lost_under_idle(world)
    (lender,) = lenders_of(start.record.layout)
    world.pass_time(3)
    second = written_start(world)
    assert lender not in (*lenders_of(second.record.layout), second.record.node_id)
    assert second.record.generation == 2 or second.record.placement_id != start.record.placement_id
    world.settle()
    assert len(world.route()) == 1


def test_explain_names_the_placement_that_a_lent_device_serves() -> None:
    world = cluster()
    world.ensure("c")
    start = written_start(world)
    world.settle()
    (lender,) = lenders_of(start.record.layout)
    shown = [have for one in world.explain().candidates for have in one.available if have.lent_to]
    borrower = LentTo(placement_id=start.record.placement_id, model_name="m:latest", node_id=start.record.node_id)
    assert {(have.node_id, have.device_id, have.lent_to) for have in shown} == {(lender, "gpu-0", (borrower,))}


def test_a_stuck_load_over_nodes_is_stopped_at_its_head_and_stays_promised_where_it_borrows() -> None:
    world = cluster()
    world.ensure("c")
    start = written_start(world)
    (lender,) = lenders_of(start.record.layout)
    world.pass_time(POLICY.load_stall_s + 2)
    world.writes_done()
    assert [stop.address for stop in world.stops] == [f"{start.record.node_id}:1"]
    held = {promise.node_id: promise.device_bytes for promise in promises(world.core.state)}
    assert held[lender]["gpu-0"] > 0
    assert held[start.record.node_id]["gpu-0"] > 0
