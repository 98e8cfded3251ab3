"""Rows of the catalogue that no client library sends: bytes on a socket, and what they leave behind."""

import contextlib
import gzip
import http.client
import json
import re
import socket
from collections.abc import Iterator

import httpx
import pytest

from gateway.core.dispatch.shedding import CONNECTIONS_OF_ADDRESS_MAX
from tests.badinput.catalogue import DIALECTS, OLLAMA, OPENAI
from tests.gateway_process import GatewayProcess, gateway_process
from tests.waiting import Stopwatch, wait_until

HEAD = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET /api/version HTTP/1.1\r\n"
BODY = b'{"model":"demo","messages":[{"role":"user","content":"x"}],"stream":false}'
ANSWER_S_MAX = 60.0
# As the gateway has them: headers must come within 10 s, and a response that nobody reads is given up after 30 s.
HEADERS_S_MAX = 10.0


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway_process(tmp_path_factory.mktemp("raw")) as running:
        yield running


def connect(gateway: GatewayProcess) -> socket.socket:
    return socket.create_connection((gateway.host, gateway.port), timeout=ANSWER_S_MAX)


def everything(peer: socket.socket) -> bytes:
    """Until the other side closes."""
    parts: list[bytes] = []
    with contextlib.suppress(ConnectionResetError):
        while part := peer.recv(65536):
            parts.append(part)
    return b"".join(parts)


def answer_to(gateway: GatewayProcess, request: bytes) -> tuple[int, bytes]:
    """Status (0: closed without one) and all that came; the connection must be closed by the other side."""
    with connect(gateway) as peer:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            peer.sendall(request)
        answer = everything(peer)
    match = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    return int(match[1]) if match else 0, answer


REFUSED = {
    "IN25 both lengths": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "IN25 two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "IN25 lengths in a list": HEAD + b"Content-Length: 5, 6\r\n\r\nhello!",
    "IN25 obfuscated coding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "IN25 coding with a tab": HEAD + b"Transfer-Encoding:\tchunked, identity\r\n\r\n0\r\n\r\n",
    "IN25 space before the colon": HEAD + b"Content-Length : 5\r\n\r\nhello",
    "IN25 folded header": HEAD + b"X: a\r\n b\r\nContent-Length: x\r\n\r\n",
    "IN25 negative length": HEAD + b"Content-Length: -1\r\n\r\n",
    "IN25 plus sign": HEAD + b"Content-Length: +5\r\n\r\nhello",
    "IN25 chunk size beyond": HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffffffff\r\nx\r\n0\r\n\r\n",
    "IN25 chunk size is no number": HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "IN25 chunk extension flood": HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n1;"
    + b"a=b;" * 500_000
    + b"\r\nx\r\n0\r\n\r\n",
    "IN26 no host": GET + b"\r\n",
    "IN26 two hosts": GET + b"Host: localhost\r\nHost: evil\r\n\r\n",
    "8.1 4 KiB of URL": b"GET /" + b"a" * 4096 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "noise": bytes(range(256)) * 8 + b"\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500 + b"\r\n\r\n",
}


@pytest.mark.parametrize("request_bytes", REFUSED.values(), ids=REFUSED.keys())
def test_what_could_mean_two_things_is_400_and_closed(gateway: GatewayProcess, request_bytes: bytes) -> None:
    status, answer = answer_to(gateway, request_bytes)
    assert status == 400, answer[:300]
    assert answer.count(b"HTTP/1.1 ") == 1
    text = answer.partition(b"\r\n\r\n")[2]
    # What cannot be read has no route, and so no dialect.
    assert b"Invalid HTTP request received." in text or json.loads(text)["error"], answer[:300]
    assert httpx.get(gateway.url + "/healthz", timeout=60).status_code == 200


TOO_LARGE = {
    "8.1 17 KiB of headers": b"X: " + b"a" * 17 * 1024 + b"\r\n",
    "8.1 200 KB of headers": b"X: " + b"a" * 200_000 + b"\r\n",
    "8.1 5 MB of headers": b"X: " + b"a" * 5_000_000 + b"\r\n",
    "8.1 65 headers": b"".join(b"X-%d: a\r\n" % n for n in range(65)),
    "8.1 6,400 headers": b"".join(b"X-%d: a\r\n" % n for n in range(6400)),
}


@pytest.mark.parametrize("headers", TOO_LARGE.values(), ids=TOO_LARGE.keys())
def test_headers_beyond_their_limits_are_431_and_closed(gateway: GatewayProcess, headers: bytes) -> None:
    status, answer = answer_to(gateway, GET + b"Host: localhost\r\n" + headers + b"\r\n")
    assert status == 431, answer[:300]
    assert b"exceed" in answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("stream", [b"false", b"true"])
def test_a_client_that_ends_its_sending_gets_its_whole_answer(gateway: GatewayProcess, stream: bytes) -> None:
    body = BODY.replace(b"false", stream)
    with connect(gateway) as peer:
        peer.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        peer.shutdown(socket.SHUT_WR)
        answer = everything(peer)
    assert answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert b'"done":true' in answer


def test_a_connection_beyond_those_of_an_address_is_503_and_the_next_one_is_taken(gateway: GatewayProcess) -> None:
    def status_of_large_post() -> int:
        client = http.client.HTTPConnection(gateway.host, gateway.port, timeout=ANSWER_S_MAX)
        with contextlib.closing(client):
            client.request("POST", "/api/chat", bytes(5_000_000))  # raises an error if it is reset while it sends
            return client.getresponse().status

    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(connect(gateway)) for _ in range(CONNECTIONS_OF_ADDRESS_MAX)]
        for peer in taken:
            peer.sendall(GET)  # it is a connection of the gateway by now, not of the kernel's queue alone
        assert [status_of_large_post() for _ in range(5)] == [503] * 5
        taken[0].close()
        wait_until(lambda: status_of_large_post() == 400, deadline_s=20, what="one more is taken")


def test_the_limits_themselves_are_let_through(gateway: GatewayProcess) -> None:
    many = b"".join(b"X-%d: a\r\n" % number for number in range(62))
    for request in (
        GET + b"Host: localhost\r\n" + many + b"Connection: close\r\n\r\n",
        GET + b"Host: localhost\r\nConnection: close\r\nX: " + b"a" * (15 * 1024) + b"\r\n\r\n",
        b"GET /api/version?" + b"a" * 4000 + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ):
        assert answer_to(gateway, request)[0] == 200


@pytest.mark.parametrize(
    "host", [b"x/health?", b"evil.example", b"localhost.evil.example", b"169.254.169.254.nip.io", b""]
)
def test_a_host_of_elsewhere_is_refused(gateway: GatewayProcess, host: bytes) -> None:
    """IN26, IN27."""
    status, _ = answer_to(gateway, GET + b"Host: " + host + b"\r\nConnection: close\r\n\r\n")
    assert status in (400, 403)


def test_foreign_origins_are_refused_and_null_is_foreign(gateway: GatewayProcess) -> None:
    """IN27."""
    for origin in ("https://evil.example", "null", "http://localhost.evil.example", "file://"):
        assert httpx.get(gateway.url + "/api/version", headers={"origin": origin}, timeout=60).status_code == 403
        preflight = httpx.options(
            gateway.url + "/api/chat", headers={"origin": origin, "access-control-request-method": "POST"}
        )
        assert preflight.status_code == 403
        assert "access-control-allow-origin" not in preflight.headers
    own = httpx.get(gateway.url + "/api/version", headers={"origin": "http://localhost:3000"}, timeout=60)
    assert own.headers["access-control-allow-origin"] == "http://localhost:3000"


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate", "gzip, gzip", "GZIP"])
def test_encoded_bodies_are_415(gateway: GatewayProcess, path: str, encoding: str) -> None:
    """IN15."""
    answer = httpx.post(
        gateway.url + path,
        content=gzip.compress(BODY),
        headers={"content-encoding": encoding, "content-type": "application/json"},
        timeout=60,
    )
    error = answer.json()["error"]
    assert answer.status_code == 415
    assert (error if isinstance(error, str) else error["message"]) == "Content-Encoding is not supported"


@pytest.mark.parametrize("path", DIALECTS)
def test_multipart_is_415(gateway: GatewayProcess, path: str) -> None:
    """IN30."""
    parts = b"".join(b"--b\r\nContent-Disposition: form-data; name=f%d\r\n\r\nx\r\n" % n for n in range(20_000))
    answer = httpx.post(
        gateway.url + path,
        content=parts + b"--b--",
        headers={"content-type": "multipart/form-data; boundary=b"},
        timeout=60,
    )
    error = answer.json()["error"]
    assert answer.status_code == 415
    assert (error if isinstance(error, str) else error["message"]) == "multipart bodies are not supported"


def test_a_head_that_drips_is_cut(gateway: GatewayProcess) -> None:
    """IN28: a client that begins and does not end holds its connection for so long and no longer."""
    with connect(gateway) as peer:
        peer.settimeout(HEADERS_S_MAX + 100)
        peer.sendall(GET + b"Host: local")
        watch = Stopwatch()
        answer = everything(peer)
        watch.assert_within(HEADERS_S_MAX + 5, "the connection is closed")
    assert answer == b"" or answer.startswith(b"HTTP/1.1 408 ")


def test_idle_connections_cost_nobody_anything(gateway: GatewayProcess) -> None:
    """IN28: idle ones, and ones that sent half a request."""
    with contextlib.ExitStack() as stack:
        for number in range(60):  # fewer than an address may have
            peer = stack.enter_context(connect(gateway))
            if number % 2:
                peer.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        assert httpx.post(gateway.url + "/api/chat", content=BODY, timeout=ANSWER_S_MAX).status_code == 200
    assert httpx.get(gateway.url + "/healthz", timeout=60).status_code == 200


def test_pipelined_requests_are_answered_in_order(gateway: GatewayProcess) -> None:
    """IN29."""
    one = GET + b"Host: localhost\r\n\r\n"
    last = GET + b"Host: localhost\r\nConnection: close\r\n\r\n"
    status, answer = answer_to(gateway, one * 50 + last)
    assert status == 200
    assert answer.count(b"HTTP/1.1 200") == 51


def test_http_2_is_not_spoken(gateway: GatewayProcess) -> None:
    """IN29: whatever follows, the connection is closed."""
    status, _ = answer_to(gateway, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0")
    assert status in (400, 403)


def test_a_refused_body_is_no_second_request(gateway: GatewayProcess) -> None:
    """IN25: what stands behind a refusal is not read as a request of its own."""
    smuggled = b"GET /api/tags HTTP/1.1\r\nHost: localhost\r\n\r\n"
    status, answer = answer_to(
        gateway, HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled
    )
    assert status == 400
    assert b"models" not in answer


def test_control_characters_reach_no_header_and_no_log(gateway: GatewayProcess) -> None:
    """IN31."""
    canary = "canary\r\nSet-Cookie: a=b\x1b[31m"
    answer = httpx.post(gateway.url + OLLAMA, json={"model": canary, "messages": []}, timeout=60)
    assert answer.status_code == 400
    assert "set-cookie" not in answer.headers
    unknown = {"model": "demo", "messages": [{"role": "user", "content": "x"}], "stream": False}
    ignored = httpx.post(gateway.url + OLLAMA, json={**unknown, "options": {canary: 1}}, timeout=60)
    assert "set-cookie" not in ignored.headers
    client_id = answer_to(
        gateway, GET + b"Host: localhost\r\nConnection: close\r\nX-Request-Id: a\x0bb\x1b[31m\r\n\r\n"
    )[1]
    assert b"\x1b" not in client_id
    text = gateway.log.read_bytes()
    assert b"\x1b" not in text
    for line in text.decode().splitlines():
        if line.startswith("{"):
            json.loads(line)
    assert not [line for line in text.decode().splitlines() if line.startswith("Set-Cookie")]


def test_unknown_models_and_users_are_no_labels(gateway: GatewayProcess) -> None:
    """IN38."""
    with httpx.Client(base_url=gateway.url, timeout=60) as client:
        for number in range(300):
            body = {
                "model": f"nobody-{number}",
                "messages": [{"role": "user", "content": "x"}],
                "user": f"user-{number}",
            }
            assert client.post(OPENAI, json=body).status_code == 404
            client.get(f"/nowhere-{number}")
            client.request(f"METHOD{number}", "/api/version")
        page = client.get("/metrics").text
    for canary in ("nobody-", "user-", "nowhere-", "METHOD"):
        assert canary not in page
    assert "puna_gateway_key_store_up" not in page, "there is no Redis that could be away"
    assert 'model="other"' in page
    assert 'route="other"' in page
