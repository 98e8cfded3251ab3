"""Load shedding by a gateway with too much to do, over real connections."""

import asyncio
import socket
from collections.abc import Iterator

import httpx
import pytest

from common.errors import QueueFull
from gateway.core.dispatch import shedding
from gateway.http.server.connections import CONNECTIONS
from gateway.pressure.pressure import PRESSURE
from tests.integration.gateway.conftest import Cluster, StartCluster, eventually
from tests.integration.gateway.scripted import MODEL_NAME, ScriptedRunner

QUESTION = [{"role": "user", "content": "What is Puna?"}]
BODY = {"model": "demo", "messages": QUESTION, "stream": False}
LARGE = BODY | {"messages": [{"role": "user", "content": "x" * (shedding.LARGE_BODY_BYTES + 1)}]}


@pytest.fixture
def pressed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The measurements are the test's own."""
    monkeypatch.setattr(PRESSURE.__class__, "measured", lambda *_, **__: None)
    yield
    PRESSURE.memory_share, PRESSURE._late_since_s = 0.0, None


async def test_large_bodies_are_refused_while_the_loop_is_late(cluster: Cluster, pressed: None) -> None:
    PRESSURE._late_since_s, PRESSURE._now_s = 1.0, 3.0
    refused = await cluster.http.post("/v1/chat/completions", json=LARGE)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
    assert int(refused.headers["retry-after"]) >= 1
    assert (await cluster.http.post("/v1/chat/completions", json=BODY)).status_code == 200


async def test_every_body_is_refused_when_memory_is_short(cluster: Cluster, pressed: None) -> None:
    assert (await cluster.http.get("/healthz")).status_code == 200  # connected while there was room
    PRESSURE.memory_share = 0.96
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
