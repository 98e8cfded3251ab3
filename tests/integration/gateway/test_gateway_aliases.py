"""Aliases over HTTP and gRPC: one name for another in every dialect, and no way around a key."""

import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from cli.commands.keys import create
from gateway.client import Client
from tests.integration.gateway.conftest import Cluster, StartCluster
from tests.integration.gateway.scripted import MODEL_NAME, ScriptedScheduler, scripted_model

PAGE = "/puna/v1/aliases"
LOST = "model 'fast' not found: it is an alias of 'gone:latest', which no node has"


async def test_an_alias_answers_in_every_dialect_under_the_name_that_was_asked_for(cluster: Cluster) -> None:
    put = await cluster.http.put(f"{PAGE}/fast", json={"model": "demo"})
    assert put.json() == {"alias": "fast:latest", "model": MODEL_NAME, "exists": True}
    talk: Any = [{"role": "user", "content": "hi"}]
    chat = await cluster.openai.chat.completions.create(model="Fast", messages=talk)
    assert chat.model == "Fast"
    native = await cluster.ollama.chat(model="fast:latest", messages=talk)
    assert native.model == "fast:latest"
    async with anthropic.AsyncAnthropic(base_url=cluster.url, api_key="any", max_retries=0) as client:
        message = await client.messages.create(model="fast", max_tokens=9, messages=talk)
        assert message.model == "fast"
    async with Client(cluster.gateway.grpc_address) as puna:
        assert (await puna.chat("fast", "hi")).text == chat.choices[0].message.content
        assert (await puna.show_model("fast")).model.name == MODEL_NAME
    vector = await cluster.http.post("/puna/v1/tokenize", json={"model": "fast", "text": "hi"})
    assert vector.status_code == 200


async def test_lists_show_an_alias_with_what_it_points_to(cluster: Cluster) -> None:
    await cluster.http.put(f"{PAGE}/fast", json={"model": "demo"})
    tags = (await cluster.http.get("/api/tags")).json()["models"]
    assert [(one["name"], one.get("alias_of")) for one in tags] == [(MODEL_NAME, None), ("fast:latest", MODEL_NAME)]
    assert len({one["digest"] for one in tags}) == 1
    models = (await cluster.http.get("/v1/models")).json()["data"]
    assert [(one["id"], one["puna"]["alias_of"]) for one in models] == [("demo", None), ("fast", MODEL_NAME)]
    one = (await cluster.http.get("/v1/models/fast")).json()
    assert (one["id"], one["puna"]["alias_of"]) == ("fast", MODEL_NAME)
    shown = (await cluster.http.post("/api/show", json={"model": "fast"})).json()
    assert shown["alias_of"] == MODEL_NAME
    assert (await cluster.http.get(PAGE)).json() == {
        "aliases": [{"alias": "fast:latest", "model": MODEL_NAME, "exists": True}]
    }
    async with Client(cluster.gateway.grpc_address) as puna:
        answer = await puna.list_aliases()
        assert [(one.name, one.target) for one in answer] == [("fast:latest", MODEL_NAME)]
    gone = await cluster.http.delete(f"{PAGE}/fast")
    assert gone.json() == {"alias": "fast:latest", "was_set": True}
    assert (await cluster.http.get(PAGE)).json() == {"aliases": []}
    assert (await cluster.http.post("/api/show", json={"model": "fast"})).status_code == 404


async def test_an_alias_wins_over_a_model_of_its_name(start_cluster: StartCluster) -> None:
    other = scripted_model(name="other:latest")
    scheduler = ScriptedScheduler(models={MODEL_NAME: scripted_model(), "other:latest": other})
    scheduler.aliases = {"other:latest": MODEL_NAME}
    async with start_cluster(scheduler=scheduler) as cluster:
        shown = (await cluster.http.post("/api/show", json={"model": "other"})).json()
        assert shown["alias_of"] == MODEL_NAME
        tags = (await cluster.http.get("/api/tags")).json()["models"]
        assert sorted((one["name"], one.get("alias_of")) for one in tags if one["name"] != MODEL_NAME) == [
            ("other:latest", MODEL_NAME)
        ]


async def test_an_alias_of_a_model_that_is_gone_says_so_in_every_dialect(start_cluster: StartCluster) -> None:
    scheduler = ScriptedScheduler(aliases={"fast:latest": "gone:latest"})
    async with start_cluster(scheduler=scheduler) as cluster:
        talk: Any = [{"role": "user", "content": "hi"}]
        with pytest.raises(openai.NotFoundError, match="alias of 'gone:latest'"):
            await cluster.openai.chat.completions.create(model="fast", messages=talk)
        answer = await cluster.http.post("/api/chat", json={"model": "fast", "messages": talk})
        assert (answer.status_code, answer.json()) == (404, {"error": LOST})
        shown = await cluster.http.post("/api/show", json={"model": "fast"})
        assert (shown.status_code, shown.json()) == (404, {"error": LOST})
        (listed,) = (await cluster.http.get(PAGE)).json()["aliases"]
        assert listed["exists"] is False
        tags = (await cluster.http.get("/api/tags")).json()["models"]
        assert [one["name"] for one in tags] == [MODEL_NAME]


async def test_deleting_a_model_never_means_an_alias(cluster: Cluster) -> None:
    await cluster.http.put(f"{PAGE}/fast", json={"model": "demo"})
    answer = await cluster.http.request("DELETE", "/api/delete", json={"model": "fast"})
    assert answer.status_code == 400
    assert "alias" in answer.json()["error"]


@pytest.mark.parametrize(
    ("name", "body", "status", "words"),
    [
        ("fast", {}, 400, "model is required"),
        ("fast", {"model": 5}, 400, "model"),
        ("fast", {"model": "no name at all"}, 404, "not found"),
        ("%20", {"model": "demo"}, 400, "cannot be the name"),
        ("a/b/c/d", {"model": "demo"}, 400, "cannot be the name"),
        ("faster", {"model": "fast"}, 400, "alias"),
    ],
)
async def test_what_cannot_be_an_alias_is_refused(
    cluster: Cluster, name: str, body: dict[str, object], status: int, words: str
) -> None:
    await cluster.http.put(f"{PAGE}/fast", json={"model": "demo"})
    answer = await cluster.http.put(f"{PAGE}/{name}", json=body)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]
    assert cluster.scheduler.aliases == {"fast:latest": MODEL_NAME}


async def test_a_scheduler_that_does_not_know_aliases_changes_nothing(cluster: Cluster) -> None:
    await cluster.http.put(f"{PAGE}/fast", json={"model": "demo"})
    cluster.scheduler.knows_aliases = False
    cluster.scheduler.models["new:latest"] = scripted_model(name="new:latest")
    await cluster.scheduler.publish()
    await cluster.http.post("/api/show", json={"model": "new"})
    assert (await cluster.http.post("/api/show", json={"model": "fast"})).status_code == 200


async def test_a_key_needs_both_names(
    start_cluster: StartCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys.json"

    def key_for(*models: str) -> str:
        wish = {"owner": "-".join(models), "tenant": "t", "scopes": ["infer", "models:read"], "models": list(models)}
        create(wish, file, as_json=True)
        key: str = json.loads(capsys.readouterr().out)["key"]
        return key

    both, alone, target = key_for("fast", "demo"), key_for("fast"), key_for("demo")
    scheduler = ScriptedScheduler(aliases={"fast:latest": MODEL_NAME})
    async with start_cluster(scheduler=scheduler, api_keys_file=str(file)) as cluster:

        async def status(key: str, name: str) -> tuple[int, list[str]]:
            headers = {"authorization": f"Bearer {key}"}
            body = {"model": name, "messages": [{"role": "user", "content": "hi"}]}
            answer = await cluster.http.post("/v1/chat/completions", json=body, headers=headers)
            listed = (await cluster.http.get("/v1/models", headers=headers)).json()["data"]
            return answer.status_code, [one["id"] for one in listed]

        assert await status(both, "fast") == (200, ["demo", "fast"])
        assert await status(alone, "fast") == (404, [])
        assert await status(target, "fast") == (404, ["demo"])
        assert await status(target, "demo") == (200, ["demo"])
