"""Texts of the scheduler name models; a caller without the right to one of them reads "another model" in every
place."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc import aio

from cli.commands.keys import create
from common.errors import ModelUnavailable
from protos import cluster_pb2, discovery_pb2, inference_pb2, inference_pb2_grpc, scheduler_pb2
from tests.integration.gateway.conftest import Cluster, StartCluster, eventually
from tests.integration.gateway.scripted import MODEL_NAME, ScriptedRunner, ScriptedScheduler, scripted_model
from tests.waiting import until

SECRET = "team/secret:q4"
SCOPES = ("infer", "embed", "models:read", "models:write")
QUEUED = scheduler_pb2.Queued(position=1, waits_for=f"memory that {SECRET} holds")
GAVE_UP = ModelUnavailable(f"timed out waiting for memory that {SECRET} holds", retry_after_s=5.0)


@dataclass(eq=False)
class TellingScheduler(ScriptedScheduler):
    """Has a second model, and tells of it wherever a scheduler does."""

    def __post_init__(self) -> None:
        self.models[SECRET] = scripted_model(SECRET)

    async def Explain(  # noqa: N802
        self, request: scheduler_pb2.ExplainRequest, context: Any
    ) -> scheduler_pb2.Explanation:
        lent = scheduler_pb2.LentTo(placement_id="p", model_name=SECRET, node_id="b")
        device = scheduler_pb2.ExplainedDevice(device_id="RPC:127.0.0.1:5000/0", name="R0", lent_to=[lent])
        return scheduler_pb2.Explanation(
            model_name=request.model_name,
            outcome="busy",
            waits_for=QUEUED.waits_for,
            candidates=[scheduler_pb2.ExplainedCandidate(reason=f"{SECRET} is busy", devices=[device])],
            victims=[scheduler_pb2.ExplainedVictim(placement_id="p", model_name=SECRET)],
        )

    async def ListNodes(  # noqa: N802
        self, request: scheduler_pb2.ListNodesRequest, context: Any
    ) -> discovery_pb2.Inventory:
        inventory = await super().ListNodes(request, context)
        inventory.nodes[0].runners.extend(
            cluster_pb2.RunnerRecord(
                placement=cluster_pb2.PlacementRef(placement_id=name), model_name=name, layout=layout_on("cpu")
            )
            for name in (MODEL_NAME, SECRET)
        )
        return inventory


def layout_on(device_id: str) -> cluster_pb2.Layout:
    return cluster_pb2.Layout(devices=[cluster_pb2.DeviceLayers(device_id=device_id, layer_count=1)])


@dataclass
class Callers:
    """Headers of callers: of one that may use one model, and of one that may use both."""

    file: Path
    of_one: dict[str, str]
    of_both: dict[str, str]


@pytest.fixture
def callers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callers:
    file = tmp_path / "keys.json"

    def made(owner: str, *models: str) -> dict[str, str]:
        create({"owner": owner, "tenant": owner, "scopes": list(SCOPES), "models": list(models)}, file, as_json=True)
        return {"authorization": f"Bearer {json.loads(capsys.readouterr().out)['key']}"}

    return Callers(file, of_one=made("ada", "demo"), of_both=made("bob"))


async def test_explain_and_nodes_name_no_model_that_is_not_for_the_caller(
    callers: Callers, start_cluster: StartCluster
) -> None:
    async with start_cluster(scheduler=TellingScheduler(), api_keys_file=str(callers.file)) as cluster:
        for path in ("/puna/v1/explain?model=demo", "/puna/v1/nodes"):
            assert SECRET in (await cluster.http.get(path, headers=callers.of_both)).text
            answer = await cluster.http.get(path, headers=callers.of_one)
            assert answer.status_code == 200
            assert "secret" not in answer.text
        told = (await cluster.http.get("/puna/v1/explain?model=demo", headers=callers.of_one)).json()
        assert (told["model"], told["waits_for"]) == (MODEL_NAME, "memory that another model holds")
        assert told["candidates"][0]["devices"][0]["id"] == "RPC:127.0.0.1:5000/0"
        (node,) = (await cluster.http.get("/puna/v1/nodes", headers=callers.of_one)).json()["nodes"]
        assert [runner["model"] for runner in node["runners"]] == [MODEL_NAME]


async def test_a_load_tells_each_caller_what_it_waits_for_in_words_for_that_caller(
    callers: Callers, start_cluster: StartCluster
) -> None:
    scheduler = TellingScheduler(queued=QUEUED)
    async with start_cluster(
        scheduler=scheduler, runner=ScriptedRunner(), warm=False, api_keys_file=str(callers.file)
    ) as cluster:
        asked = [
            asyncio.create_task(cluster.http.post("/puna/v1/load", json={"model": "demo"}, headers=headers))
            for headers in (callers.of_one, callers.of_both)
        ]
        await until(lambda: len(scheduler.ensured) == 2, what="both wait")
        assert await seen_by(cluster, callers.of_one) == "memory that another model holds"
        assert await seen_by(cluster, callers.of_both) == f"memory that {SECRET} holds"
        scheduler.placed.set()
        of_one, of_both = [(await one).text.splitlines()[0] for one in asked]
        assert json.loads(of_one)["waits_for"] == "memory that another model holds"
        assert json.loads(of_both)["waits_for"] == f"memory that {SECRET} holds"


async def seen_by(cluster: Cluster, headers: dict[str, str]) -> str:
    """Return the load that the page shows, as soon as it does."""
    text = ""
    async with asyncio.timeout(60), cluster.http.stream("GET", "/puna/v1/events", headers=headers) as response:
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            data = json.loads(line.removeprefix("data: "))
            models = data.get("models", {})
            load = models.get("set", models).get(MODEL_NAME, {}).get("load")
            if load:
                text = load["waits_for"]
                break
    return text


async def test_a_load_that_gives_up_names_no_model_that_is_not_for_the_caller(
    callers: Callers, start_cluster: StartCluster
) -> None:
    scheduler = TellingScheduler(load_error=GAVE_UP)
    body = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
    async with start_cluster(scheduler=scheduler, warm=False, api_keys_file=str(callers.file)) as cluster:
        await eventually(lambda: len(cluster.gateway.service.inference.models.routes.all()) == 2)
        for path in ("/api/chat", "/v1/chat/completions", "/v1/messages"):
            refused, named = await asyncio.gather(
                *(cluster.http.post(path, json=body, headers=who) for who in (callers.of_one, callers.of_both))
            )
            assert {refused.status_code, named.status_code} <= {503, 529}
            assert "waiting for memory that another model holds" in refused.text
            assert SECRET in named.text
        async with aio.insecure_channel(cluster.gateway.grpc_address) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            request = inference_pb2.GenerateTextRequest(model="demo", prompt="x")
            with pytest.raises(grpc.RpcError) as caught:
                async for _ in stub.Generate(request, metadata=tuple(callers.of_one.items())):
                    pass
            assert "another model" in str(caught.value)
            assert "secret" not in str(caught.value)


async def test_who_asks_for_a_model_that_is_not_theirs_hears_what_they_would_of_none(
    callers: Callers, start_cluster: StartCluster
) -> None:
    async with start_cluster(scheduler=TellingScheduler(), api_keys_file=str(callers.file)) as cluster:

        async def said(model: str) -> httpx.Response:
            answer: httpx.Response = await cluster.http.get(f"/puna/v1/explain?model={model}", headers=callers.of_one)
            return answer

        hidden, unknown = await said(SECRET), await said("team/nobody:q4")
        assert hidden.status_code == unknown.status_code == 404
        assert hidden.text.replace(SECRET, "team/nobody:q4") == unknown.text
