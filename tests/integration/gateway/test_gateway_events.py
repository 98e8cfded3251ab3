"""The stream that the page lives on: what it says, what it costs, and how it ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from protos import cluster_pb2, discovery_pb2, scheduler_pb2
from tests.integration.gateway.conftest import Cluster, StartCluster, eventually
from tests.integration.gateway.scripted import MODEL_NAME, Context, ScriptedRunner, ScriptedScheduler

QUESTION: Any = [{"role": "user", "content": "What is Puna?"}]


@dataclass(eq=False)
class CountingScheduler(ScriptedScheduler):
    """Counts how often it is asked for the inventory."""

    asked: int = 0

    async def ListNodes(  # noqa: N802
        self, request: scheduler_pb2.ListNodesRequest, context: Context
    ) -> discovery_pb2.Inventory:
        self.asked += 1
        device = cluster_pb2.Device(id="GPU-1", name="CUDA0", total_bytes=1000, free_bytes=400 + self.asked)
        memory = cluster_pb2.DeviceMemory(device_id="GPU-1", weights_bytes=70, cache_bytes=40, graph_bytes=10)
        report = cluster_pb2.MemoryReport(devices=[memory])
        record = cluster_pb2.RunnerRecord(model_name=MODEL_NAME, status=cluster_pb2.RunnerStatus(memory=report))
        return discovery_pb2.Inventory(nodes=[cluster_pb2.Node(id="node-1", devices=[device], runners=[record])])


async def events(response: httpx.Response) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    name = ""
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def watchers() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("overview")]


async def test_everything_comes_first_and_then_what_changed(start_cluster: StartCluster) -> None:
    async with start_cluster(scheduler=CountingScheduler()) as cluster:
        async with cluster.http.stream("GET", "/puna/v1/events") as response:
            stream = events(response)
            name, first = await anext(stream)
            assert name == "snapshot"
            assert first["models"][MODEL_NAME]["replicas"][0]["slots_total"] == 4
            free: list[int] = []
            async for name, change in stream:
                assert name == "change"
                for node in change.get("nodes", {}).get("set", {}).values():
                    (device,) = node["devices"]
                    free.append(device["free_bytes"])
                    assert device["holds"][0] == {
                        "placement": "",
                        "model": MODEL_NAME,
                        "weights_bytes": 70,
                        "cache_bytes": 40,
                        "graph_bytes": 10,
                    }
                if len(free) == 2:
                    break
        assert free[1] > free[0]


async def test_nobody_is_asked_anything_while_nobody_reads(start_cluster: StartCluster) -> None:
    async with start_cluster(scheduler=CountingScheduler()) as cluster:
        scheduler = cluster.scheduler
        assert (watchers(), scheduler.asked) == ([], 0)
        async with (
            cluster.http.stream("GET", "/puna/v1/events") as first,
            cluster.http.stream("GET", "/puna/v1/events") as second,
        ):
            reading = events(first), events(second)  # who lets go of one leaves
            for stream in reading:
                await anext(stream)
            assert sorted(watchers()) == ["overview", "overview cluster"]  # once, however many read
            await eventually(lambda: scheduler.asked > 0)
        await eventually(lambda: watchers() == [])


async def test_a_request_in_progress_is_shown_without_what_it_says(cluster: Cluster) -> None:
    held = asyncio.Event()

    async def hold(_: ScriptedRunner) -> None:
        await held.wait()

    cluster.runner.before = hold
    asking = asyncio.create_task(cluster.openai.chat.completions.create(model="demo", messages=QUESTION))
    try:
        async with cluster.http.stream("GET", "/puna/v1/events") as response:
            seen: dict[str, Any] = {}
            async for name, data in events(response):
                seen |= data["requests"] if name == "snapshot" else data.get("requests", {}).get("set", {})
                if any(request["model"] for request in seen.values()):
                    break
        (request,) = seen.values()
        assert (request["model"], request["route"]) == (MODEL_NAME, "/v1/chat/completions")
        assert request["id"].startswith("req_")
        assert "What is Puna" not in json.dumps(seen)
    finally:
        held.set()
        await asking
    await eventually(lambda: cluster.gateway.service.live.all() == [])


async def test_a_model_tells_what_its_load_waits_for_and_when_it_can_serve(start_cluster: StartCluster) -> None:
    scheduler = ScriptedScheduler(queued=scheduler_pb2.Queued(position=1, waits_for="memory that m holds", eta_s=30.0))
    async with start_cluster(scheduler=scheduler, warm=False) as cluster:
        wall_unix_ms = cluster.gateway.service.live.clock.wall_unix_s() * 1000
        asking = asyncio.create_task(cluster.openai.chat.completions.create(model="demo", messages=QUESTION))
        loads: list[Any] = []
        async with asyncio.timeout(60), cluster.http.stream("GET", "/puna/v1/events") as response:
            async for name, data in events(response):
                models = data["models"] if name == "snapshot" else data.get("models", {}).get("set", {})
                loads += [model["load"] for model in models.values()]
                if loads and loads[-1]:
                    scheduler.placed.set()
                elif any(loads):
                    break
        told = next(load for load in loads if load)
        assert told["waits_for"] == "memory that m holds"
        assert told["ready_at_unix_ms"] >= wall_unix_ms + 30_000
        assert loads[-1] is None  # it has begun, and waits for nothing
        await asking


async def test_a_scheduler_that_is_gone_is_said_and_what_was_known_stays(start_cluster: StartCluster) -> None:
    async with (
        start_cluster(scheduler=CountingScheduler()) as cluster,
        asyncio.timeout(60),
        cluster.http.stream("GET", "/puna/v1/events") as response,
    ):
        stopped = False
        async for _, data in events(response):
            if not stopped and data.get("nodes"):
                await cluster.scheduler.stop()
                stopped = True
            status = data.get("gateway", {}).get("set", {}).get("status", {})
            if status.get("scheduler_error"):
                break
            assert not data.get("nodes", {}).get("gone")


async def test_readers_are_counted(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.puna.overview.READERS_MAX", 1)
    async with cluster.http.stream("GET", "/puna/v1/events") as response:
        reading = events(response)  # who lets go of it leaves
        await anext(reading)
        refused = await cluster.http.get("/puna/v1/events")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    await eventually(lambda: watchers() == [])


async def test_a_gateway_that_stops_ends_the_stream(cluster: Cluster) -> None:
    async with cluster.http.stream("GET", "/puna/v1/events") as response:
        stream = events(response)
        await anext(stream)
        cluster.gateway.service.draining = True
        names = [name async for name, _ in stream]
    assert names[-1] == "end"


async def test_a_browser_is_sent_to_the_page(cluster: Cluster) -> None:
    answer = await cluster.http.get("/", headers={"accept": "text/html"})
    assert (answer.status_code, answer.headers["location"]) == (302, "/ui")
    page = await cluster.http.get("/ui")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert (await cluster.http.get("/ui/nothing.js")).status_code == 404


async def test_without_keys_everybody_is_told_every_scope(cluster: Cluster) -> None:
    me = (await cluster.http.get("/puna/v1/whoami")).json()
    assert (me["keys"], me["key"], me["models"]) == (False, None, None)
    assert "admin:cluster" in me["scopes"]
