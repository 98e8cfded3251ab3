"""Requests whose bytes were changed at random, for one route after another. The seed says which."""

import json
import random
import re
import socket
import time

import h11
import httptools

from tests.fuzz.answers import Answer
from tests.fuzz.server_errors import is_documented

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_PIECES = (
    b"\r\n", b"\n", b"\0", b"\xff", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: evil\r\n",
    b"{", b"[", b'"', b"\\ud800", b"1e400", b"-1", b"null", b"/../", b"%2f", b"%00", b"HTTP/9.9", b": ", b" ", b"\t",
)  # fmt: skip
ANSWER_S_MAX = 60.0


def request_bytes(method: str, path: str, body: object) -> bytes:
    """A request as a client would send it."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content


def mutated(request: bytes, chance: random.Random) -> bytes:
    """A request with one to six changes."""
    data = bytearray(request)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0:
                data[at : at + chance.randint(1, 8)] = b""
            case 1:
                data[at:at] = chance.choice(_PIECES)
            case 2:
                data[at:at] = bytes(chance.randrange(256) for _ in range(chance.randint(1, 16)))
            case 3 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 4:
                piece = data[at : at + chance.randint(1, 40)]
                data[at:at] = piece * chance.randint(1, 50)
            case _:
                del data[at + chance.randint(1, 200) :]
    return bytes(data)


def send_raw(host: str, port: int, request: bytes) -> Answer:
    """One request, and its whole answer. Only a request that does not end may stay without one."""
    fault = ""
    wanted = _read_as_server(request)
    begun_s = time.monotonic()
    with socket.create_connection((host, port), timeout=ANSWER_S_MAX) as peer:
        answer = b""
        try:
            peer.sendall(request)
            if wanted is None:
                peer.shutdown(socket.SHUT_WR)  # it waits for more, which does not come
            while not _is_whole(answer, wanted) and (part := peer.recv(65536)):
                answer += part
        except (BrokenPipeError, ConnectionResetError):
            pass
        except TimeoutError:
            fault = f"no end within {ANSWER_S_MAX} s"
    took_s = time.monotonic() - begun_s
    match = _STATUS.match(answer)
    status = int(match[1]) if match else 0
    head, _, body = answer.partition(b"\r\n\r\n")
    if match is None and (answer or wanted is not None):
        fault = fault or f"no HTTP: {answer[:100]!r}"
    elif status >= 500 and not is_documented(status, head.decode("latin-1"), body.decode("utf-8", "replace")):
        fault = fault or f"{status}: {answer[-300:]!r}"
    return Answer(
        status=str(status),
        is_refused=not 200 <= status < 400,
        took_s=took_s,
        request=repr(request[:400]),
        fault=fault,
    )


def _read_as_server(request: bytes) -> str | None:
    """The method of a request that is whole, or is wrong at once (empty); None: more would have to come."""
    message = _Message()
    parser = httptools.HttpRequestParser(message)
    try:
        parser.feed_data(request)
    except httptools.HttpParserUpgrade:
        return None
    except httptools.HttpParserError:
        return parser.get_method().decode() if message.is_whole else ""
    return parser.get_method().decode() if message.is_whole else None


class _Message:
    """Callbacks of the parser."""

    is_whole = False

    def on_message_complete(self) -> None:
        self.is_whole = True


def _is_whole(answer: bytes, method: str | None) -> bool:
    """True if nothing more has to come, even where the connection stays open."""
    head = answer.partition(b"\r\n\r\n")[0]
    if b"\r\n\r\n" not in answer:
        return False
    if b"text/event-stream" in head and b"200" in head[:16]:
        return True  # news, which end when their reader leaves
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="HEAD" if method == "HEAD" else "GET", target="/", headers=[("Host", "x")]))
    client.send(h11.EndOfMessage())
    try:
        client.receive_data(answer)
        while (event := client.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.EndOfMessage):
                return True
    except h11.RemoteProtocolError:
        return True  # what it is, the caller says
    return False
