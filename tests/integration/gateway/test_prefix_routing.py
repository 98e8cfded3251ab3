"""Two real runners behind a gateway: a prompt goes where its beginning is still held, and is not evaluated again."""

import json
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protos import cluster_pb2, scheduler_pb2
from tests.integration.gateway.conftest import Cluster, StartCluster, eventually
from tests.integration.gateway.scripted import MODEL_NAME, ScriptedScheduler
from tests.integration.runner.processes import RunnerProcess, started
from tools.model_zoo import build

PATIENCE_S = 30.0
# Prompts take far longer than a call does by chance on a busy machine.
CONTEXT_TOKENS, SENTENCES = 2048, 150


@dataclass
class Place:
    """A runner process as the scheduler publishes it."""

    name: str
    runner: RunnerProcess

    def replica(self) -> scheduler_pb2.Replica:
        return scheduler_pb2.Replica(
            placement=cluster_pb2.PlacementRef(placement_id=self.name, generation=1),
            node_id="node-1",
            address=self.runner.hello["address"],
            layout=cluster_pb2.Layout(context_tokens=CONTEXT_TOKENS, slots=4),
            status=cluster_pb2.RunnerStatus(state=cluster_pb2.RUNNER_STATE_READY, slots_total=4),
            device_names=["CPU"],
        )


async def ask(cluster: Cluster, prompt: str) -> tuple[str, int]:
    """Send a prompt and return the placement that answered, and the number of its tokens that were cached there."""
    body = {"model": "demo", "prompt": prompt, "raw": True, "stream": False, "options": {"num_predict": 2}}
    answer = await cluster.http.post("/api/generate", json=body, headers={"x-puna-debug": "1"}, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    return answer.json()["puna"]["placement"], answer.json()["prompt_cached_count"]


async def test_a_prompt_goes_to_the_replica_that_holds_the_longest_beginning_of_it(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    ours, theirs = "You count whole numbers. " * SENTENCES, "Name the trees of the wood. " * SENTENCES
    async with AsyncExitStack() as stack:
        model = build("dense", tmp_path)
        places: dict[str, Any] = {}
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            options = ("--placement", name, "--generation", "1")
            layout = json.dumps({"slots": 4, "contextTokens": CONTEXT_TOKENS, "threads": 1})
            runner = await stack.enter_async_context(started(model, tmp_path / name, *options, layout=layout))
            await runner.ready()
            places[name] = Place(name, runner)
        scheduler = ScriptedScheduler()
        scheduler.replicas[MODEL_NAME] = [places["one"]]
        cluster = await stack.enter_async_context(start_cluster(scheduler=scheduler, warm=False))
        assert await ask(cluster, ours) == ("one", 0)
        scheduler.replicas[MODEL_NAME] = [places["two"]]
        await scheduler.publish()
        pool, routes = (
            cluster.gateway.service.inference.dispatcher.pool,
            cluster.gateway.service.inference.models.routes,
        )

        def holders() -> set[str]:
            """Replicas of which the gateway knows that they hold something."""
            route = routes.find("demo")
            assert route is not None
            return {one.key.partition("/")[0] for one in pool.candidates(route) if one.holdings}

        await eventually(lambda: [one.placement_id for one in routes.all()[0].replicas] == ["two"])
        assert await ask(cluster, theirs) == ("two", 0)
        scheduler.replicas[MODEL_NAME] = [places["one"], places["two"]]
        await scheduler.publish()
        await eventually(lambda: holders() == {"one", "two"}, deadline_s=PATIENCE_S)
        body = {"model": "demo", "text": ours}
        explained = (await cluster.http.post("/puna/v1/explain/prompt", json=body, timeout=PATIENCE_S)).json()
        best, other = explained["replicas"]
        assert (best["placement"], best["is_chosen"], other["held"]) == ("one", True, [])
        assert best["held"] == [{"place": "slots", "tokens": explained["prompt_tokens"], "restore_ms": None}]
        assert 0 < best["first_token_ms"] < other["first_token_ms"]
        for prompt, holder in ((ours, "one"), (theirs, "two"), (ours, "one")):
            place, cached = await ask(cluster, prompt + "And then?")
            assert place == holder
            assert cached > 0
