"""A node with an empty store serves a model that another node has: fetched from there, and from nowhere else."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.namespaces import Machines, running_hosts
from tests.registry import HarmfulProxy, harmful_proxy, needs_registry, push, running_registry
from tests.waiting import wait_until
from tools.model_zoo import build


@contextlib.contextmanager
def proxy_in_a_thread(upstream: str) -> Iterator[HarmfulProxy]:
    """The proxy beside a test that waits."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    context = harmful_proxy(upstream)
    try:
        yield asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result(60)
    finally:
        asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _keep_on(cluster: Machines, model: str, node: str) -> None:
    answer = httpx.put(f"{cluster.url}/puna/v1/placements/{model}", json={"nodes": [node]}, timeout=60)
    assert answer.status_code == 200, answer.text


@needs_registry
@pytest.mark.timeout(600)
def test_a_pulled_model_moves_to_a_node_that_lacks_it_without_asking_the_registry_again(tmp_path: Path) -> None:
    weights = build("dense", tmp_path).read_bytes()
    stores = {name: tmp_path / f"models-{name}" for name in ("a", "b")}
    with (
        running_registry(tmp_path / "registry") as registry,
        proxy_in_a_thread(registry.host) as proxy,
    ):
        pushed = push(registry, "team/dense", weights)
        name = f"{proxy.address}/team/dense:latest"
        allowed = {"PUNA_REGISTRIES": f"http://{proxy.address}"}
        with running_hosts(tmp_path, stores, names=("a", "b"), device_mib=512, environment=allowed) as cluster:
            pulled = httpx.post(
                f"{cluster.url}/api/pull", json={"model": name, "insecure": True, "stream": False}, timeout=60
            )
            assert pulled.json() == {"status": "success"}, pulled.text
            having = [one for one, store in stores.items() if (store / "blobs" / f"sha256-{pushed.digest}").exists()]
            assert len(having) == 1
            copied = httpx.post(f"{cluster.url}/api/copy", json={"source": name, "destination": "short"}, timeout=60)
            assert copied.status_code == 200, copied.text
            asked = len(proxy.requests)
            first, second = having[0], next(one for one in stores if one not in having)
            _keep_on(cluster, "short", first)
            here = cluster.answer("short")
            assert here.status_code == 200, here.text
            assert [node for node, _ in cluster.runners()] == [first]
            _keep_on(cluster, "short", second)
            unloaded = httpx.post(f"{cluster.url}/puna/v1/unload", json={"model": "short"}, timeout=60)
            # The other node may have begun to load it already, because the constraint has changed.
            assert unloaded.json()["replicas"] in (1, 2), unloaded.text
            wait_until(lambda: not cluster.runners(), deadline_s=60, what="it has left")
            there = cluster.answer("short")
            assert there.status_code == 200, there.text
            assert [node for node, _ in cluster.runners()] == [second]
            assert there.json()["response"] == here.json()["response"]
            assert (stores[second] / "blobs" / f"sha256-{pushed.digest}").read_bytes() == weights
            assert len(proxy.requests) == asked
