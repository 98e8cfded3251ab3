"""Puna's own pages about what is wanted and why, over HTTP, with a scheduler that keeps its contract."""

import asyncio
from urllib.parse import quote

import orjson
import pytest

from tests.integration.gateway.conftest import Cluster, StartCluster
from tests.integration.gateway.scripted import ScriptedRunner, ScriptedScheduler, scripted_model
from tests.waiting import until

PAGE = "/puna/v1/placements"


async def test_what_is_put_is_shown_and_forgotten(cluster: Cluster) -> None:
    body = {
        "replicas_min": 2,
        "devices": ["node-1/GPU-1"],
        "max_bytes": {"*": 8 << 30},
        "keep_alive": "10m",
        "num_ctx": 4096,
        "flash_attention": "off",
        "tensor_split": [1.0],
        "num_gpu": 0,
        "pinned": False,
    }
    put = await cluster.http.put(f"{PAGE}/demo", json=body)
    assert put.status_code == 200
    shown = {
        "replicas_min": 2,
        "devices": ["node-1/GPU-1"],
        "max_bytes": {"*": 8 << 30},
        "keep_alive": 600.0,
        "num_ctx": 4096,
        "flash_attention": "off",
        "tensor_split": [1.0],
        "num_gpu": 0,
    }
    assert put.json() == {"model": "demo:latest", "from_file": False, "constraints": shown, "defaults": {}}
    one = (await cluster.http.get(f"{PAGE}/demo")).json()
    assert one["constraints"] == shown
    assert [placement["model"] for placement in one["placements"]] == ["demo:latest"]
    everything = (await cluster.http.get(PAGE)).json()
    assert [model["model"] for model in everything["models"]] == ["demo:latest"]
    assert (await cluster.http.delete(f"{PAGE}/demo")).json() == {"model": "demo:latest", "was_set": True}
    assert (await cluster.http.delete(f"{PAGE}/demo")).json() == {"model": "demo:latest", "was_set": False}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"replica_min": 1}, "replica_min"),
        ({"replicas_min": "two"}, "replicas_min"),
        ({"replicas_max": 0}, "replicas_max"),
        ({"max_bytes": {"*": -1}}, "max_bytes.*"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"flash_attention": "maybe"}, "flash_attention"),
        ({"nodes": ["nowhere"]}, None),
    ],
)
async def test_what_makes_no_sense_is_refused_with_its_name(
    cluster: Cluster, body: dict[str, object], param: str | None
) -> None:
    answer = await cluster.http.put(f"{PAGE}/demo", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert next(iter(body)) in error["message"]
    assert cluster.scheduler.constraints == {}


@pytest.mark.parametrize("share", ["NaN", "Infinity", "1e999", "1e39", "-1", "null"])
@pytest.mark.parametrize("page", [f"{PAGE}/demo", "/puna/v1/models/demo/policy"])
async def test_a_share_that_is_no_number_reaches_nobody(cluster: Cluster, page: str, share: str) -> None:
    body = f'{{"devices": ["node-1/GPU-1"], "tensor_split": [{share}]}}'
    answer = await cluster.http.put(page, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"]
    assert cluster.scheduler.constraints == {}


async def test_names_with_slashes_and_models_that_no_node_has_yet_can_be_wanted(cluster: Cluster) -> None:
    await cluster.http.put(f"{PAGE}/hf.co/someone/model:q4", json={"preload": True})
    assert set(cluster.scheduler.constraints) == {"hf.co/someone/model:q4"}
    assert (await cluster.http.get(f"{PAGE}/hf.co/someone/model:q4")).json()["placements"] == []


async def test_explain_passes_the_question_on_and_shows_every_figure(cluster: Cluster) -> None:
    answer = await cluster.http.get("/puna/v1/explain?model=demo&num_ctx=4096&require_gpu=1&num_gpu=3")
    (asked,) = cluster.scheduler.explained
    assert (asked.context_tokens, asked.options.require_gpu, asked.options.num_gpu) == (4096, True, 3)
    assert not asked.last
    body = answer.json()
    assert (body["model"], body["outcome"], body["hypothetical"]) == ("demo:latest", "busy", True)
    (device,) = body["candidates"][0]["devices"]
    assert (device["need_bytes"], device["available_bytes"], device["free_source"]) == (700, 500, "nvml")
    posted = await cluster.http.post("/puna/v1/explain", json={"model": "demo", "last": True})
    assert posted.json()["hypothetical"] is False


@pytest.mark.parametrize("query", ["", "?model=", "?model=demo&num_ctx=many", "?model=demo&num_ctx=1"])
async def test_a_question_without_sense_is_refused(cluster: Cluster, query: str) -> None:
    answer = await cluster.http.get(f"/puna/v1/explain{query}")
    assert answer.status_code == 400
    assert cluster.scheduler.explained == []


@pytest.mark.parametrize(
    ("method", "path", "body", "text"),
    [
        ("POST", "explain", {"model": "demo", "slot": 2}, '"slot" is no field; did you mean slots?'),
        ("POST", "explain", {"modell": "demo"}, '"modell" is no field; did you mean model?'),
        (
            "POST",
            "explain",
            {"model": "m", "options": {"numctx": 9}},
            '"numctx" is no option; did you mean num_ctx?',
        ),
        ("POST", "load", {"model": "demo", "keepalive": 5}, '"keepalive" is no field; did you mean keep_alive?'),
        (
            "POST",
            "load",
            {"model": "m", "options": {"main-gpu": 1}},
            '"main-gpu" is no option; did you mean main_gpu?',
        ),
        ("POST", "unload", {"model": "demo", "force": True}, '"force" is no field'),
        ("POST", "devices/clear", {"device": "GPU-1", "all": True}, '"all" is no field'),
        ("POST", "tokenize", {"model": "demo", "message": []}, '"message" is no field; did you mean messages?'),
        ("POST", "detokenize", {"model": "demo", "token": [1]}, '"token" is no field; did you mean tokens?'),
        ("PUT", "aliases/fast", {"target": "demo"}, '"target" is no field'),
        ("PUT", "placements/demo", {"max_byte": {}}, '"max_byte" is no constraint; did you mean max_bytes?'),
        ("GET", "placements?modell=demo", None, '"modell" is no parameter; did you mean model?'),
        ("POST", "nodes/node-1/drain?budget=5", None, '"budget" is no parameter; did you mean budget_s?'),
    ],
)
async def test_a_misspelt_field_is_refused_and_the_right_one_named(
    cluster: Cluster, method: str, path: str, body: dict[str, object] | None, text: str
) -> None:
    answer = await cluster.http.request(method, f"/puna/v1/{path}", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["message"] == text
    assert error["param"] == text.split('"')[1]


async def test_a_load_tells_its_progress_and_ends_with_ready(start_cluster: StartCluster) -> None:
    scheduler = ScriptedScheduler()
    async with start_cluster(scheduler=scheduler, runner=ScriptedRunner(), warm=False) as cluster:
        body = {"model": "demo", "keep_alive": -1, "options": {"num_ctx": 256, "require_gpu": True}}
        answer = await cluster.http.post("/puna/v1/load", json=body)
        news = [orjson.loads(line) for line in answer.content.splitlines()]
        assert [line["status"] for line in news] == ["loading", "ready"]
        assert news[0]["fraction"] == 0.5
        (asked,) = scheduler.ensured
        assert (asked.context_tokens, asked.keep_alive_ms, asked.options.require_gpu) == (256, -1, True)
        assert asked.at_once
        again = await cluster.http.post("/puna/v1/load", json={"model": "demo"})
        assert again.json() == {"status": "ready"}
        assert (await cluster.http.post("/puna/v1/unload", json={"model": "demo"})).json()["replicas"] == 1
        assert (await cluster.http.post("/puna/v1/unload", json={"model": "nope"})).status_code == 404


async def test_requests_that_wait_for_a_slot_are_reported_until_none_does(start_cluster: StartCluster) -> None:
    runner, may_answer = ScriptedRunner(slots=1), asyncio.Event()

    async def hold(one: ScriptedRunner) -> None:
        await may_answer.wait()

    runner.before = hold
    async with start_cluster(runner=runner) as cluster:
        body = {"model": "demo", "prompt": "x", "stream": False}
        first = asyncio.create_task(cluster.http.post("/api/generate", json=body))
        await runner.started.wait()
        second = asyncio.create_task(cluster.http.post("/api/generate", json=body))
        queues = cluster.scheduler.queues
        await until(lambda: len(queues) >= 2, what="the wait is reported", deadline_s=20)
        (queue,) = queues[-1].queues
        assert (queue.model_name, queue.waiting) == ("demo:latest", 1)
        assert queue.oldest_wait_ms >= 500
        may_answer.set()
        assert [answer.status_code for answer in (await first, await second)] == [200, 200]
        await until(lambda: not queues[-1].queues, what="the end of the wait is reported", deadline_s=20)


async def test_what_runs_is_shown_without_a_scheduler(cluster: Cluster) -> None:
    await cluster.scheduler.stop()
    answer = await cluster.http.get(PAGE)
    assert answer.status_code == 200
    assert answer.json()["models"] is None
    assert len(answer.json()["placements"]) == 1
    refused = await cluster.http.put(f"{PAGE}/demo", json={"pinned": True})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_unavailable")


async def test_an_excluded_device_is_given_another_chance(cluster: Cluster) -> None:
    cleared = await cluster.http.post("/puna/v1/devices/clear", json={"device": "GPU-1"})
    assert (cleared.json()["node"], cleared.json()["id"], cleared.json()["state"]) == ("node-1", "GPU-1", "ok")
    refused = await cluster.http.post("/puna/v1/devices/clear", json={"device": "GPU-9"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "device_not_found")
    assert (await cluster.http.post("/puna/v1/devices/clear", json={})).status_code == 400


async def test_a_node_is_removed(cluster: Cluster) -> None:
    removed = await cluster.http.post("/puna/v1/nodes/node-1/remove")
    assert removed.json() == {"node": "node-1", "state": "removed", "lost_replicas": 1}
    assert (await cluster.http.post("/puna/v1/nodes/node-9/remove")).status_code == 404
    assert (await cluster.http.post("/puna/v1/nodes/node-9/remove", params={"absent": "true"})).status_code == 200
    strange = await cluster.http.post("/puna/v1/nodes/node-1/remove", params={"absent": "yes"})
    assert (strange.status_code, strange.json()["error"]["message"]) == (400, "absent must be true or false")


async def test_a_node_is_drained_and_put_back(cluster: Cluster) -> None:
    drained = await cluster.http.post("/puna/v1/nodes/node-1/drain", params={"budget_s": "20"})
    assert drained.json() == {"node": "node-1", "state": "draining", "draining_replicas": 1}
    assert cluster.scheduler.drained == {"node-1": 20_000}
    assert (await cluster.http.post("/puna/v1/nodes/node-1/undrain")).json() == {"node": "node-1", "state": "ready"}
    assert cluster.scheduler.drained == {}
    refused = await cluster.http.post("/puna/v1/nodes/node-9/drain")
    assert (refused.status_code, refused.json()["error"]["message"]) == (404, "no node is called 'node-9'")
    strange = await cluster.http.post("/puna/v1/nodes/node-1/drain", params={"budget_s": "soon"})
    assert strange.status_code == 400
    assert (await cluster.http.get("/puna/v1/nodes/node-1/drain")).status_code == 405
    assert (await cluster.http.post("/puna/v1/nodes/a/b/drain")).status_code == 404


async def test_names_of_hubs_with_slashes_are_names_like_others(start_cluster: StartCluster) -> None:
    name = "hf.co/somebody/Some-Model-GGUF:Q4_K_M"
    scheduler = ScriptedScheduler()
    scheduler.models[name] = scripted_model(name)
    async with start_cluster(scheduler=scheduler) as cluster:
        for path in (f"{PAGE}/{name}", f"{PAGE}/{quote(name, safe='')}"):
            put = await cluster.http.put(path, json={"policy": "spread"})
            assert (put.status_code, put.json()["model"]) == (200, name)
            assert (await cluster.http.get(path)).json()["constraints"] == {"policy": "spread"}
            assert (await cluster.http.delete(path)).json() == {"model": name, "was_set": True}
            assert (await cluster.http.get(f"/v1/models/{path.removeprefix(PAGE + '/')}")).json()["id"] == name
