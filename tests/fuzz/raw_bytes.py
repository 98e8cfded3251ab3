"""Requests whose bytes were changed at random, for one route after another. The seed says which."""

import json
import random
import re
import select
import socket
from dataclasses import dataclass, field

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_PIECES = (
    b"\r\n", b"\n", b"\0", b"\xff", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: evil\r\n",
    b"{", b"[", b'"', b"\\ud800", b"1e400", b"-1", b"null", b"/../", b"%2f", b"%00", b"HTTP/9.9", b": ", b" ", b"\t",
)  # fmt: skip
ANSWER_S_MAX = 5.0
WAITS_S = 0.1


@dataclass(slots=True)
class RawReport:
    """What a run has seen."""

    cases: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


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


def send_raw(host: str, port: int, request: bytes, report: RawReport) -> None:
    """One request. No answer is an answer, too: a request that does not end gets none."""
    with socket.create_connection((host, port), timeout=ANSWER_S_MAX) as peer:
        answer = b""
        try:
            peer.sendall(request)
            if not select.select([peer], [], [], WAITS_S)[0]:
                peer.shutdown(socket.SHUT_WR)  # it waits for more, which does not come
            while len(answer) < 65536 and (part := peer.recv(65536)):
                answer += part
        except (BrokenPipeError, ConnectionResetError):
            pass
        except TimeoutError:
            report.faults.append(f"no end within {ANSWER_S_MAX} s: {request[:400]!r}")
    report.cases += 1
    match = _STATUS.match(answer)
    status = int(match[1]) if match else 0
    report.statuses[status] = report.statuses.get(status, 0) + 1
    if answer and match is None:
        report.faults.append(f"no HTTP: {answer[:100]!r} to {request[:400]!r}")
    if status >= 500 and status not in (501, 502, 503, 504, 507):
        report.faults.append(f"{status}: {answer[-300:]!r} to {request[:400]!r}")
