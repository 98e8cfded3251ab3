"""Files that a layout names beside the model, and the host's report of a load that does not fit."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.errors import ModelNotFound
from protos import cluster_pb2
from runner.client import RunnerClient
from tests.integration.host.node import SMALL, Inventory, Node, running_node
from tests.integration.runner.processes import collect, greedy
from tests.limited_device import limited_device
from tools.model_zoo import build_adapter

PROMPT = "The weather is cold"


@pytest.fixture
async def node(tmp_path: Path, models_directory: Path) -> AsyncIterator[Node]:
    """A node with a model and an adapter for it."""
    directory = tmp_path / "models"
    shutil.copytree(models_directory, directory)
    build_adapter(directory / "dense.gguf", directory)
    async with running_node(tmp_path, directory) as node:
        yield node


def with_adapter(digest: str, scale: float) -> cluster_pb2.Layout:
    layout = cluster_pb2.Layout()
    layout.CopyFrom(SMALL)
    layout.adapters.add(digest=digest, scale=scale)
    return layout


async def text_of(record: cluster_pb2.RunnerRecord) -> str:
    async with RunnerClient(record.address) as client:
        return (await collect(client, greedy(PROMPT))).text


async def test_adapters_are_found_by_digest_and_change_what_a_runner_says(node: Node) -> None:
    adapter = await node.model("adapter:latest")
    assert "changes another model" in adapter.error
    texts, weights = [], []
    for layout in (SMALL, with_adapter(adapter.digest, 0.0), with_adapter(adapter.digest, 1.0)):
        digest = (await node.model("dense:latest")).digest
        planned = await node.client.measure(node.address, model_digest=digest, layout=layout)
        request = await node.start_request(layout=layout, planned=planned)
        record = await node.run(request)
        assert record.status.state == cluster_pb2.RUNNER_STATE_READY
        assert record.layout.adapters == layout.adapters
        weights.append((planned.host.weights_bytes, record.status.memory.host.weights_bytes))
        texts.append(await text_of(record))
        await node.stop(request)
    assert texts[0] == texts[1] != texts[2]
    assert weights[0][0] < weights[1][0] == weights[2][0]
    assert weights[0][1] < weights[1][1] == weights[2][1]


async def test_a_part_that_the_node_lacks_is_named(node: Node) -> None:
    request = await node.start_request(layout=with_adapter("ab" * 32, 1.0))
    with pytest.raises(ModelNotFound, match="no adapter with digest abab"):
        await node.run(request)
    layout = cluster_pb2.Layout()
    layout.CopyFrom(SMALL)
    layout.projector_digest = "cd" * 32
    with pytest.raises(ModelNotFound, match="no projector with digest cdcd"):
        await node.run(await node.start_request(layout=layout))


@pytest.mark.behaviour("B-61", "B-68")
async def test_sizes_that_a_device_refused_reach_whoever_started_the_runner(
    tmp_path: Path, models_directory: Path
) -> None:
    with limited_device(mib=4) as device:
        async with running_node(tmp_path, models_directory, PUNA_RPC_DEVICES=device.address) as node:

            def has_device(inventory: Inventory) -> bool:
                return any(found.id == device.id for node in inventory.nodes for found in node.devices)

            await node.inventory(has_device)
            layout = cluster_pb2.Layout()
            layout.CopyFrom(SMALL)
            layout.devices.add(device_id=device.id, layer_count=9)
            record = await node.run(await node.start_request(layout=layout))
            error = record.status.error
            assert record.status.state == cluster_pb2.RUNNER_STATE_ERROR
            assert error.reason == "device_memory_exhausted"
            assert f"device {device.id} refused" in error.message
            assert error.attempted.origin == cluster_pb2.MEMORY_ORIGIN_ATTEMPTED
            (tried,) = error.attempted.devices
            assert tried.device_id == device.id
            assert tried.weights_bytes + tried.cache_bytes + tried.graph_bytes > device.total_bytes
            assert len(tried.layer_weights_bytes) == 9
