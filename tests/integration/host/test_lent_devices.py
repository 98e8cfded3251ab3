"""Devices that RPC servers of the machine lend to a node: real servers with real limits, a real host, a real engine."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from common.errors import DeviceMemoryExhausted, DeviceNotFound, ModelUnavailable, StaleFence
from protos import cluster_pb2, host_pb2
from runner.ram import read_host_memory
from tests.integration.host.node import SMALL, Inventory, Node, environment_of, running_node
from tests.limited_device import ROOT, LimitedDevice, limited_device
from tests.waiting import Stopwatch, until

MIB = 1024 * 1024
LIMIT_MIB = 64
RAM_MIB = read_host_memory().total_bytes // MIB
OK, LOST = cluster_pb2.DEVICE_STATE_OK, cluster_pb2.DEVICE_STATE_LOST
READY, ERROR = cluster_pb2.RUNNER_STATE_READY, cluster_pb2.RUNNER_STATE_ERROR


@pytest.fixture
def device() -> Iterator[LimitedDevice]:
    with limited_device(mib=LIMIT_MIB) as lent:
        yield lent


@pytest.fixture
async def node(tmp_path: Path, models_directory: Path, device: LimitedDevice) -> AsyncIterator[Node]:
    async with running_node(tmp_path, models_directory, PUNA_RPC_DEVICES=device.address) as node:
        yield node


async def metrics_page(address: str) -> str:
    async with httpx.AsyncClient(timeout=60) as client:
        return (await client.get(f"http://{address}/metrics")).text


def figure(page: str, name: str, device: LimitedDevice, *labels: str) -> float:
    """The one sample of a metric with these labels."""
    parts = (f'device="{device.id}"', *labels)
    lines = [line for line in page.splitlines() if line.startswith(name + "{") and all(part in line for part in parts)]
    (line,) = lines
    return float(line.rsplit(" ", 1)[1])


def find(inventory: Inventory, device_id: str) -> cluster_pb2.Device:
    devices = (device for node in inventory.nodes for device in node.devices)
    return next((device for device in devices if device.id == device_id), cluster_pb2.Device())


async def seen(node: Node, device: LimitedDevice, state: "cluster_pb2.DeviceState.ValueType") -> cluster_pb2.Device:
    return find(await node.inventory(lambda inventory: find(inventory, device.id).state == state), device.id)


def on(device: LimitedDevice, layers: int = 99) -> cluster_pb2.Layout:
    layout = cluster_pb2.Layout()
    layout.CopyFrom(SMALL)
    layout.devices.add(device_id=device.id, layer_count=layers)
    return layout


async def layout_on(node: Node, device: LimitedDevice) -> cluster_pb2.Layout:
    return on(device, (await node.model("dense:latest")).description.layer_count + 1)


@pytest.mark.behaviour("B-130", "B-131")
async def test_a_lent_device_has_computed_and_tells_its_own_limit(node: Node, device: LimitedDevice) -> None:
    told = await seen(node, device, OK)
    assert (told.total_bytes, told.free_bytes) == (LIMIT_MIB * MIB, LIMIT_MIB * MIB)
    assert (told.free_source, told.trust) == ("rpc", cluster_pb2.TRUST_MEASURED)
    assert (told.pool_id, told.backing_pool_id, told.id_stable) == (f"RPC:{device.address}", "host", False)
    assert told.speed_bytes_s > 0
    assert device.used_bytes() == 0  # the test gave back what it took
    page = await metrics_page((await node.host.event("host.ready"))["metrics_address"])
    assert figure(page, "puna_host_device_free_bytes", device, 'source="rpc"', 'trust="measured"') == LIMIT_MIB * MIB
    assert figure(page, "puna_host_device_state", device, 'state="ok"') == 1
    assert figure(page, "puna_host_device_state", device, 'state="lost"') == 0
    page = await metrics_page((await node.discovery.event("discovery.ready"))["metrics_address"])
    assert figure(page, "puna_discovery_device_total_bytes", device, "node=") == LIMIT_MIB * MIB
    assert 0 <= figure(page, "puna_discovery_device_free_age_seconds", device) < 60


@pytest.mark.behaviour("B-131")
async def test_what_others_take_there_is_missing_within_two_seconds(node: Node, device: LimitedDevice) -> None:
    await seen(node, device, OK)
    watch = Stopwatch()
    device.take(leave_bytes=MIB)
    await node.inventory(lambda inventory: find(inventory, device.id).free_bytes == MIB)
    took_s = watch.wall_s
    device.give_back()
    await node.inventory(lambda inventory: find(inventory, device.id).free_bytes == LIMIT_MIB * MIB)
    watch.assert_within(2.5, "the memory of others is missing", took_s=took_s)


@pytest.mark.behaviour("B-131")
async def test_a_runner_uses_it_and_nobody_asks_it_meanwhile(node: Node, device: LimitedDevice) -> None:
    layout = await layout_on(node, device)
    digest = (await node.model("dense:latest")).digest
    planned = await node.client.measure(node.address, model_digest=digest, layout=layout)
    assert planned.devices[0].device_id == device.id
    request = await node.start_request(layout=layout, planned=planned)
    record = await node.run(request)
    assert record.status.state == READY
    held = device.used_bytes()
    assert held > 0

    def is_told(inventory: Inventory) -> bool:
        told = find(inventory, device.id)  # while it was measured, it was in use and nothing was promised
        return told.free_source == "promised" and told.free_bytes < told.total_bytes

    told = find(await node.inventory(is_told), device.id)
    assert (told.trust, told.state) == (cluster_pb2.TRUST_PREDICTED, OK)
    assert 0 <= held - (told.total_bytes - told.free_bytes) <= MIB
    # A second client would wait without an end, so it is refused at once.
    other = cluster_pb2.Layout()
    other.CopyFrom(layout)
    other.context_tokens *= 2
    with pytest.raises(ModelUnavailable, match="serves a runner"):
        await node.client.measure(node.address, model_digest=digest, layout=other)
    await node.stop(request)
    back = find(await node.inventory(lambda inventory: find(inventory, device.id).free_source == "rpc"), device.id)
    assert back.free_bytes == LIMIT_MIB * MIB


@pytest.mark.behaviour("B-130")
async def test_a_server_that_dies_is_lost_and_one_that_comes_back_is_tested_first(
    node: Node, device: LimitedDevice
) -> None:
    await seen(node, device, OK)
    watch = Stopwatch()
    device.kill()
    lost = await seen(node, device, LOST)
    took_s = watch.wall_s
    assert device.address in lost.state_reason
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.limited_device", "--port", str(device.port), "--mib", "32"), cwd=ROOT
    )
    try:
        back = await seen(node, device, OK)
        assert back.total_bytes == 32 * MIB
        states = [event["state"] for event in node.host.events if event.get("event") == "device.state"]
        assert "lost" in states
        assert all(before == "unchecked" for before, state in zip(["", *states], states, strict=False) if state == "ok")
    finally:
        server.kill()
        await server.wait()
    watch.assert_within(5, "the device is lost", took_s=took_s)


@pytest.mark.behaviour("B-130")
async def test_a_server_that_takes_connections_and_never_answers_is_left_out_and_holds_nobody_up(
    tmp_path: Path, models_directory: Path, device: LimitedDevice
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, limited_device(mib=RAM_MIB) as whole:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        async with running_node(
            tmp_path, models_directory, PUNA_RPC_DEVICES=f"{address},{device.address},{whole.address}"
        ) as node:
            assert (await seen(node, device, OK)).total_bytes
            dead = find(await node.inventory(lambda inventory: bool(inventory.nodes)), f"RPC:{address}/0")
            assert dead.state == LOST
            assert "has not answered yet" in dead.state_reason
            # One that lends all of this machine's RAM is RAM, and not added to it.
            lent_ram = await seen(node, whole, OK)
            assert (lent_ram.pool_id, lent_ram.backing_pool_id) == ("host", "")
            cpu = find(await node.inventory(lambda inventory: bool(inventory.nodes)), "cpu")
            assert (lent_ram.total_bytes, lent_ram.free_source) == (cpu.total_bytes, cpu.free_source)


@pytest.mark.behaviour("B-131")
async def test_a_host_that_comes_back_neither_asks_nor_forgets_a_device_that_its_runner_is_on(
    node: Node, device: LimitedDevice
) -> None:
    layout = await layout_on(node, device)
    await node.run(await node.start_request(layout=layout))
    node.host.process.kill()
    await node.host.end()
    await node.restart_host()
    found = await node.inventory(
        lambda inventory: any(runner.status.state == READY for one in inventory.nodes for runner in one.runners)
    )
    told = find(found, device.id)
    assert (told.state, told.free_source) == (OK, "promised")
    assert told.total_bytes == LIMIT_MIB * MIB
    assert told.free_bytes < told.total_bytes


async def test_a_limit_of_the_operator_holds_over_all_placements(
    tmp_path: Path, models_directory: Path, device: LimitedDevice
) -> None:
    settings = {
        "PUNA_RPC_DEVICES": device.address,
        "PUNA_DEVICE_MAX_BYTES": f"{device.id}=1MiB",
        "PUNA_DEVICE_OVERHEAD": "50%",
    }
    async with running_node(tmp_path, models_directory, **settings) as node:
        told = await seen(node, device, OK)
        assert (told.max_bytes, told.overhead_bytes) == (MIB, LIMIT_MIB * MIB // 2)
        planned = cluster_pb2.MemoryReport(
            devices=[cluster_pb2.DeviceMemory(device_id=device.id, weights_bytes=2 * MIB)]
        )
        with pytest.raises(DeviceMemoryExhausted, match="PUNA_DEVICE_MAX_BYTES"):
            await node.run(await node.start_request(layout=await layout_on(node, device), planned=planned))
        planned.devices[0].weights_bytes = 33 * MIB
        with pytest.raises(DeviceMemoryExhausted, match="bytes free"):
            await node.run(await node.start_request(layout=await layout_on(node, device), planned=planned))


@pytest.mark.behaviour("B-132")
async def test_what_is_set_for_a_device_reaches_the_runners_on_it_alone(
    tmp_path: Path, models_directory: Path, device: LimitedDevice
) -> None:
    settings = {
        "PUNA_RPC_DEVICES": device.address,
        "PUNA_DEVICE_ENV": f'{{"{device.id}": {{"SOME_WORKAROUND": "1"}}}}',
    }
    async with running_node(tmp_path, models_directory, **settings) as node:
        await seen(node, device, OK)
        lent = await node.run(await node.start_request(layout=await layout_on(node, device)))
        plain = await node.run(await node.start_request())
        assert "SOME_WORKAROUND" in environment_of(lent.pid)
        assert "SOME_WORKAROUND" not in environment_of(plain.pid)


@pytest.mark.behaviour("B-130")
async def test_an_operator_may_have_a_device_tested_again(node: Node, device: LimitedDevice) -> None:
    await seen(node, device, OK)
    request = host_pb2.ResetDeviceRequest(fence=node.fence, device_id=device.id)
    told = await node.client.reset_device(node.address, request)
    assert told.state == OK
    with pytest.raises(DeviceNotFound, match="GPU-none"):
        await node.client.reset_device(
            node.address, host_pb2.ResetDeviceRequest(fence=node.fence, device_id="GPU-none")
        )
    older = host_pb2.Fence(number=1, leader_id="old")
    with pytest.raises(StaleFence):
        await node.client.reset_device(node.address, host_pb2.ResetDeviceRequest(fence=older, device_id=device.id))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PUNA_RPC_DEVICES", "10.0.0.1:5000"),
        ("PUNA_RPC_DEVICES", "nonsense"),
        ("PUNA_DEVICE_OVERHEAD", "lots"),
        ("PUNA_DEVICE_MAX_BYTES", "GPU-1=1X"),
        ("PUNA_DEVICE_ENV", "{"),
        ("PUNA_INTEGRATED_GPUS", "maybe"),
    ],
)
async def test_a_setting_that_makes_no_sense_stops_the_start(tmp_path: Path, name: str, value: str) -> None:
    host = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "runner", "host"),
        cwd=ROOT,
        env={"PATH": "/usr/bin", "PUNA_HOME": str(tmp_path), name: value},
        stderr=asyncio.subprocess.PIPE,
    )
    _, text = await asyncio.wait_for(host.communicate(), 120)
    assert host.returncode == 1
    assert name in text.decode()


async def test_what_the_user_hides_from_the_engine_is_told_once(tmp_path: Path, models_directory: Path) -> None:
    async with running_node(tmp_path, models_directory, CUDA_VISIBLE_DEVICES="0") as node:
        events = [event for event in node.host.events if event.get("event") == "devices.limited_by_environment"]
        assert [event["CUDA_VISIBLE_DEVICES"] for event in events] == ["0"]
        assert events[0]["level"] == "warning"
    await until(lambda: node.host.process.returncode is not None, what="the host has ended")


@pytest.mark.behaviour("B-130")
async def test_a_server_that_dies_under_a_runner_is_lost_before_anybody_is_sent_there_again(
    node: Node, device: LimitedDevice
) -> None:
    layout = await layout_on(node, device)
    record = await node.run(await node.start_request(layout=layout))
    device.kill()
    watch = Stopwatch()
    os.kill(record.pid, signal.SIGABRT)  # as the engine does at the next request
    await seen(node, device, LOST)
    took_s = watch.wall_s
    planned = cluster_pb2.MemoryReport(devices=[cluster_pb2.DeviceMemory(device_id=device.id, weights_bytes=1)])
    with pytest.raises(DeviceMemoryExhausted, match="0 bytes free"):
        await node.run(await node.start_request(layout=layout, planned=planned))
    watch.assert_within(3, "the device is lost", took_s=took_s)


@pytest.mark.behaviour("B-130")
async def test_a_server_that_dies_under_an_idle_runner_ends_it_at_once_and_nobody_has_to_ask(
    node: Node, device: LimitedDevice
) -> None:
    record = await node.run(await node.start_request(layout=await layout_on(node, device)))
    bystander = await node.run(await node.start_request())
    assert record.status.state == READY
    device.kill()
    watch = Stopwatch()
    found = await node.inventory(
        lambda inventory: any(runner.status.state == ERROR for one in inventory.nodes for runner in one.runners)
    )
    took_s = watch.wall_s
    (runners,) = [one.runners for one in found.nodes]
    ended = {one.placement.placement_id: one.status for one in runners}
    error = ended[record.placement.placement_id].error
    assert error.reason == "runner_lost"
    assert f"RPC server {device.address}" in error.message
    assert ended[bystander.placement.placement_id].state == READY
    await seen(node, device, LOST)
    watch.assert_within(10, "the runner has ended", took_s=took_s)
