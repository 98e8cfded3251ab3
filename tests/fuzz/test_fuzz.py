"""A short fuzz of every route with fixed seeds. `make fuzz` runs the same for longer, and says how much it tried.

The counts and the slowest refusal are properties of each test in pytest's report; `tests.faults.bars` reads them.

FUZZ_CASES is the number of cases of the OpenAPI document, FUZZ_RAW of raw requests, FUZZ_GRPC of gRPC messages for each
method, FUZZ_SEED where to begin.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import grpc
import httpx
import pytest
from google.protobuf import json_format, message_factory
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from gateway.grpc.inference_servicer import SERVICE_NAME
from protos import inference_pb2
from tests.fuzz.answers import Answer, Answers
from tests.fuzz.openapi_cases import fuzz_openapi
from tests.fuzz.raw_bytes import mutated, request_bytes, send_raw
from tests.gateway_process import GatewayProcess, gateway_process

CASES = int(os.environ.get("FUZZ_CASES", "100"))
RAW_CASES = int(os.environ.get("FUZZ_RAW", "400"))
GRPC_CASES = int(os.environ.get("FUZZ_GRPC", "30"))
SEED = int(os.environ.get("FUZZ_SEED", "20260101"))
RSS_MORE_BYTES_MAX = 150 * 2**20
SERVICE = inference_pb2.DESCRIPTOR.services_by_name[SERVICE_NAME.rpartition(".")[2]]
# Bodies that begin well, so that changes reach what is behind the first check.
BODIES: dict[str, object] = {
    "/api/chat": {"model": "demo", "messages": [{"role": "user", "content": "x"}], "stream": False},
    "/api/generate": {"model": "demo", "prompt": "x", "options": {"num_predict": 3}},
    "/v1/chat/completions": {"model": "demo", "messages": [{"role": "user", "content": "x"}], "n": 2},
    "/v1/completions": {"model": "demo", "prompt": ["x", "y"]},
    "/v1/responses": {
        "model": "demo",
        "input": [
            {"type": "message", "role": "user", "content": "x"},
            {"type": "compaction", "encrypted_content": "x"},
        ],
        "tools": [
            {
                "type": "custom",
                "name": "x",
                "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x/"},
            },
            {"type": "namespace", "name": "y", "tools": [{"type": "function", "name": "z"}]},
        ],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "custom", "name": "x"}]},
    },
    "/v1/responses/input_tokens": {"model": "demo", "input": "x"},
    "/v1/responses/compact": {"model": "demo", "input": "x"},
    "/v1/messages": {"model": "demo", "max_tokens": 3, "messages": [{"role": "user", "content": "x"}]},
    "/api/embed": {"model": "embedder", "input": ["x"]},
    "/v1/embeddings": {"model": "embedder", "input": "x"},
    "/v1/rerank": {"model": "embedder", "query": "x", "documents": ["y"]},
    "/api/show": {"model": "demo"},
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway_process(tmp_path_factory.mktemp("fuzz"), request_timeout_s="20") as running:
        yield running


def routes_of(gateway: GatewayProcess) -> list[tuple[str, str]]:
    paths = httpx.get(gateway.url + "/openapi.json", timeout=60).json()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


Record = Callable[[str, object], None]


def finish(what: str, report: Answers, record: Record) -> None:
    """Report the counts, and fail if an answer was wrong."""
    print(f"{what}: {report}")
    record(f"{'grpc' if what.startswith('grpc') else 'http'}_cases", report.cases)
    record("slowest_refusal_s", round(report.slowest_refusal_s, 3))
    assert report.faults == [], "\n".join(sorted(set(report.faults))[:20])


def check_alive(gateway: GatewayProcess, rss_before: int) -> None:
    assert gateway.is_alive()
    assert httpx.get(gateway.url + "/healthz", timeout=10).status_code == 200
    log = gateway.log.read_text()
    assert "http.bug" not in log, log[log.index("http.bug") - 300 :][:3000]
    assert "answer.bug" not in log, log[log.index("answer.bug") - 300 :][:3000]
    assert gateway.rss_bytes() - rss_before <= RSS_MORE_BYTES_MAX


def test_openapi_cases_are_answered_as_the_document_says(gateway: GatewayProcess, record_property: Record) -> None:
    before = gateway.rss_bytes()
    per_route = max(2, -(-CASES // len([method for method, _ in routes_of(gateway) if method in ("POST", "PUT")])))
    report, rounds = Answers(), 0
    while report.cases < CASES:  # the same case is made once in a round
        fuzz_openapi(gateway.url, report, cases_per_route=per_route, fixed_seed=SEED + rounds)
        rounds += 1
    finish(f"openapi, seed {SEED}", report, record_property)
    check_alive(gateway, before)


def test_changed_bytes_are_answered_or_closed(gateway: GatewayProcess, record_property: Record) -> None:
    before, report = gateway.rss_bytes(), Answers()
    routes = routes_of(gateway)
    for number in range(RAW_CASES):
        method, path = routes[number % len(routes)]
        good = request_bytes(method, path, BODIES.get(path, {}) if method in ("POST", "PUT") else None)
        request = mutated(good, random.Random(SEED + number))
        report.take(lambda request=request: send_raw(gateway.host, gateway.port, request))  # type: ignore[misc]
    finish(f"raw, seeds {SEED} to {SEED + RAW_CASES - 1}", report, record_property)
    check_alive(gateway, before)


@pytest.mark.parametrize("method", [method.name for method in SERVICE.methods])
def test_grpc_messages_are_never_internal(gateway: GatewayProcess, method: str, record_property: Record) -> None:
    before, report, rounds = gateway.rss_bytes(), Answers(), 0
    kind = message_factory.GetMessageClass(SERVICE.methods_by_name[method].input_type)
    with grpc.insecure_channel(gateway.grpc_address) as channel:
        path = f"/{SERVICE_NAME}/{method}"
        call = channel.unary_stream(path, request_serializer=bytes, response_deserializer=bytes)

        @settings(
            max_examples=GRPC_CASES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(message=st.binary(max_size=200) | messages(kind) | messages(kind).flatmap(cut))
        def run(message: bytes) -> None:
            report.take(lambda: send_message(call, message))

        while report.cases < GRPC_CASES:  # the same message is made once in a round
            seed(SEED + rounds)(run)()
            rounds += 1
    finish(f"grpc {method}, seed {SEED}", report, record_property)
    check_alive(gateway, before)


def send_message(call: Any, message: bytes) -> Answer:
    """One message, and its answer to the end."""
    begun_s, code, details = time.monotonic(), grpc.StatusCode.OK, ""
    try:
        for _ in call(message, timeout=20):
            pass
    except grpc.RpcError as error:
        code, details = cast("Any", error).code(), cast("Any", error).details()
    is_bug = code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
    return Answer(
        status=code.name,
        is_refused=code is not grpc.StatusCode.OK,
        took_s=time.monotonic() - begun_s,
        request=repr(message),
        fault=f"{code.name}: {details}" if is_bug else "",
    )


def messages(kind: Any) -> st.SearchStrategy[bytes]:
    """Bytes of messages whose fields are of the right types, filled at random."""
    return st.randoms(use_true_random=False).map(lambda chance: filled(kind, chance, 4).SerializeToString())


def cut(message: bytes) -> st.SearchStrategy[bytes]:
    return st.integers(0, len(message)).map(lambda end: message[:end])


def filled(kind: Any, chance: random.Random, depth: int) -> Any:
    """A message with about half of its fields."""
    message = kind()
    for one in kind.DESCRIPTOR.fields:
        if chance.random() < 0.5:
            continue
        if one.message_type is not None and one.message_type.GetOptions().map_entry:
            continue
        if one.message_type is not None:
            if depth == 0:
                continue
            inner = filled(message_factory.GetMessageClass(one.message_type), chance, depth - 1)
            if one.is_repeated:
                getattr(message, one.name).append(inner)
            else:
                getattr(message, one.name).CopyFrom(inner)
        elif one.is_repeated:
            getattr(message, one.name).extend(value(one, chance) for _ in range(chance.randint(0, 3)))
        else:
            setattr(message, one.name, value(one, chance))
    json_format.MessageToDict(message)  # what was made is a message
    return message


def value(one: Any, chance: random.Random) -> Any:
    """A value of a scalar field, odd ones too."""
    if one.enum_type is not None:
        return chance.choice([0, 1, 2, 99])
    match one.cpp_type:
        case one.CPPTYPE_STRING:
            text = chance.choice(["", "demo", "embedder", "user", "x", "\0", "\u202e", "a" * 300, "{", "../x"])
            return text.encode() if one.type == one.TYPE_BYTES else text
        case one.CPPTYPE_BOOL:
            return chance.random() < 0.5
        case one.CPPTYPE_FLOAT | one.CPPTYPE_DOUBLE:
            return chance.choice([0.0, -1.0, 0.5, 1e30, float("nan"), float("inf")])
        case one.CPPTYPE_UINT32 | one.CPPTYPE_UINT64:
            return chance.choice([0, 1, 5, 2**31, 2**32 - 1])
    return chance.choice([0, 1, -1, 5, 2**31 - 1, -(2**31)])
