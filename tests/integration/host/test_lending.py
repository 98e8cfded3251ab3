"""Devices of one node under a runner of another: two real hosts, the real engine, the real tunnel."""

import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from common.errors import DeviceMemoryExhausted, ModelUnavailable, NotSupported, PlacementMismatch, StaleFence
from common.grpc.client import open_channel
from protos import cluster_pb2, discovery_pb2, discovery_pb2_grpc, host_pb2
from runner.client import RunnerClient
from tests.integration.host.lending_nodes import Pair, new_placement, over_both, running_pair
from tests.integration.host.node import Inventory, Node, is_alive, pids_below, runners_of, running_node
from tests.integration.runner.processes import collect, greedy
from tests.limited_device import limited_device
from tests.ports import free_port
from tests.waiting import until

PROMPT = "The quick brown fox"
SERVING = (cluster_pb2.RUNNER_STATE_READY, cluster_pb2.RUNNER_STATE_NO_SLOTS)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_pair(tmp_path_factory: pytest.TempPathFactory, models_directory: Path) -> AsyncIterator[Pair]:
    """Both hosts with the model "dense:latest"."""
    async with running_pair(tmp_path_factory.mktemp("p"), models_directory) as pair:
        yield pair


@pytest_asyncio.fixture(loop_scope="module")
async def pair(shared_pair: Pair) -> AsyncIterator[Pair]:
    """Nothing is started or lent there."""
    yield shared_pair
    await shared_pair.clear()
    assert lender_pids(shared_pair.lender) == pids_below(shared_pair.head.home) == []


async def answer(record: cluster_pb2.RunnerRecord) -> list[int]:
    """The tokens that the runner says first, greedily."""
    assert record.status.state in SERVING, record
    async with RunnerClient(record.address) as client:
        said = await collect(client, greedy(PROMPT, max_tokens=24))
    return [token.id for token in said.tokens]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def lender_pids(node: Node) -> list[int]:
    """Processes that lend devices of the node: children in rpc mode of its host or of the host's zygote."""
    found = []
    host = node.host.process.pid
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                parent = parent_of(int(entry.name))
                is_ours = b"rpc" in words and host in (parent, parent_of(parent))
            except OSError:
                continue
            if is_ours:
                found.append(int(entry.name))
    return found


async def start_over_both(pair: Pair, *, layers: int = 3) -> tuple[host_pb2.StartRequest, cluster_pb2.RunnerRecord]:
    placement = new_placement()
    peer = await pair.lend(placement)
    request = await pair.head.start_request(placement=placement, layout=over_both(layers), peers=[peer])
    return request, await pair.head.run(request)


async def test_a_model_over_two_nodes_answers_as_on_one(pair: Pair) -> None:
    alone = await pair.head.run(await pair.head.start_request())
    _, joined = await start_over_both(pair)
    assert await answer(joined) == await answer(alone)
    lent = joined.status.memory.devices[0]
    assert (lent.node_id, lent.device_id) == ("lender", "cpu")
    assert lent.weights_bytes > 0
    assert lent.cache_bytes > 0


@pytest.mark.behaviour("B-137")
async def test_a_node_tells_who_holds_its_devices_until_the_process_is_gone(pair: Pair) -> None:
    def holder(seen: Inventory) -> cluster_pb2.DeviceHolder | None:
        (node,) = seen.nodes
        (cpu,) = [device for device in node.devices if device.id == "cpu"]
        return next((one for one in cpu.holders if one.placement_id == placement_id), None)

    request, _ = await start_over_both(pair)
    placement_id = request.placement.placement_id
    told = holder(await pair.lender.inventory(lambda seen: (one := holder(seen)) is not None and one.held_bytes > 0))
    assert told is not None
    assert not told.listed, "no driver lists what is in RAM"
    (pid,) = lender_pids(pair.lender)
    await pair.head.stop(request)
    await pair.lender.inventory(lambda seen: holder(seen) is None)
    assert not is_alive(pid)


async def test_what_is_measured_over_the_tunnel_is_what_is_allocated(pair: Pair) -> None:
    placement = new_placement()
    peer = await pair.lend(placement)
    request = await pair.head.start_request(placement=placement, layout=over_both(3), peers=[peer])
    measured = await pair.head.client.measure(
        pair.head.address, model_digest=request.model_digest, layout=request.layout, peers=[peer]
    )
    record = await pair.head.run(request)
    (counted,), (held,) = measured.devices, record.status.memory.devices
    assert counted.node_id == "lender"
    assert counted.weights_bytes == held.weights_bytes
    assert counted.cache_bytes == held.cache_bytes
    assert abs(counted.graph_bytes - held.graph_bytes) <= 4 * 1024 * 1024


async def test_a_server_that_cannot_be_started_lends_nothing(pair: Pair) -> None:
    logs = pair.lender.home / "logs"
    logs.rename(logs.with_name("moved"))
    logs.touch()  # no log of the server can be opened below it
    with pytest.raises(ModelUnavailable, match="cannot start a runner"):
        await pair.lend(new_placement())
    logs.unlink()
    logs.with_name("moved").rename(logs)
    await pair.lend(new_placement())


async def test_a_lender_that_cannot_be_reached_is_named(pair: Pair) -> None:
    placement = new_placement()
    peer = await pair.lend(placement)
    peer.tunnel_address = f"127.0.0.1:{free_port()}"
    request = await pair.head.start_request(placement=placement, layout=over_both(3), peers=[peer])
    failed = (await pair.head.run(request)).status
    assert (failed.state, failed.error.lender_id) == (cluster_pb2.RUNNER_STATE_ERROR, "lender")
    assert failed.error.message.startswith("node lender does not lend: ")


async def test_a_lender_that_dies_ends_the_runner_that_uses_it_and_no_other(pair: Pair) -> None:
    alone = await pair.head.run(await pair.head.start_request())
    _, joined = await start_over_both(pair)
    (pid,) = lender_pids(pair.lender)
    os.kill(pid, signal.SIGKILL)

    def has_ended(inventory: Inventory) -> bool:
        states = {one.placement.placement_id: one.status for one in runners_of(inventory)}
        gone = states.get(joined.placement.placement_id)
        return gone is not None and gone.state == cluster_pb2.RUNNER_STATE_ERROR

    seen = await pair.head.inventory(has_ended)
    lost = next(one for one in runners_of(seen) if one.placement.placement_id == joined.placement.placement_id)
    assert lost.status.error.reason == "runner_lost"
    assert "node lender no longer lends" in lost.status.error.message
    assert await answer(alone)


async def remove(node: Node, removed: str) -> None:
    """Have the discovery of a node tell it that another one is removed, as the scheduler does."""
    row = discovery_pb2.Revocation(node_id=removed, issued_before_unix_ms=round(time.time() * 1000))
    async with open_channel(node.discovery_address) as channel:
        await discovery_pb2_grpc.DiscoveryStub(channel).Revoke(discovery_pb2.RevokeRequest(revocations=[row]))


@pytest.mark.parametrize("removed", ["head", "lender"])
async def test_nothing_is_lent_to_a_removed_node_or_borrowed_from_one(
    removed: str, tmp_path: Path, models_directory: Path
) -> None:
    async with running_pair(tmp_path, models_directory) as pair:
        _, joined = await start_over_both(pair)
        (pid,) = lender_pids(pair.lender)
        await remove(pair.lender if removed == "head" else pair.head, removed)
        await until(lambda: not is_alive(joined.pid), what="the runner is gone")
        await until(lambda: not is_alive(pid), what="the lending process is gone")


async def test_a_stop_of_the_runner_gives_the_devices_back(pair: Pair) -> None:
    request, _ = await start_over_both(pair)
    (pid,) = lender_pids(pair.lender)
    await pair.head.stop(request)
    await until(lambda: not is_alive(pid), what="the lending process is gone")


async def test_a_stop_at_the_lender_gives_the_devices_back_before_it_returns(pair: Pair) -> None:
    placement = new_placement()
    await pair.lend(placement)
    (pid,) = lender_pids(pair.lender)
    await pair.lender.client.stop(
        pair.lender.address, host_pb2.StopRequest(fence=pair.lender.fence, placement=placement)
    )
    assert not is_alive(pid)


async def test_the_same_lend_again_is_the_same_lease_and_other_devices_replace_it(pair: Pair) -> None:
    placement = new_placement()
    first, again = await pair.lend(placement), await pair.lend(placement)
    assert first == again
    (pid,) = lender_pids(pair.lender)
    more = host_pb2.LentShare(planned=cluster_pb2.DeviceMemory(device_id="cpu", weights_bytes=2_000_000))
    await pair.lend(placement, devices=[more])
    (other,) = lender_pids(pair.lender)
    assert pid != other
    older = cluster_pb2.PlacementRef(placement_id=placement.placement_id, generation=2)
    await pair.lend(older)
    with pytest.raises(PlacementMismatch):
        await pair.lend(placement)


async def test_a_lend_is_refused_to_old_leaders_and_beyond_what_is_free(pair: Pair) -> None:
    huge = host_pb2.LentShare(planned=cluster_pb2.DeviceMemory(device_id="cpu", weights_bytes=1 << 50))
    with pytest.raises(DeviceMemoryExhausted, match="device cpu has"):
        await pair.lend(new_placement(), devices=[huge])
    unknown = host_pb2.LentShare(planned=cluster_pb2.DeviceMemory(device_id="gpu-7", weights_bytes=1))
    with pytest.raises(DeviceMemoryExhausted, match="device gpu-7 has 0 bytes"):
        await pair.lend(new_placement(), devices=[unknown])
    with pytest.raises(StaleFence):
        await pair.lend(new_placement(), fence=host_pb2.Fence(number=3, leader_id="old"))


async def test_a_cap_is_a_cap(pair: Pair) -> None:
    placement = new_placement()
    planned = cluster_pb2.DeviceMemory(device_id="cpu", weights_bytes=1000)
    peer = await pair.lend(placement, devices=[host_pb2.LentShare(planned=planned, max_bytes=100_000)])
    request = await pair.head.start_request(placement=placement, layout=over_both(3), peers=[peer])
    record = await pair.head.run(request)
    assert record.status.state == cluster_pb2.RUNNER_STATE_ERROR
    assert record.status.error.reason in ("insufficient_memory", "device_memory_exhausted"), record.status.error


async def test_a_device_of_an_rpc_server_is_lent_by_that_server_to_one_runner(
    tmp_path: Path, models_directory: Path
) -> None:
    with limited_device(mib=256) as device:
        async with running_pair(tmp_path, models_directory, rpc_devices=device.address) as pair:
            await pair.lender.inventory(lambda seen: device.id in _usable_ids(seen))
            share = host_pb2.LentShare(planned=cluster_pb2.DeviceMemory(device_id=device.id, weights_bytes=1_000_000))
            placement = new_placement()
            peer = await pair.lend(placement, devices=[share])
            layout = over_both(3, device.id)
            request = await pair.head.start_request(placement=placement, layout=layout, peers=[peer])
            record = await pair.head.run(request)
            assert await answer(record)
            assert lender_pids(pair.lender) == []
            assert device.used_bytes() == sum(
                getattr(record.status.memory.devices[0], f"{name}_bytes") for name in ("weights", "cache", "graph")
            )
            with pytest.raises(DeviceMemoryExhausted, match="serve another runner"):
                await pair.lend(new_placement(), devices=[share])
            await pair.head.stop(request)
            await until(lambda: device.used_bytes() == 0, what="the device is free")


async def test_an_rpc_server_that_dies_under_an_idle_runner_ends_it_at_once_and_is_doubted(
    tmp_path: Path, models_directory: Path
) -> None:
    with limited_device(mib=256) as device, limited_device(mib=256) as other:
        async with running_pair(tmp_path, models_directory, rpc_devices=f"{device.address},{other.address}") as pair:
            await pair.lender.inventory(lambda seen: {device.id, other.id} <= _usable_ids(seen))
            started = {}
            for one in (device, other):
                share = host_pb2.LentShare(planned=cluster_pb2.DeviceMemory(device_id=one.id, weights_bytes=1_000_000))
                placement = new_placement()
                peer = await pair.lend(placement, devices=[share])
                request = await pair.head.start_request(placement=placement, layout=over_both(3, one.id), peers=[peer])
                started[one.id] = await pair.head.run(request)
            said = {device_id: await answer(record) for device_id, record in started.items()}
            device.kill()  # and nobody asks anything

            def states(inventory: Inventory) -> dict[str, cluster_pb2.RunnerStatus]:
                return {one.placement.placement_id: one.status for one in runners_of(inventory)}

            lost_id = started[device.id].placement.placement_id
            seen = await pair.head.inventory(
                lambda seen: lost_id in states(seen) and states(seen)[lost_id].state == cluster_pb2.RUNNER_STATE_ERROR
            )
            assert states(seen)[lost_id].error.reason == "runner_lost"
            assert "node lender no longer lends" in states(seen)[lost_id].error.message
            await pair.lender.inventory(lambda seen: device.id not in _usable_ids(seen))
            assert await answer(started[other.id]) == said[other.id]


def _usable_ids(inventory: Inventory) -> set[str]:
    usable = cluster_pb2.DEVICE_STATE_OK
    return {device.id for node in inventory.nodes for device in node.devices if device.state == usable}


async def test_a_start_without_its_lender_fails_with_the_reason(pair: Pair) -> None:
    placement = new_placement()
    peer = await pair.lend(placement)
    await pair.lender.client.stop(
        pair.lender.address, host_pb2.StopRequest(fence=pair.lender.fence, placement=placement)
    )
    record = await pair.head.run(await pair.head.start_request(placement=placement, layout=over_both(3), peers=[peer]))
    assert record.status.error.reason == ModelUnavailable.reason
    assert "node lender does not lend" in record.status.error.message


async def test_a_host_that_dies_leaves_no_lending_process(pair: Pair) -> None:
    _, joined = await start_over_both(pair)
    (pid,) = lender_pids(pair.lender)
    await pair.lender.host.end(signal.SIGKILL)
    await until(lambda: not is_alive(pid), what="the lending process is gone")

    def has_ended(inventory: Inventory) -> bool:
        ended = (one for one in runners_of(inventory) if one.status.state == cluster_pb2.RUNNER_STATE_ERROR)
        return joined.placement.placement_id in {one.placement.placement_id for one in ended}

    await pair.head.inventory(has_ended)
    assert pids_below(pair.head.home) == []
    await pair.lender.restart_host()
    _, again = await start_over_both(pair)
    assert await answer(again)


async def test_nothing_is_lent_unless_the_operator_says_so(tmp_path: Path, models_directory: Path) -> None:
    async with running_node(tmp_path, models_directory) as node:
        inventory = await node.inventory(lambda seen: bool(seen.nodes))
        assert not inventory.nodes[0].rpc_enabled
        assert not inventory.nodes[0].tunnel_certificate
        with pytest.raises(NotSupported, match="PUNA_RPC=1"):
            await node.client.lend(node.address, host_pb2.LendRequest())
