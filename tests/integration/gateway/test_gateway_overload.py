"""Load shedding by a gateway with too much to do, over real connections."""

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
from grpc import aio
from prometheus_client import REGISTRY

from common.errors import QueueFull
from gateway.core.dispatch import shedding
from gateway.core.dispatch.admission import BUSY_TEXT
from gateway.core.dispatch.work_limit import BYTES_OF_A_UNIT, LIMIT_MAX
from gateway.http.endpoint.router import Route
from gateway.http.server.connections import CONNECTIONS
from gateway.http.server.refusals import UNREAD_BYTES_MAX
from gateway.pressure.pressure import PRESSURE
from gateway.pressure.work import WORK
from protos import inference_pb2, inference_pb2_grpc
from tests.integration.gateway.conftest import Cluster, StartCluster, eventually
from tests.integration.gateway.scripted import MODEL_NAME, ScriptedRunner

QUESTION = [{"role": "user", "content": "What is Puna?"}]
BODY = {"model": "demo", "messages": QUESTION, "stream": False}
LARGE = BODY | {"messages": [{"role": "user", "content": "x" * (2 * BYTES_OF_A_UNIT)}]}
LIMITED = {
    "/v1/chat/completions": 429, "/v1/completions": 429, "/v1/responses": 429, "/v1/embeddings": 429,
    "/v1/messages": 529, "/v1/messages/count_tokens": 529,
    "/api/chat": 503, "/api/generate": 503, "/api/embed": 503,
}  # fmt: skip


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Requests of another tenant are in preparation, and the limit does not move."""
    monkeypatch.setattr(WORK.__class__, "_look", lambda *_: None)
    WORK.limit, WORK.in_progress, WORK.by_tenant["127.0.0.1"] = 4.0, 4, 4
    yield
    WORK.limit, WORK.in_progress, WORK.refused = LIMIT_MAX, WORK.in_progress - 4, 0
    WORK.by_tenant.clear()


@pytest.mark.parametrize(("path", "status"), LIMITED.items())
async def test_an_overloaded_gateway_refuses_in_each_dialect(
    cluster: Cluster, full: None, path: str, status: int
) -> None:
    for headers in ({}, {"origin": "http://localhost"}):  # refused from its head, refused after it was parsed
        refused = await cluster.http.post(path, json=BODY, headers=headers)
        assert refused.status_code == status
        assert int(refused.headers["retry-after"]) in {1, 2, 3}
        assert refused.headers["x-request-id"].startswith("req_")
        error = refused.json()["error"]
        if status == 529:
            assert (error["type"], refused.json()["request_id"]) == ("overloaded_error", refused.headers["request-id"])
        elif status == 429:
            assert error["code"] == "queue_full"
        else:
            assert error == BUSY_TEXT
    assert not cluster.runner.requests


async def test_an_overloaded_gateway_refuses_over_grpc(cluster: Cluster, full: None) -> None:
    async with aio.insecure_channel(cluster.gateway.grpc_address) as channel:
        stub = inference_pb2_grpc.InferenceStub(channel)
        message = inference_pb2.ChatMessage(role="user", content="What is Puna?")
        with pytest.raises(aio.AioRpcError) as refused:
            async for _ in stub.Chat(inference_pb2.ChatRequest(model="demo", messages=[message])):
                pass
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await stub.ListModels(inference_pb2.ListModelsRequest())
    assert not cluster.runner.requests


async def test_metrics_show_limit_work_and_refusals(cluster: Cluster, full: None) -> None:
    def value(name: str, labels: dict[str, str] | None = None) -> float:
        return REGISTRY.get_sample_value(name, labels or {}) or 0.0

    labels = {"dialect": "ollama", "route": "/api/chat", "model": "other", "status": "503", "outcome": "queue_full"}
    names = "puna_gateway_overload_refusals_total", "puna_gateway_requests_total"
    before = value(names[0]), value(names[1], labels)
    assert (await cluster.http.post("/api/chat", json=BODY)).status_code == 503
    assert (value("puna_gateway_work_limit"), value("puna_gateway_work_in_progress")) == (4.0, 4.0)
    await eventually(lambda: value(names[0]) == before[0] + 1)  # counted once a second
    assert value(names[1], labels) == before[1] + 1


async def test_a_request_that_waits_for_its_runner_is_no_work(start_cluster: StartCluster) -> None:
    may_answer = asyncio.Event()

    async def hold(_: ScriptedRunner) -> None:
        await may_answer.wait()

    async with start_cluster(runner=ScriptedRunner(before=hold)) as cluster:
        asked = asyncio.create_task(cluster.http.post("/v1/chat/completions", json=BODY))
        await eventually(lambda: cluster.runner.busy == 1)
        await eventually(lambda: WORK.in_progress == 0)
        assert not asked.done()
        may_answer.set()
        assert (await asked).status_code == 200


async def test_other_routes_of_an_overloaded_gateway_answer(cluster: Cluster, full: None) -> None:
    for path in ("/healthz", "/readyz", "/v1/models", "/api/tags", "/puna/v1/nodes"):
        assert (await cluster.http.get(path)).status_code == 200
    loaded = await cluster.http.post("/puna/v1/load", json={"model": "demo"})
    assert loaded.status_code == 200


async def test_a_gateway_serves_again_as_soon_as_there_is_room(cluster: Cluster, full: None) -> None:
    assert (await cluster.http.post("/v1/chat/completions", json=BODY)).status_code == 429
    WORK.in_progress -= 1
    assert (await cluster.http.post("/v1/chat/completions", json=LARGE)).status_code == 429
    assert (await cluster.http.post("/v1/chat/completions", json=BODY)).status_code == 200
    assert WORK.in_progress == 3
    WORK.in_progress += 1


async def test_a_tenant_without_work_in_progress_gets_its_share(cluster: Cluster, full: None) -> None:
    WORK.by_tenant["127.0.0.9"] = WORK.by_tenant.pop("127.0.0.1")
    assert (await cluster.http.post("/v1/chat/completions", json=BODY)).status_code == 200


async def test_a_refused_body_that_comes_later_is_not_taken_for_a_request(cluster: Cluster, full: None) -> None:
    host, _, port = cluster.gateway.http_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps(BODY).encode()
    head = b"POST /api/chat HTTP/1.1\r\nhost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    writer.write(head)
    assert (await asyncio.wait_for(_read_response(reader), 60))[0].startswith(b"HTTP/1.1 503")
    writer.write(body[:10])
    await writer.drain()
    writer.write(body[10:] + b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert (await asyncio.wait_for(_read_response(reader), 60))[0].startswith(b"HTTP/1.1 200")
    writer.write(head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + body)
    head_of_refusal, _ = await asyncio.wait_for(_read_response(reader), 60)
    assert b"\r\nconnection: close" in head_of_refusal
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()


@pytest.mark.parametrize(
    ("line", "body"),
    [
        (b"Transfer-Encoding: chunked", b"2\r\n{}\r\n0\r\n\r\n"),
        (b"Content-Length: 2\r\nExpect: 100-continue", b"{}"),
        (b"Content-Length: 2\r\nOrigin: http://localhost", b"{}"),
        (b"Content-Length: 2\r\nConnection: Upgrade\r\nUpgrade: h2c", b"{}"),
        (b"Content-Length: %d" % (UNREAD_BYTES_MAX + 1), b" " * (UNREAD_BYTES_MAX + 1)),
    ],
    ids=["chunks", "expects", "of a page", "offers a protocol", "long"],
)
async def test_a_refusal_leaves_the_next_request_where_it_begins(
    cluster: Cluster, full: None, line: bytes, body: bytes
) -> None:
    host, _, port = cluster.gateway.http_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /api/chat HTTP/1.1\r\nhost: localhost\r\n%b\r\n\r\n%b" % (line, body))
    head = b"HTTP/1.1 100 "
    while head.startswith(b"HTTP/1.1 100 "):
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    assert head.startswith(b"HTTP/1.1 503 ")
    await reader.readexactly(int(re.findall(rb"content-length: (\d+)", head)[0]))
    if b"connection: close" in head:
        assert await asyncio.wait_for(reader.read(), 60) == b""
    else:
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await asyncio.wait_for(_read_response(reader), 60))[0].startswith(b"HTTP/1.1 200")
    writer.close()


async def _read_response(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = re.findall(rb"content-length: (\d+)", head)
    return head, await reader.readexactly(int(length))


async def test_every_body_is_refused_when_memory_is_short(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await cluster.http.get("/healthz")).status_code == 200  # connected while there was room
    monkeypatch.setattr(PRESSURE.__class__, "memory_share", property(lambda _: 0.96, lambda *_: None))
    refused = await cluster.http.post("/api/chat", json=BODY)
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    async with httpx.AsyncClient(base_url=cluster.url, timeout=60) as newcomer:
        assert (await newcomer.get("/healthz")).status_code == 503


async def test_one_address_does_not_take_every_connection(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shedding, "CONNECTIONS_OF_ADDRESS_MAX", 8)
    host, _, port = cluster.gateway.http_address.rpartition(":")
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(8)]
    reader, writer = await asyncio.open_connection(host, int(port))
    assert (await asyncio.wait_for(reader.read(), 60)).startswith(b"HTTP/1.1 503")
    writer.close()
    opened.pop()[1].close()

    async def admitted() -> bool:
        again, sender = await asyncio.open_connection(host, int(port))
        sender.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        answer = await asyncio.wait_for(again.read(), 60)
        sender.close()
        return answer.startswith(b"HTTP/1.1 200")

    async with asyncio.timeout(60):
        while not await admitted():
            pass
    for _, sender in opened:
        sender.close()


async def test_a_client_that_does_not_read_is_cut_and_holds_nobody_up(
    start_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.http.server.connections.SLOW_READER_S_MAX", 1.0)
    endless = ScriptedRunner(pieces=["word " * 2000] * 4000)
    async with start_cluster(runner=endless) as cluster:
        host, _, port = cluster.gateway.http_address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        body = b'{"model": "demo", "messages": [{"role": "user", "content": "x"}]}'
        writer.write(b"POST /api/chat HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await eventually(lambda: endless.busy == 1)
        others = await cluster.http.post("/api/chat", json=BODY | {"options": {"num_predict": 3}})
        assert others.json()["done"] is True
        await eventually(lambda: endless.busy == 0)
        writer.close()


async def test_the_connection_of_a_client_that_reads_no_complete_answer_is_cut(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.http.server.connections.SLOW_READER_S_MAX", 0.5)
    host, _, port = cluster.gateway.http_address.rpartition(":")
    before = CONNECTIONS.total
    with socket.socket() as client:  # asyncio's streams would read ahead
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, (host, int(port)))
        await loop.sock_sendall(client, b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 400)
        await eventually(lambda: CONNECTIONS.total == before + 1)
        await eventually(lambda: CONNECTIONS.total == before)


async def test_a_document_that_takes_long_is_made_once_for_all_that_ask(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, may_go_on = [], threading.Event()

    def make(routes: list[Route], version: str) -> dict[str, Any]:
        made.append(version)
        assert may_go_on.wait(60)
        return {"openapi": "3.1.0"}

    monkeypatch.setattr("gateway.http.routes.openapi_document", make)
    asked = [asyncio.create_task(cluster.http.get("/openapi.json")) for _ in range(8)]
    await eventually(lambda: CONNECTIONS.total >= len(asked))
    asked.pop(0).cancel()  # with the first one's wait ends no other's
    assert (await cluster.http.get("/healthz")).status_code == 200
    may_go_on.set()
    assert [(await one).json() for one in asked] == [{"openapi": "3.1.0"}] * len(asked)
    assert len(made) == 1


async def test_a_full_runner_is_never_an_error_to_the_client(start_cluster: StartCluster) -> None:
    async def refuse(_: ScriptedRunner) -> None:
        raise QueueFull("every slot and every waiting place of this replica is taken")

    full, free = ScriptedRunner(before=refuse), ScriptedRunner()
    full.placement.placement_id, free.placement.placement_id = "placement-2", "placement-1"
    await free.start()
    async with start_cluster(runner=full) as cluster:
        cluster.scheduler.replicas[MODEL_NAME].append(free)
        await cluster.scheduler.publish()
        pool, cache = cluster.gateway.service.inference.dispatcher.pool, cluster.gateway.service.inference.models.routes
        await eventually(lambda: len(pool.candidates(cache.all()[0])) == 2)
        answers = await asyncio.gather(*(cluster.http.post("/api/chat", json=BODY) for _ in range(4)))
        assert [answer.status_code for answer in answers] == [200] * 4
        assert len(full.requests) >= 1
        assert len(free.requests) == 4
    await free.stop()
