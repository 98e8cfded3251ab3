"""Raw bytes that no client library sends. Each is answered or closed, and the gateway goes on."""

import asyncio

import pytest

from gateway.http.server.connections import PIPELINED_MAX
from tests.integration.gateway.conftest import Cluster, StartCluster, eventually
from tests.integration.gateway.scripted import ScriptedRunner

HEAD = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\n"
BODY = b'{"model": "demo", "messages": [{"role": "user", "content": "x"}], "stream": false}'


async def answer_to(cluster: Cluster, request: bytes) -> bytes:
    """The status line that raw bytes get; empty if the connection is closed without one."""
    host, port = cluster.gateway.http_address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    status_line = await asyncio.wait_for(reader.readline(), 60)
    writer.close()
    await writer.wait_closed()
    return status_line


@pytest.mark.parametrize(
    "request_bytes",
    [
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        b"GET /api/tags HTTP/1.1\r\n\r\n",
        b"GET /api/tags HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
        b"GET /" + b"a" * 5_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Transfer-Encoding: identity\r\n\r\n{}",
        HEAD.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        HEAD.replace(b"1.1", b"2.0") + b"Content-Length: 2\r\n\r\n{}",
        b"GET /api/tags\r\n\r\n",
        HEAD + b"Content-Length : 2\r\n\r\n{}",
        HEAD + b"X: a\r\n Content-Length: 2\r\n\r\n{}",
        b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        HEAD + b"X: a\nContent-Length: 2\r\n\r\n{}",
        HEAD + b"X: \0\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
        b"\x16\x03\x01\x02\x00" * 20 + b"\r\n\r\n",
    ],
    ids=[
        "both lengths",
        "two lengths",
        "odd coding",
        "negative",
        "no host",
        "two hosts",
        "url",
        "one length twice",
        "two codings",
        "no coding",
        "coding of an old client",
        "another protocol",
        "no version",
        "space before a colon",
        "folded line",
        "tunnel",
        "line feed alone",
        "zero byte",
        "odd size of a chunk",
        "tls",
    ],
)
async def test_ambiguous_or_oversized_requests_are_400(cluster: Cluster, request_bytes: bytes) -> None:
    assert b" 400 " in await answer_to(cluster, request_bytes)
    assert (await cluster.http.get("/healthz")).status_code == 200


@pytest.mark.parametrize("path", [b"//v1/models", b"http://evil/api/version", b"/v1/models;x", b"/API/tags"])
async def test_odd_spellings_of_a_path_are_no_other_way_in(cluster: Cluster, path: bytes) -> None:
    assert b" 404 " in await answer_to(cluster, b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")


async def test_a_body_in_chunks_is_read(cluster: Cluster) -> None:
    chunks = b"".join(b"%x\r\n%b\r\n" % (1, BODY[index : index + 1]) for index in range(len(BODY)))
    assert b" 200 " in await answer_to(cluster, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_forgotten(cluster: Cluster) -> None:
    host, port = cluster.gateway.http_address.split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(HEAD + b"Content-Length: 1000\r\n\r\n" + BODY)
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await cluster.http.post("/api/chat", content=BODY)).status_code == 200
    assert len(cluster.runner.requests) == 1


async def test_requests_on_one_connection_are_answered_in_order(cluster: Cluster) -> None:
    one = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    everything = await everything_for(
        cluster, one + b"GET /api/version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    assert everything.count(b"HTTP/1.1 200") == 2
    assert everything.index(b'"done":true') < everything.index(b'"version"')


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 600_000, b" 431 "),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2;" + b"a" * 600_000, b" 400 "),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"a" * 600_000, b" 400 "),
    ],
    ids=["head", "extension of a chunk", "trailer"],
)
async def test_bytes_that_are_neither_head_nor_body_end_soon(
    cluster: Cluster, request_bytes: bytes, status: bytes
) -> None:
    assert status in await answer_to(cluster, request_bytes)


VERSION = b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "broken",
    [b"NONE / HTTP/1.1\r\n\r\n", HEAD + b"Transfer-Encoding: chunked\r\n\r\nx\r\n"],
    ids=["in its head", "in its body"],
)
async def test_requests_before_a_broken_one_are_answered(cluster: Cluster, broken: bytes) -> None:
    everything = await everything_for(cluster, 2 * VERSION + broken + VERSION)
    assert everything.count(b"HTTP/1.1 200") == 2
    assert everything.count(b"HTTP/1.1") == 2
    assert everything.rpartition(b"HTTP/1.1")[2].count(b"\r\nconnection: close") == 1


async def test_so_many_requests_at_once_are_answered_and_no_more(cluster: Cluster) -> None:
    everything = await everything_for(cluster, VERSION * (3 * PIPELINED_MAX))
    assert everything.count(b"HTTP/1.1 200") == everything.count(b"HTTP/1.1") == 1 + PIPELINED_MAX


async def test_the_calls_of_a_client_that_leaves_end_also_behind_others(start_cluster: StartCluster) -> None:
    endless = ScriptedRunner(pieces=["word "] * 100_000)
    async with start_cluster(runner=endless) as cluster:
        host, port = cluster.gateway.http_address.split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(STREAM) + STREAM + 3 * VERSION)
        await eventually(lambda: endless.busy == 1)
        writer.transport.abort()
        await eventually(lambda: endless.busy == 0)


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket"])
async def test_an_offer_of_another_protocol_is_not_taken(cluster: Cluster, upgrade: bytes) -> None:
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + upgrade + b"\r\nHTTP2-Settings: AAMAAABk\r\n"
    asked = HEAD + offer + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    looked = VERSION.replace(b"\r\n\r\n", b"\r\n" + offer + b"\r\n")
    closing = VERSION.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    everything = await everything_for(cluster, asked + looked + asked + closing)
    assert everything.count(b"HTTP/1.1 200") == everything.count(b"HTTP/1.1") == 4


STREAM = b'{"model": "demo", "messages": [{"role": "user", "content": "x"}]}'


async def everything_for(cluster: Cluster, request: bytes) -> bytes:
    """All that raw bytes get, up to the end of the connection, which must come."""
    host, port = cluster.gateway.http_address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    everything = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    await writer.wait_closed()
    return everything


async def whole_answer_to(cluster: Cluster, request: bytes) -> tuple[bytes, bytes]:
    """Head and body of an answer, up to the end of the connection, which must come."""
    everything = await everything_for(cluster, request)
    head, _, body = everything.partition(b"\r\n\r\n")
    return head.lower(), body


async def test_a_stream_on_a_connection_that_closes_is_chunked_all_the_same(cluster: Cluster) -> None:
    head, body = await whole_answer_to(
        cluster, HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(STREAM) + STREAM
    )
    assert b"\r\ntransfer-encoding: chunked" in head
    assert b"\r\nconnection: close" in head
    assert b"\r\nx-request-id: " in head
    text = b""
    while body != b"0\r\n\r\n":
        size, _, rest = body.partition(b"\r\n")
        text, body = text + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    assert b'"done":true' in text.splitlines()[-1]


async def test_a_stream_for_an_old_client_ends_with_its_connection(cluster: Cluster) -> None:
    head, body = await whole_answer_to(
        cluster, HEAD.replace(b"1.1", b"1.0") + b"Content-Length: %d\r\n\r\n" % len(STREAM) + STREAM
    )
    assert b"transfer-encoding" not in head
    assert b'"done":true' in body.splitlines()[-1]


async def test_an_answer_to_head_has_no_body(cluster: Cluster) -> None:
    head, body = await whole_answer_to(cluster, b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert head.startswith(b"http/1.1 200 ")
    assert body == b""
