"""State that survives a host, and state that does not."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from common.errors import StaleFence
from common.sandbox.confinement import RUNNER_USERS
from common.sandbox.own_users import separation_fault
from protos import cluster_pb2, host_pb2
from runner.host.app import EXIT_FAILED
from tests.integration.host.failing_host import BUG
from tests.integration.host.node import Node, Service, is_alive, pids_below, runners_of, start_discovery
from tests.waiting import Stopwatch

READY = cluster_pb2.RUNNER_STATE_READY
REBOOTED_S_MAX = 10.0


def user_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


async def test_a_runner_survives_its_host_and_the_next_host_adopts_it(node: Node) -> None:
    request = await node.start_request()
    record = await node.run(request)
    await node.host.end(signal.SIGKILL)
    assert is_alive(record.pid)
    await node.inventory(lambda inventory: not inventory.nodes)
    await node.restart_host()
    found = await node.inventory(lambda inventory: any(r.status.state == READY for r in runners_of(inventory)))
    (adopted,) = runners_of(found)
    assert (adopted.pid, adopted.placement, adopted.layout) == (record.pid, record.placement, record.layout)
    again = await node.run(request)
    assert again.pid == record.pid
    await node.stop(request)
    assert not is_alive(record.pid)


async def test_a_host_that_fails_leaves_its_runners_to_the_next_one(node: Node) -> None:
    record = await node.run(await node.start_request())
    await node.host.end(signal.SIGKILL)
    node.host = await Service.start("tests.integration.host.failing_host", "host", environment=node.environment)
    await node.host.event("host.ready")
    assert await node.host.end(signal.SIGUSR1) == EXIT_FAILED
    (failed,) = [event for event in node.host.events if event["event"] == "host.failed"]
    assert BUG in failed["text"]
    assert is_alive(record.pid)
    await node.restart_host()
    found = await node.inventory(lambda inventory: any(r.status.state == READY for r in runners_of(inventory)))
    assert [runner.pid for runner in runners_of(found)] == [record.pid]


async def test_a_node_that_reboots_is_back_in_seconds_without_what_ran_there(node: Node) -> None:
    request = await node.start_request()
    record = await node.run(request)
    await node.host.end(signal.SIGKILL)
    os.kill(record.pid, signal.SIGKILL)
    # After a reboot another process may have the id of the runner.
    note = node.runner_files / f"{request.placement.placement_id}.json"
    bystander = await asyncio.create_subprocess_exec("sleep", "600")
    note.write_text(note.read_text().replace(str(record.pid), str(bystander.pid)))
    assert str(bystander.pid) in note.read_text()
    try:
        watch = Stopwatch()
        await node.restart_host()
        found = await node.inventory(lambda inventory: bool(inventory.nodes) and bool(inventory.nodes[0].models))
        back_s = watch.wall_s
        assert runners_of(found) == []
        assert list(node.runner_files.iterdir()) == []
        stale = host_pb2.StopRequest(fence=host_pb2.Fence(number=9, leader_id="old"), placement=request.placement)
        with pytest.raises(StaleFence):
            await node.client.stop(node.address, stale)
        assert (await node.run(request)).status.state == READY
        assert bystander.returncode is None
        assert not [event for event in node.host.events if event["event"].startswith(("pull.", "fetch."))]
    finally:
        bystander.kill()
        await bystander.wait()
    watch.assert_within(REBOOTED_S_MAX, "the node is back", took_s=back_s)


async def test_the_end_of_an_adopted_runner_is_noticed(node: Node) -> None:
    record = await node.run(await node.start_request())
    await node.host.end(signal.SIGKILL)
    await node.restart_host()
    await node.inventory(lambda inventory: any(r.status.state == READY for r in runners_of(inventory)))
    os.kill(record.pid, signal.SIGKILL)
    error = cluster_pb2.RUNNER_STATE_ERROR
    found = await node.inventory(lambda inventory: any(r.status.state == error for r in runners_of(inventory)))
    assert not runners_of(found)[0].status.error.HasField("exit_code")


async def test_a_spawn_that_its_host_did_not_live_to_note_is_ended_by_the_next_one(node: Node) -> None:
    request = await node.start_request()
    record = await node.run(request)
    # The next host has the same rights to it.
    assert user_of(record.pid) == (os.geteuid() if separation_fault() else RUNNER_USERS[record.pid])
    await node.host.end(signal.SIGKILL)
    (node.runner_files / f"{request.placement.placement_id}.json").unlink()
    await node.restart_host()
    assert (await node.host.event("runner.orphan_killed"))["pid"] == record.pid
    again = await node.run(request)
    assert again.status.state == READY
    assert not is_alive(record.pid)


async def test_a_stale_fence_is_refused_also_after_a_restart(node: Node) -> None:
    request = await node.start_request()
    await node.run(request)
    stale = host_pb2.StopRequest(fence=host_pb2.Fence(number=9, leader_id="old"), placement=request.placement)
    with pytest.raises(StaleFence):
        await node.client.stop(node.address, stale)
    await node.host.end(signal.SIGKILL)
    await node.restart_host()
    with pytest.raises(StaleFence):
        await node.client.stop(node.address, stale)
    same_number = host_pb2.StopRequest(fence=host_pb2.Fence(number=10, leader_id="other"), placement=request.placement)
    with pytest.raises(StaleFence):
        await node.client.stop(node.address, same_number)
    await node.stop(request)


async def test_an_orderly_end_stops_every_runner_and_leaves_no_socket(node: Node) -> None:
    first = await node.run(await node.start_request())
    second = await node.run(await node.start_request())
    assert await node.host.end() == 0
    assert not is_alive(first.pid)
    assert not is_alive(second.pid)
    assert list(node.runner_files.iterdir()) == []
    await node.inventory(lambda inventory: not inventory.nodes)


async def test_a_second_host_in_the_same_directory_says_so_in_one_line(node: Node) -> None:
    second = await Service.start("runner", "host", environment={**node.environment, "PUNA_NODE_LISTEN": "127.0.0.1:0"})
    assert await second.process.wait() == 1
    await second.end()
    (line,) = second.plain
    assert f"another host already runs in {node.home}" in line


async def test_a_node_leaves_the_inventory_with_its_host_and_comes_back_with_discovery(
    node: Node, tmp_path: Path
) -> None:
    await node.inventory(lambda inventory: bool(inventory.nodes))
    await node.discovery.end()
    node.discovery = await start_discovery(tmp_path / "d", node.discovery_address)
    found = await node.inventory(lambda inventory: bool(inventory.nodes))
    assert found.nodes[0].models[0].name == "dense:latest"
    watch = Stopwatch()
    await node.host.end(signal.SIGKILL)
    await node.inventory(lambda inventory: not inventory.nodes)
    took_s = watch.wall_s
    assert pids_below(node.home) == []
    watch.assert_within(1.5, "the node leaves the inventory", took_s=took_s)


async def test_a_newer_host_process_of_the_same_node_replaces_the_older_one(node: Node, tmp_path: Path) -> None:
    await node.inventory(lambda inventory: bool(inventory.nodes))
    node_id = (node.home / "node-id").read_text()
    other = {**node.environment, "PUNA_HOME": str(tmp_path / "other"), "PUNA_NODE_ID": node_id}
    newer = await Service.start("runner", "host", environment=other)
    try:
        address = (await newer.event("host.ready"))["address"]
        await node.inventory(lambda inventory: bool(inventory.nodes) and inventory.nodes[0].address == address)
        assert await node.host.process.wait() == 1
    finally:
        await newer.end()
