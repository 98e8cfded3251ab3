"""Pulls while the registry is not reached: the answer names the node that stood in for it, streamed or not."""

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from protos import cluster_pb2, discovery_pb2
from tests.integration.gateway.conftest import StartCluster
from tests.integration.gateway.scripted import ScriptedScheduler, scripted_model
from tests.integration.host.store_layout import LaidOut
from tests.real_store import NO_REGISTRY, RealStore, open_store
from tools.model_zoo import build


class TwoStores(ScriptedScheduler):
    """Its second node is the roomier one, so that models are pulled there."""

    stores: tuple[RealStore, RealStore]

    async def ListNodes(  # noqa: N802
        self, request: Any, context: Any
    ) -> discovery_pb2.Inventory:
        nodes = [
            cluster_pb2.Node(id=f"node-{at}", address=store.address, models_free_bytes=2**30 + at)
            for at, store in enumerate(self.stores)
        ]
        return discovery_pb2.Inventory(nodes=nodes)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_last_line_names_the_nodes_that_a_pull_took_from(
    stream: bool, tmp_path: Path, start_cluster: StartCluster
) -> None:
    laid_out = LaidOut(directory=tmp_path / "a" / "models")
    weights = laid_out.layer("model", build("dense", tmp_path).read_bytes())
    _, digest = laid_out.manifest(f"{NO_REGISTRY}/team/model/latest", weights)
    name = f"{NO_REGISTRY}/team/model:latest"
    known: cluster_pb2.Model = scripted_model(name)
    known.manifest_digest = digest
    scheduler = TwoStores(models={name: known})
    async with AsyncExitStack() as stack:
        stores = [await open_store(tmp_path / node, f"unix:{tmp_path}/{node}.sock") for node in "ab"]
        for store in stores:
            stack.push_async_callback(store.close)
        scheduler.stores = (stores[0], stores[1])
        cluster = await stack.enter_async_context(start_cluster(scheduler=scheduler, warm=False))
        answer = await cluster.http.post("/api/pull", json={"model": name, "stream": stream})
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines[-1] == {"status": "success", "peers": [stores[0].address]}, answer.text
    assert len(lines) == 1 or stream
