"""A gateway before runners of two real hosts: conversations go where a tier keeps them, and their states follow."""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from protos import cluster_pb2, host_pb2, scheduler_pb2
from tests.integration.gateway.conftest import Cluster, StartCluster, eventually
from tests.integration.gateway.scripted import MODEL_NAME, ScriptedScheduler
from tests.integration.host.node import Node, running_node
from tools.model_zoo import build

LAYOUT = cluster_pb2.Layout(context_tokens=2048, slots=2, batch_tokens=256, threads=1)
PROMPT = " ".join(f"word{number}" for number in range(120))
PATIENCE_S = 60.0


@dataclass
class Place:
    """A runner of a host as the scheduler publishes it."""

    node_id: str
    request: host_pb2.StartRequest
    record: cluster_pb2.RunnerRecord

    def replica(self) -> scheduler_pb2.Replica:
        return scheduler_pb2.Replica(
            placement=self.record.placement,
            node_id=self.node_id,
            address=self.record.address,
            layout=LAYOUT,
            status=cluster_pb2.RunnerStatus(state=cluster_pb2.RUNNER_STATE_READY, slots_total=2),
            device_names=["CPU"],
        )


@dataclass
class Stage:
    """Two nodes, and the gateway with the routes that a test sets."""

    nodes: dict[str, Node]
    scheduler: ScriptedScheduler
    cluster: Cluster

    async def start(self, node_id: str) -> Place:
        node = self.nodes[node_id]
        request = await node.start_request(layout=LAYOUT)
        return Place(node_id, request, await node.run(request))

    async def publish(self, *places: Any) -> None:
        self.scheduler.replicas[MODEL_NAME] = list(places)
        await self.scheduler.publish()
        pool, routes = (
            self.cluster.gateway.service.inference.dispatcher.pool,
            self.cluster.gateway.service.inference.models.routes,
        )
        wanted = {place.record.placement.placement_id for place in places}

        def are_known() -> bool:
            route = routes.find("demo")
            return route is not None and {one.key.partition("/")[0] for one in pool.candidates(route)} == wanted

        await eventually(are_known, deadline_s=PATIENCE_S)

    async def ask(self, tokens: int = 8) -> dict[str, Any]:
        options = {"num_predict": tokens, "temperature": 0, "speculative": "off"}
        body = {"model": "demo", "prompt": PROMPT, "raw": True, "stream": False, "options": options}
        headers = {"x-puna-debug": "1"}
        answer = await self.cluster.http.post("/api/generate", json=body, headers=headers, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def keepers(self) -> set[str]:
        """Nodes of which the gateway knows that a slot or a tier holds something of the model."""
        pool = self.cluster.gateway.service.inference.dispatcher.pool
        return {one.info.node_id for one in pool._connections.values() if one.holdings}


@pytest.fixture
async def stage(start_cluster: StartCluster, tmp_path: Path) -> AsyncIterator[Stage]:
    models = tmp_path / "models"
    models.mkdir()
    build("dense", models)
    tiers = {"PUNA_STATES_RAM": "64MiB", "PUNA_STATES_DISK": "0"}
    async with AsyncExitStack() as stack:
        a = await stack.enter_async_context(running_node(tmp_path / "a", models, PUNA_NODE_ID="a", **tiers))
        shared = {"PUNA_DISCOVERY_ADDRESS": a.discovery_address, "PUNA_NODE_ID": "b"}
        b = await stack.enter_async_context(running_node(tmp_path / "b", models, **shared, **tiers))
        b.discovery_address = a.discovery_address
        scheduler = ScriptedScheduler()
        cluster = await stack.enter_async_context(start_cluster(scheduler=scheduler, warm=False))
        yield Stage({"a": a, "b": b}, scheduler, cluster)


async def test_a_conversation_returns_to_the_node_whose_tier_keeps_it(stage: Stage) -> None:
    first = await stage.start("a")
    await stage.publish(first)
    before = await stage.ask()
    await stage.nodes["a"].stop(first.request, drain_ms=1000)
    again, other = await stage.start("a"), await stage.start("b")
    await stage.publish(again, other)
    await eventually(lambda: stage.keepers() == {"a"}, deadline_s=PATIENCE_S)
    after = await stage.ask()
    assert after["puna"]["placement"] == again.record.placement.placement_id
    assert (after["response"], after["prompt_cached_count"]) == (before["response"], after["prompt_eval_count"] - 1)


async def test_a_conversation_follows_to_another_node_when_its_own_no_longer_runs_the_model(stage: Stage) -> None:
    first = await stage.start("a")
    await stage.publish(first)
    before = await stage.ask()
    await eventually(lambda: stage.keepers() == {"a"}, deadline_s=PATIENCE_S)
    await stage.nodes["a"].stop(first.request, drain_ms=1000)
    other = await stage.start("b")
    await stage.publish(other)
    after = await stage.ask()
    assert after["puna"]["placement"] == other.record.placement.placement_id
    assert (after["response"], after["prompt_cached_count"]) == (before["response"], after["prompt_eval_count"] - 1)


async def test_without_the_node_that_kept_it_a_conversation_is_computed_again(stage: Stage) -> None:
    first = await stage.start("a")
    await stage.publish(first)
    before = await stage.ask()
    await eventually(lambda: stage.keepers() == {"a"}, deadline_s=PATIENCE_S)
    await stage.nodes["a"].host.end(signal.SIGKILL)
    other = await stage.start("b")
    await stage.publish(other)
    after = await stage.ask()
    assert (after["response"], after["prompt_cached_count"]) == (before["response"], 0)


async def test_a_running_answer_moves_with_its_state(stage: Stage) -> None:
    first, other = await stage.start("a"), await stage.start("b")
    await stage.publish(first)
    await stage.ask()  # all later answers begin with the same kept prompt, and round alike
    options = {"num_predict": 1200, "temperature": 0, "speculative": "off"}
    body = {"model": "demo", "prompt": PROMPT, "raw": True, "stream": True, "options": options}
    lines, text = 0, ""
    async with stage.cluster.http.stream("POST", "/api/generate", json=body, timeout=PATIENCE_S) as answer:
        async for line in answer.aiter_lines():
            news = json.loads(line)
            lines, text = lines + 1, text + news["response"]
            if lines == 20:
                await stage.publish(other)
                await stage.nodes["a"].stop(first.request, drain_ms=0)
    assert news["done"], news
    assert news["eval_count"] == 1200
    log = next((stage.nodes["b"].home / "logs").glob("runner-*.log")).read_text()
    events = [json.loads(one) for one in log.splitlines() if one.startswith("{")]
    (restored,) = [one for one in events if one["event"] == "state.restored"]
    assert restored["tokens"] > news["prompt_eval_count"], "the answer was still running when its replica ended"
    assert news["prompt_cached_count"] == news["prompt_eval_count"]
    assert text == (await stage.ask(1200))["response"]
