"""The OpenAPI document is true: what each route answers has a status, a media type and a form that stand in it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.http.endpoint.router import ANY_METHOD, Route
from gateway.http.openapi import errors_of
from gateway.http.routes import make_routes
from protos import scheduler_pb2
from tests.integration.gateway.conftest import Cluster, StartCluster
from tests.integration.gateway.scripted import ScriptedRunner, ScriptedScheduler, scripted_model
from tests.openapi_answers import fault_of

MESSAGES = [{"role": "user", "content": "x"}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
PLAIN = {"model": "demo", "stream": False}
# A request for each route that answers with JSON. Where a route answers in several forms, one for each.
GOOD: dict[str, list[Any]] = {
    "PUT /puna/v1/aliases/{alias}": [{"model": "demo"}],  # what lists models shows it from here on
    "POST /api/generate": [
        {**PLAIN, "prompt": "x"},
        {**PLAIN, "prompt": "x", "logprobs": True, "top_logprobs": 2},
        {**PLAIN, "prompt": ""},
        {**PLAIN, "prompt": "x", "_debug_render_only": True},
        {**PLAIN, "prompt": "x", "raw": True, "options": {"num_predict": 1}},
    ],
    "POST /api/chat": [
        {**PLAIN, "messages": MESSAGES},
        {**PLAIN, "messages": MESSAGES, "logprobs": True, "tools": TOOLS},
        {**PLAIN, "messages": []},
    ],
    "POST /api/embed": [{"model": "embedder", "input": ["x", "y"]}, {"model": "embedder", "input": ""}],
    "POST /api/embeddings": [{"model": "embedder", "prompt": "x"}],
    "GET /api/tags": [None],
    "GET /api/ps": [None],
    "POST /api/show": [{"model": "demo"}, {"model": "demo", "verbose": True}, {"model": "embedder"}],
    "GET /api/version": [None],
    "GET /api/status": [None],
    "POST /v1/chat/completions": [
        {**PLAIN, "messages": MESSAGES},
        {**PLAIN, "messages": MESSAGES, "logprobs": True, "top_logprobs": 3, "n": 2},
    ],
    "POST /v1/completions": [{**PLAIN, "prompt": ["x", "y"], "logprobs": 2}, {**PLAIN, "prompt": "x", "echo": True}],
    "POST /v1/responses": [
        {**PLAIN, "input": "x"},
        {**PLAIN, "input": "x", "top_logprobs": 1, "include": ["message.output_text.logprobs"], "metadata": {"a": "b"}},
    ],
    "POST /v1/responses/input_tokens": [{"model": "demo", "input": "x"}],
    "POST /v1/responses/compact": [{"model": "demo", "input": "x"}],
    "POST /v1/embeddings": [
        {"model": "embedder", "input": ["x", "y"]},
        {"model": "embedder", "input": "x", "encoding_format": "base64"},
    ],
    "POST /v1/rerank": [{"model": "ranker", "query": "x", "documents": ["y"], "return_documents": True}],
    "GET /v1/models": [None],
    "GET /v1/models/{id}": [None],
    "POST /v1/messages": [{**PLAIN, "messages": MESSAGES, "max_tokens": 5}],
    "POST /v1/messages/count_tokens": [{"model": "demo", "messages": MESSAGES}],
    **{f"GET {path}": [None] for path in ("/healthz", "/health", "/v1/health")},
    "GET /readyz": [None],
    "GET /puna/v1/targets": [None],
    "GET /puna/v1/config": [None],
    "GET /puna/v1/nodes": [None],
    "GET /puna/v1/placements": [None],
    "GET /puna/v1/placements/{model}": [None],
    "PUT /puna/v1/placements/{model}": [
        {"nodes": ["node-1"], "keep_alive": "5m", "max_bytes": {"*": 5}, "flash_attention": "on"}
    ],
    "DELETE /puna/v1/placements/{model}": [None],
    "GET /puna/v1/explain": [None],
    "POST /puna/v1/explain": [{"model": "demo"}],
    "POST /puna/v1/explain/prompt": [{"model": "demo", "text": "x"}, {"model": "demo", "messages": MESSAGES}],
    "POST /puna/v1/unload": [{"model": "demo"}],
    "POST /puna/v1/devices/clear": [{"device": "GPU-1"}],
    "POST /puna/v1/nodes/{node}/drain": [None],
    "POST /puna/v1/nodes/{node}/undrain": [None],
    "POST /puna/v1/nodes/{node}/remove": [None],
    "POST /puna/v1/tokenize": [{"model": "demo", "text": "x"}, {"model": "demo", "messages": MESSAGES}],
    "POST /puna/v1/detokenize": [{"model": "demo", "tokens": [1, 2]}],
    "GET /puna/v1/queue": [None],
    "GET /puna/v1/models/{model}/policy": [None],
    "PUT /puna/v1/models/{model}/policy": [{"pinned": True}],
    "GET /puna/v1/whoami": [None],
    "GET /puna/v1/aliases": [None],
    "DELETE /puna/v1/aliases/{alias}": [None],
}  # fmt: skip
GOOD |= {f"POST {path}": GOOD["POST /v1/rerank"] for path in ("/v2/rerank", "/rerank")}
VALUES = {"{model}": "demo", "{id}": "demo", "{node}": "node-1", "{alias}": "fast"}
QUERIES = {"GET /puna/v1/explain": "?model=demo"}
# With these, what is shown is tested where there are nodes with stores, or keys.
ELSEWHERE = {
    "POST /api/pull", "POST /api/create", "GET /puna/v1/keys", "POST /puna/v1/keys", "GET /puna/v1/keys/{id}",
    "DELETE /puna/v1/keys/{id}", "POST /puna/v1/states/forget",
}  # fmt: skip


@pytest.fixture
async def cluster(start_cluster: StartCluster) -> AsyncIterator[Cluster]:
    runner = ScriptedRunner()
    scheduler = ScriptedScheduler(
        models={
            "demo:latest": scripted_model("demo:latest"),
            "embedder:latest": scripted_model("embedder:latest", capabilities=["embedding"], chat_template=""),
            "ranker:latest": scripted_model("ranker:latest", capabilities=["rerank"], chat_template=""),
        }
    )
    scheduler.replicas |= {"embedder:latest": [runner], "ranker:latest": [runner]}
    async with start_cluster(scheduler=scheduler, runner=runner) as running:
        yield running


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


async def test_a_good_answer_of_every_route_has_the_form_that_is_described(cluster: Cluster) -> None:
    document = (await cluster.http.get("/openapi.json")).json()
    described = [route for route in make_routes(cluster.gateway.service) if route.response is not None]
    names = {name_of(route) for route in described if route.method != "HEAD"}
    assert names == GOOD.keys() | ELSEWHERE, "every route has a request here"
    faults = []
    for name, bodies in GOOD.items():
        method, path = name.split(" ")
        url = path + QUERIES.get(name, "")
        for placeholder, value in VALUES.items():
            url = url.replace(placeholder, value)
        for body in bodies:
            for headers in ({}, {"x-puna-debug": "1"}, {"anthropic-version": "2023-06-01"}):
                answer = await cluster.http.request(method, url, json=body, headers=headers)
                assert answer.status_code == 200, (name, answer.text)
                kind = answer.headers["content-type"]
                assert kind == "application/json"
                if fault := fault_of(document, method, path, answer.status_code, kind, answer.content):
                    faults.append(f"{name}: {fault}")
    assert faults == []


async def test_what_is_not_described_is_not_found_good() -> None:
    """The check itself: a missing field, a strange one, a wrong type, another status."""
    document = {
        "paths": {"/x": {"get": {"responses": {"200": {"content": {"application/json": {"schema": {
            "type": "object", "required": ["a"], "additionalProperties": False,
            "properties": {"a": {"type": "integer"}},
        }}}}}}}},
        "components": {},
    }  # fmt: skip
    assert fault_of(document, "GET", "/x", 200, "application/json", b'{"a":1}') == ""
    for content in (b"{}", b'{"a":1,"b":2}', b'{"a":"1"}'):
        assert fault_of(document, "GET", "/x", 200, "application/json", content)
    assert fault_of(document, "GET", "/x", 404, "application/json", b"{}")
    assert fault_of(document, "GET", "/x", 200, "text/plain", b"{}")


async def test_readiness_says_why_not_in_a_form_that_is_described(cluster: Cluster) -> None:
    document = (await cluster.http.get("/openapi.json")).json()
    routes = cluster.gateway.service.inference.models.routes
    routes.heard = False
    routes.take(scheduler_pb2.RouteTable())
    answer = await cluster.http.get("/readyz")
    assert (answer.status_code, answer.json()) == (503, {"status": "no_routes"})
    assert fault_of(document, "GET", "/readyz", 503, answer.headers["content-type"], answer.content) == ""


async def test_every_error_is_described_and_none_is_left_to_a_default(cluster: Cluster) -> None:
    document = (await cluster.http.get("/openapi.json")).json()
    for route in make_routes(cluster.gateway.service):
        if route.method == ANY_METHOD:
            assert route.path not in document["paths"]
            continue
        responses = document["paths"][route.path][route.method.lower()]["responses"]
        assert "default" not in responses
        assert {"400", "403", "500"} <= responses.keys()
        assert not route.scope or {"401", "403", "429"} <= responses.keys()
        assert not route.body or {"413", "415"} <= responses.keys()
        named = {reason for answer in responses.values() for reason in answer["description"].split(", ")}
        said_otherwise = {"model_not_found"} if 404 in route.statuses else set()  # by an answer without a body
        assert {error.reason for error in errors_of(route)} - named <= said_otherwise, name_of(route)
