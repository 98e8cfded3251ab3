"""One trace for one request, over every process that has a part in it, received by a real OTLP server."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import httpx
import pytest

from protos import inference_pb2, inference_pb2_grpc, runner_pb2
from tests.cluster import Cluster, start_cluster
from tests.waiting import wait_until

pytest.importorskip("opentelemetry.sdk", reason="the extra `tracing` is not installed")

from tests.otlp_receiver import Received, Receiver

CANARY = "walrus-7741"
COLLECTED_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Traced:
    cluster: Cluster
    receiver: Receiver


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    with Receiver() as receiver:
        cluster = start_cluster(
            tmp_path_factory.mktemp("traced") / "home",
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
            OTEL_EXPORTER_OTLP_HEADERS="x-collector-key=secret",
            OTEL_BSP_SCHEDULE_DELAY="100",
        )
        try:
            yield Traced(cluster=cluster, receiver=receiver)
        finally:
            cluster.stop()


def new_trace(*, sampled: bool = True) -> tuple[str, str, str]:
    """A caller's trace id, span id, and traceparent."""
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    return trace_id, span_id, f"00-{trace_id}-{span_id}-{'01' if sampled else '00'}"


def ask(cluster: Cluster, traceparent: str) -> None:
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": f"What is Puna? {CANARY}"}],
        "options": {"num_predict": 8, "temperature": 0},
        "stream": False,
    }
    answer = httpx.post(cluster.url + "/api/chat", json=body, headers={"traceparent": traceparent}, timeout=60)
    assert answer.status_code == 200


def collected(traced: Traced, trace_id: str, *names: str) -> dict[str, Received]:
    """The spans of a trace as "service name", once those named are there; none of them may be there twice."""

    def keyed() -> list[str]:
        return [f"{span.service} {span.name}" for span in traced.receiver.spans(trace_id)]

    wait_until(
        lambda: set(names) <= set(keyed()), deadline_s=COLLECTED_S, what=f"spans of the trace: {names}, not {keyed()}"
    )
    spans = traced.receiver.spans(trace_id)
    return {f"{span.service} {span.name}": span for span in reversed(spans)}


def assert_parents(spans: dict[str, Received]) -> None:
    for child, parent in PARENTS.items():
        if child in spans:
            assert spans[child].parent_id == spans[parent].span_id, (child, parent)


PARENTS = {
    "puna-gateway render": "puna-gateway request",
    "puna-gateway queue": "puna-gateway request",
    "puna-gateway attempt": "puna-gateway request",
    "puna-scheduler ensure": "puna-gateway queue",
    "puna-scheduler measure": "puna-scheduler ensure",
    "puna-scheduler load": "puna-scheduler ensure",
    "puna-host measure": "puna-scheduler measure",
    "puna-host start": "puna-scheduler load",
    "puna-runner generate": "puna-gateway attempt",
    "puna-runner prompt": "puna-runner generate",
    "puna-runner decode": "puna-runner generate",
}


def test_a_cold_request_is_one_trace_over_gateway_scheduler_host_and_runner(traced: Traced) -> None:
    trace_id, caller, traceparent = new_trace()
    traced.cluster.post("/puna/v1/unload", {"model": "demo"})
    wait_until(lambda: not traced.cluster.runners(), deadline_s=20, what="nothing is loaded")
    ask(traced.cluster, traceparent)
    spans = collected(
        traced, trace_id, "puna-gateway request", *(set(PARENTS) - {"puna-scheduler measure", "puna-host measure"})
    )
    request = spans["puna-gateway request"]
    assert request.parent_id == caller
    assert_parents(spans)
    assert {span.service for span in spans.values()} == {
        "puna-gateway",
        "puna-scheduler",
        "puna-host",
        "puna-runner",
    }
    assert request.attributes["gen_ai.request.model"] == "demo:latest"
    assert request.attributes["http.route"] == "/api/chat"
    assert request.attributes["http.response.status_code"] == 200
    generate, load = spans["puna-runner generate"], spans["puna-scheduler load"]
    assert generate.attributes["puna.placement"] == load.attributes["puna.placement"]
    assert generate.attributes["gen_ai.usage.output_tokens"] == request.attributes["gen_ai.usage.output_tokens"] > 0
    for part in ("queue", "attempt", "render"):
        span = spans[f"puna-gateway {part}"]
        assert request.start_ns <= span.start_ns <= span.end_ns <= request.end_ns
    assert load.start_ns <= spans["puna-gateway attempt"].start_ns


def test_a_grpc_caller_is_the_parent_too(traced: Traced) -> None:
    trace_id, caller, traceparent = new_trace()
    request = inference_pb2.ChatRequest(
        model="demo",
        messages=[inference_pb2.ChatMessage(role="user", content="What is Puna?")],
        options=inference_pb2.AnswerOptions(sampling=runner_pb2.Sampling(temperature=0)),
    )
    with grpc.insecure_channel(f"127.0.0.1:{traced.cluster.grpc_port}") as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        assert list(stub.Chat(request, metadata=(("traceparent", traceparent),), timeout=60))
    spans = collected(traced, trace_id, "puna-gateway request", "puna-runner generate", "puna-runner decode")
    assert spans["puna-gateway request"].parent_id == caller
    assert spans["puna-gateway request"].attributes["http.route"] == "Chat"
    assert_parents(spans)


def test_what_the_caller_does_not_sample_is_not_sent_and_errors_are_marked(traced: Traced) -> None:
    silent, _, traceparent = new_trace(sampled=False)
    ask(traced.cluster, traceparent)
    failed, _, traceparent = new_trace()
    body = {"model": f"none-{CANARY}", "messages": []}
    answer = httpx.post(traced.cluster.url + "/api/chat", json=body, headers={"traceparent": traceparent}, timeout=60)
    assert answer.status_code == 404
    request = collected(traced, failed, "puna-gateway request")["puna-gateway request"]
    assert request.failed == request.attributes["puna.outcome"] == "model_not_found"
    assert traced.receiver.spans(silent) == []


def test_pages_of_machines_make_no_spans_and_no_span_has_a_prompt(traced: Traced) -> None:
    for path in ("/healthz", "/metrics", "/readyz", "/puna/v1/targets"):
        httpx.get(traced.cluster.url + path, timeout=60)
    trace_id, _, traceparent = new_trace()
    ask(traced.cluster, traceparent)
    collected(traced, trace_id, "puna-gateway request", "puna-runner generate")
    spans = traced.receiver.spans()
    routes = {span.attributes.get("http.route") for span in spans}
    assert routes.isdisjoint({"/healthz", "/metrics", "/readyz", "/puna/v1/targets"})
    assert CANARY.encode() not in b"".join(traced.receiver.raw)
    assert b"x-collector-key" not in b"".join(traced.receiver.raw)
