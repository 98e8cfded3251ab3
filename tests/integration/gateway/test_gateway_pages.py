"""Lists, health, metrics, nodes, placements, the OpenAPI document."""

import asyncio
from typing import Any

import pytest

from gateway.http.endpoint.router import ANY_METHOD
from gateway.http.ollama.models import OLLAMA_VERSION
from gateway.http.routes import make_routes
from protos import scheduler_pb2
from tests.integration.gateway.conftest import Cluster, StartCluster, eventually, read_alone
from tests.integration.gateway.scripted import MODEL_NAME, ScriptedRunner, scripted_model

QUESTION: Any = [{"role": "user", "content": "What is Puna?"}]


async def test_the_root_says_what_clients_look_for(cluster: Cluster) -> None:
    assert (await cluster.http.get("/")).text == "Ollama is running"
    head = await cluster.http.head("/")
    assert (head.status_code, head.content) == (200, b"")


async def test_versions(cluster: Cluster) -> None:
    version = (await cluster.http.get("/api/version")).json()
    assert version["version"] == OLLAMA_VERSION == "0.33.0"
    assert version["puna"] == cluster.gateway.service.version


async def test_tags_list_every_model(cluster: Cluster) -> None:
    (model,) = (await cluster.ollama.list()).models
    assert (model.model, model.size, model.digest) == (MODEL_NAME, 4_000_000, "ab" * 32)
    assert model.details is not None
    assert (model.details.family, model.details.parameter_size) == ("llama", "3.2M")
    assert model.details.quantization_level == "Q8_0"
    assert model.modified_at is not None
    assert model.modified_at.timestamp() == 1_700_000_000


async def test_ps_shows_measured_bytes_and_replicas(cluster: Cluster) -> None:
    (model,) = (await cluster.ollama.ps()).models
    assert (model.model, model.size, model.size_vram, model.context_length) == (MODEL_NAME, 123, 120, 512)
    raw = (await cluster.http.get("/api/ps")).json()["models"][0]["replicas"][0]
    assert (raw["state"], raw["slots_total"], raw["node"]) == ("ready", 4, "node-1")
    assert raw["devices"][0] == {"node": "node-1", "id": "GPU-1", "name": "Test GPU", "layers": 5, "bytes": 120}
    assert raw["devices"][1]["id"] == "host"


async def test_show_has_template_details_and_keys(cluster: Cluster) -> None:
    shown = await cluster.ollama.show("demo")
    assert shown.template is not None
    assert "<|im_start|>" in shown.template
    assert shown.capabilities == ["completion", "tools"]
    assert shown.modelinfo is not None
    assert shown.modelinfo["general.architecture"] == "llama"
    assert (await cluster.http.post("/api/show", json={"name": "demo"})).status_code == 200
    missing = await cluster.http.post("/api/show", json={"model": "nope"})
    assert (missing.status_code, missing.json()) == (404, {"error": "model 'nope' not found"})


async def test_openai_lists_models_and_finds_one_by_any_spelling(cluster: Cluster) -> None:
    cluster.scheduler.models["team/other:q4"] = scripted_model("team/other:q4")
    await cluster.scheduler.publish()
    await eventually(lambda: len(cluster.gateway.service.inference.models.routes.all()) == 2)
    listed = [model.id async for model in cluster.openai.models.list()]
    assert sorted(listed) == ["demo", "team/other:q4"]
    assert (await cluster.openai.models.retrieve("demo:latest")).id == "demo:latest"
    assert (await cluster.http.get("/v1/models/team/other:q4")).json()["id"] == "team/other:q4"
    assert (await cluster.http.get("/v1/models/nope")).status_code == 404


async def test_health_and_readiness(start_cluster: StartCluster) -> None:
    async with start_cluster() as cluster:
        assert (await cluster.http.get("/healthz")).json() == {"status": "ok"}
        assert (await cluster.http.get("/readyz")).json() == {"status": "ok"}
        routes = cluster.gateway.service.inference.models.routes
        routes.heard = False  # as if those that it has were an earlier gateway's
        assert (await cluster.http.get("/readyz")).json() == {"status": "ok"}
        routes.take(scheduler_pb2.RouteTable())
        unready = await cluster.http.get("/readyz")
        assert (unready.status_code, unready.json()) == (503, {"status": "no_routes"})


async def test_metrics_count_requests_and_tokens_by_known_models_only(cluster: Cluster) -> None:
    before = await metrics_of(cluster)
    await read_alone(cluster.runner, cluster.ollama.chat(model="demo", messages=QUESTION, stream=True))
    for index in range(3):
        await cluster.http.post("/api/chat", json={"model": f"invented-{index}", "messages": QUESTION})
    after = await metrics_of(cluster)

    def grown(sample: str) -> float:
        return after.get(sample, 0.0) - before.get(sample, 0.0)

    labels = 'dialect="ollama",model="{}",outcome="{}",route="/api/chat",status="{}"'
    async with asyncio.timeout(60):  # counted after the response is out
        while grown(f"puna_gateway_requests_total{{{labels.format('other', 'model_not_found', 404)}}}") < 3:
            after = await metrics_of(cluster)
    assert grown(f"puna_gateway_requests_total{{{labels.format(MODEL_NAME, 'ok', 200)}}}") == 1
    assert grown(f"puna_gateway_requests_total{{{labels.format('other', 'model_not_found', 404)}}}") == 3
    assert grown(f'puna_gateway_tokens_total{{kind="out",model="{MODEL_NAME}"}}') == 5
    assert grown(f'puna_gateway_tokens_total{{kind="cached",model="{MODEL_NAME}"}}') == 1
    assert grown(f'puna_gateway_first_token_seconds_count{{dialect="ollama",model="{MODEL_NAME}"}}') == 1
    assert grown(f'puna_gateway_inter_token_seconds_count{{model="{MODEL_NAME}"}}') == 3
    assert grown(f'puna_gateway_queue_seconds_count{{model="{MODEL_NAME}"}}') == 1
    assert not any("invented" in sample for sample in after)


async def test_queues_and_replicas_are_shown_for_every_model_of_the_routes(cluster: Cluster) -> None:
    shown = await metrics_of(cluster)
    model = f'model="{MODEL_NAME}"'
    assert shown[f"puna_gateway_queue_depth{{{model}}}"] == 0
    assert shown[f"puna_gateway_queue_oldest_seconds{{{model}}}"] == 0
    states = {state: shown[f'puna_gateway_replicas{{{model},state="{state}"}}'] for state in ("ready", "draining")}
    assert states == {"ready": 1, "draining": 0}
    assert shown["puna_gateway_queue_limit"] == 512
    assert 0 <= shown["puna_gateway_routes_age_seconds"] < 600
    assert 0 <= shown[f"puna_gateway_report_age_seconds{{{model}}}"] < 600


async def test_prometheus_finds_what_the_scheduler_knows(cluster: Cluster) -> None:
    answer = await cluster.http.get("/puna/v1/targets")
    assert answer.headers["content-type"] == "application/json"
    groups = answer.json()
    assert all(set(group) == {"targets", "labels"} for group in groups)
    assert all(isinstance(value, str) for group in groups for value in group["labels"].values())
    await cluster.scheduler.stop()
    gone = await cluster.http.get("/puna/v1/targets")
    assert gone.status_code == 503
    assert cluster.scheduler.address not in gone.text


async def metrics_of(cluster: Cluster) -> dict[str, float]:
    """Every sample of the Prometheus page."""
    page = (await cluster.http.get("/metrics")).text
    samples: dict[str, float] = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            head, _, labels = name.partition("{")
            samples[f"{head}{{{','.join(sorted(labels[:-1].split(',')))}}}" if labels else head] = float(value)
    return samples


async def test_one_line_per_request_says_what_happened(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    answer = await cluster.http.post("/api/chat", json={"model": "demo", "messages": QUESTION, "stream": False})
    lines: list[str] = []

    def is_written() -> bool:  # after the response is out
        lines.extend(line for line in "".join(capsys.readouterr()).splitlines() if "request.ended" in line)
        return bool(lines)

    await eventually(is_written)
    assert len(lines) == 1
    for part in (
        answer.headers["x-request-id"],
        "completion_tokens=5",
        "status=200",
        f"model={MODEL_NAME}",
        "first_token_ms=",
        "route=/api/chat",
    ):
        assert part in lines[0]
    assert "What is Puna?" not in "".join(lines)


async def test_nodes_and_placements(cluster: Cluster) -> None:
    (node,) = (await cluster.http.get("/puna/v1/nodes")).json()["nodes"]
    assert (node["id"], node["state"]) == ("node-1", "ready")
    assert node["ram"] == {"total": 1000, "free": 400, "source": "meminfo", "swap_total": 200, "swap_free": 150}
    device = node["devices"][0]
    assert {
        "state",
        "state_reason",
        "trust",
        "promised_bytes",
        "reserve_bytes",
        "class",
        "speed_bytes_s",
    } <= device.keys()
    (placement,) = (await cluster.http.get("/puna/v1/placements?model=demo")).json()["placements"]
    assert placement["id"] == cluster.runner.placement.placement_id
    assert (placement["state"], placement["measured_bytes"]) == ("ready", {"GPU-1": 120})
    assert (await cluster.http.get("/puna/v1/placements?model=nope")).status_code == 404


async def test_busy_slots_are_shown_live(start_cluster: StartCluster) -> None:
    gate = asyncio.Event()

    async def hold(_: ScriptedRunner) -> None:
        await gate.wait()

    async with start_cluster(runner=ScriptedRunner(before=hold)) as cluster:
        running = asyncio.create_task(cluster.ollama.chat(model="demo", messages=QUESTION))
        await asyncio.wait_for(cluster.runner.started.wait(), 60)
        pool = cluster.gateway.service.inference.dispatcher.pool
        key = cluster.gateway.service.inference.models.known_route("demo").replicas[0].key

        def reported_busy() -> int:
            load = pool.load_of(key)
            return load.slots_busy if load else 0

        await eventually(lambda: reported_busy() == 1)
        (placement,) = (await cluster.http.get("/puna/v1/placements")).json()["placements"]
        assert placement["slots_busy"] == 1
        gate.set()
        await running


async def test_the_openapi_document_has_every_route_and_its_body(cluster: Cluster) -> None:
    document = (await cluster.http.get("/openapi.json")).json()
    routes = make_routes(cluster.gateway.service)
    assert {(path, method.upper()) for path, methods in document["paths"].items() for method in methods} >= {
        (route.path, route.method)
        for route in routes
        if route.method not in ("HEAD", ANY_METHOD) and route.path != "/openapi.json"
    }
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = document["components"]["schemas"][body["$ref"].rpartition("/")[2]]
    assert schema["required"] == ["model", "messages"]
    assert {"type": "number", "minimum": 0, "maximum": 2} in schema["properties"]["temperature"]["anyOf"]
    assert document["paths"]["/v1/models"]["get"]["security"] == [
        {"bearer": ["models:read"]},
        {"api_key": ["models:read"]},
    ]
    assert document["paths"]["/healthz"]["get"]["security"] == []
    references = [part.split('"')[0] for part in str(document).replace("'", '"').split("#/components/schemas/")[1:]]
    assert set(references) <= set(document["components"]["schemas"])
