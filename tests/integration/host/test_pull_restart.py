"""A pull over the death of its host: what is on the disk is not fetched again."""

import asyncio
import hashlib
import json
import signal
from pathlib import Path

import pytest

from common.errors import PermissionDenied
from protos import store_pb2
from runner.host.store_client import StoreClient
from tests.integration.host.node import running_node
from tests.registry import harmful_proxy, needs_registry, push, running_registry
from tests.waiting import until
from tools.model_zoo import build

pytestmark = needs_registry
MIB = 1024 * 1024
PADDING = 24 * MIB


def _noted_bytes(models: Path) -> int:
    """Return the bytes of unfinished blobs that a host has recorded."""
    states = [json.loads(path.read_bytes()) for path in (models / "blobs").glob("*.state")]
    return sum(done for state in states for _, _, done in state["parts"])


async def test_a_pull_goes_on_after_its_host_was_killed(tmp_path: Path) -> None:
    weights = build("dense", tmp_path).read_bytes() + bytes(PADDING)
    models = tmp_path / "models"
    with running_registry(tmp_path / "registry") as registry:
        pushed = push(registry, "library/dense", weights)
        async with harmful_proxy(registry.host) as proxy:
            allowed = {"PUNA_REGISTRIES": f"http://{proxy.address}"}
            request = store_pb2.PullRequest(name=f"{proxy.address}/library/dense", insecure=True)
            async with running_node(tmp_path, models, **allowed) as node:
                stores = StoreClient()
                proxy.holds_after = len(weights) // 2
                pulling = asyncio.create_task(_pull(stores, node.address, request))
                await until(lambda: _noted_bytes(models) > len(weights) // 3, deadline_s=30, what="a third is noted")
                noted = _noted_bytes(models)
                await node.host.end(signal.SIGKILL)
                await asyncio.gather(pulling, return_exceptions=True)
                proxy.holds_after, before = 0, proxy.sent_bytes
                proxy.released.set()
                blobs = models / "blobs"
                damaged = [blobs / f"sha256-{'ab' * 32}.puna-partial", blobs / "upload-1.puna-partial"]
                for path in damaged:
                    path.write_bytes(b"half of something")
                damaged.append(blobs / f"sha256-{'cd' * 32}.puna-partial.state")
                damaged[-1].write_bytes(b"{")
                await node.restart_host()
                resumable = await node.host.event("blob.unfinished")
                assert resumable["path"].endswith(f"sha256-{pushed.digest}.puna-partial")
                assert noted <= resumable["done_bytes"] < resumable["size_bytes"] == len(weights)
                left = {event["path"] for event in node.host.events if event["event"] == "blob.leftover"}
                assert left == {str(path) for path in damaged}
                assert not any(path.exists() for path in damaged)
                lines = await _pull(stores, node.address, request)
                await stores.close()
                assert lines[-1].status == "success"
                # Each broken connection had some more in hand when it was released.
                assert proxy.sent_bytes - before <= len(weights) - noted + MIB
                blob = models / "blobs" / f"sha256-{pushed.digest}"
                assert hashlib.sha256(blob.read_bytes()).hexdigest() == pushed.digest
                assert sorted(path.name for path in (models / "blobs").iterdir() if "partial" in path.name) == []
                model = await node.model(f"{proxy.address}/library/dense:latest")
                assert model.digest == pushed.digest
                assert json.loads(model.parameters_json) == {"temperature": 0.5}


async def test_a_registry_off_the_list_is_refused_by_the_host(tmp_path: Path) -> None:
    async with running_node(tmp_path, tmp_path / "models") as node:
        stores = StoreClient()
        with pytest.raises(PermissionDenied, match="not on the list"):
            await _pull(stores, node.address, store_pb2.PullRequest(name="registry.example/a/b"))
        await stores.close()


async def _pull(stores: StoreClient, address: str, request: store_pb2.PullRequest) -> list[store_pb2.StoreProgress]:
    return [line async for line in stores.pull(address, request)]
