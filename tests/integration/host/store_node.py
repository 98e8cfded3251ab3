"""A real node with a store, as a gateway speaks to it, and what its models say."""

import contextlib
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from common.errors import BadModelFile
from common.model_details import KeptDetails
from discovery.client import watch_inventory
from protos import cluster_pb2, host_pb2, store_pb2
from runner.client import RunnerClient
from runner.host.store_client import StoreClient
from tests.integration.host.node import Node, running_node
from tests.integration.runner.processes import collect, greedy

PROMPT = "The weather is cold"


class Store:
    """A node's store as a gateway speaks to it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.client = StoreClient()

    async def create(self, name: str, **fields: Any) -> list[str]:
        request = store_pb2.CreateRequest(name=name, **fields)
        return [progress.status async for progress in self.client.create(self.node.address, request)]

    async def put(self, content: bytes, *, digest: str = "", size_bytes: int = 0, piece: int = 300_000) -> str:
        digest = digest or hashlib.sha256(content).hexdigest()

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(content), piece):
                yield content[start : start + piece]

        await self.client.put_blob(self.node.address, digest, pieces(), size_bytes=size_bytes)
        return f"sha256:{digest}"

    async def read(self, digest: str, **where: int) -> bytes:
        return b"".join([chunk.data async for chunk in self.client.read_blob(self.node.address, digest, **where)])

    async def size(self, digest: str) -> int | None:
        return await self.client.stat_blob(self.node.address, digest)

    async def delete(self, name: str) -> int:
        return await self.client.delete(self.node.address, name)

    async def copy(self, source: str, destination: str) -> None:
        await self.client.copy(self.node.address, source=source, destination=destination)

    async def model(self, name: str) -> cluster_pb2.Model:
        """With its long texts, which a stream carries once."""
        await self.node.model(name)
        details = KeptDetails()
        async with contextlib.aclosing(watch_inventory(self.node.discovery_address)) as stream:
            inventory = await anext(stream)
        details.take(model for node in inventory.nodes for model in node.models)
        (model,) = (model for node in inventory.nodes for model in node.models if model.name == name)
        details.complete(model)
        return model

    async def names(self) -> set[str]:
        found = await self.node.inventory(lambda inventory: bool(inventory.nodes))
        return {model.name for node in found.nodes for model in node.models}

    async def without(self, name: str) -> None:
        await self.node.inventory(
            lambda inventory: all(m.name != name for node in inventory.nodes for m in node.models)
        )

    async def said(self, name: str) -> list[int]:
        return await said(self.node, name)


@asynccontextmanager
async def running_store(tmp_path: Path, **environment: str) -> AsyncIterator[Store]:
    async with running_node(tmp_path, tmp_path / "models", **environment) as node:
        store = Store(node)
        try:
            yield store
        finally:
            await store.client.close()


async def said(node: Node, name: str) -> list[int]:
    """The tokens that a model of the node says first, greedily."""
    request = await node.start_request(name)
    record = await node.run(request)
    assert record.status.state == cluster_pb2.RUNNER_STATE_READY, record.status.error
    async with RunnerClient(record.address) as client:
        answer = await collect(client, greedy(PROMPT))
    await node.stop(request)
    return [token.id for token in answer.tokens]


async def why_not(node: Node, request: host_pb2.StartRequest) -> str:
    """Refused at once, or found out while the file is read for the start."""
    try:
        record = await node.run(request)
    except BadModelFile as error:
        return error.message
    assert record.status.state == cluster_pb2.RUNNER_STATE_ERROR
    assert record.status.error.reason == "bad_model_file"
    return record.status.error.message
