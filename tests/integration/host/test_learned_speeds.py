"""Decode steps of a real runner give the speed of their device, and it outlives the host."""

import math
from pathlib import Path

import httpx

from protos import cluster_pb2, discovery_pb2
from runner.client import RunnerClient
from runner.core.devices.decode_speeds import DEVICE_BYTES_MIN, READ_S_MIN
from tests.integration.host.node import runners_of, running_node
from tests.integration.runner.processes import greedy
from tools.model_zoo import build
from tools.model_zoo.recipe import Family, Recipe, WeightType

LAYER_BYTES = 60 * 2**20
LAYOUT = cluster_pb2.Layout(context_tokens=512, slots=1, batch_tokens=64)
TOKENS = 40
# A figure of another unit is off by a thousand.
SAME_ORDER = 10


def wide(copy_bytes_s: int) -> Recipe:
    """A model that is just large enough for its steps to tell something on this machine."""
    read_bytes = max(DEVICE_BYTES_MIN, copy_bytes_s * READ_S_MIN) * 1.1
    return Recipe(
        name="wide",
        family=Family.LLAMA,
        about="Few layers of much weight.",
        weights=WeightType.Q8_0,
        embedding=2048,
        heads=16,
        kv_heads=2,
        feed_forward=8192,
        layers=math.ceil(read_bytes / LAYER_BYTES),
    )


def cpu_of(inventory: discovery_pb2.Inventory) -> cluster_pb2.Device:
    devices = [device for node in inventory.nodes for device in node.devices]
    return next((device for device in devices if device.id == "cpu"), cluster_pb2.Device())


async def metric(address: str, name: str, label: str = "") -> float:
    async with httpx.AsyncClient(timeout=60) as client:
        page = (await client.get(f"http://{address}/metrics")).text
    rows = [line.rsplit(" ", 1) for line in page.splitlines() if line.startswith(name) and label in line]
    return sum(float(value) for _, value in rows)


async def test_the_cpu_is_as_fast_as_the_steps_of_its_runner_show(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    async with running_node(tmp_path, models) as node:
        copied = cpu_of(await node.inventory(lambda seen: cpu_of(seen).speed_bytes_s > 0))
        assert copied.decode_bytes_s == 0
        path = build(wide(copied.speed_bytes_s), models)
        record = await node.run(await node.start_request("wide:latest", layout=LAYOUT))
        learned = copied
        async with RunnerClient(record.address) as client:
            while not learned.decode_bytes_s:
                generated = [event async for event in client.generate(greedy("Hello", max_tokens=TOKENS))]
                assert generated[-1].final.generated_tokens == TOKENS
                learned = cpu_of(await node.inventory(lambda seen: bool(runners_of(seen))))
        calls = await metric(record.metrics_address, "puna_runner_decode_calls_total")
        seconds = await metric(record.metrics_address, "puna_runner_decode_seconds_total")
        mean = path.stat().st_size * calls / seconds
        assert mean / SAME_ORDER < learned.decode_bytes_s < max(mean, copied.speed_bytes_s) * SAME_ORDER
        assert learned.speed_bytes_s == copied.speed_bytes_s
        assert not any(runner.status.HasField("decode_window") for runner in runners_of(await node.inventory(bool)))
        page = (await node.host.event("host.ready"))["metrics_address"]
        assert await metric(page, "puna_host_device_speed", 'source="replicas"') > 0
        path.unlink()
        await node.host.end()
        await node.restart_host()
        again = cpu_of(await node.inventory(lambda seen: cpu_of(seen).decode_bytes_s > 0))
        assert again.decode_bytes_s >= learned.decode_bytes_s, "its last window may have been a better one"
