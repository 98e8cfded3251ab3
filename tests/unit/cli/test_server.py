"""Commands against a server that is not there, or whose process is stopped."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

import pytest

import cli.server
from cli.errors import CommandFailed, ExitCode
from cli.server import Server

CALLS: dict[str, Callable[[Server], object]] = {
    "a page": lambda server: server.get("/puna/v1/nodes"),
    "a command": lambda server: server.send("POST", "/puna/v1/unload", {"model": "demo"}),
    "an answer": lambda server: list(server.stream("/api/chat", {"model": "demo"})),
    "a file": lambda server: server.put_blob("sha256:0", iter([b"x"]), 1),
    "events": lambda server: list(server.events("/puna/v1/events", silence_s=60)),
    "a completion": lambda server: server.get("/api/tags", answer_within_s=0.1),
}


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The kernel accepts connections, as it does for a process that is stopped."""
    monkeypatch.setattr(cli.server, "_ALIVE_WITHIN_S", 0.1)
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_server_that_stands_still_fails_every_call_at_once_with_advice(
    stopped: str, call: Callable[[Server], object]
) -> None:
    with pytest.raises(CommandFailed, match="accepts connections, but does not answer in time; look at the") as failed:
        call(Server(stopped))
    assert failed.value.code is ExitCode.UNREACHABLE


def test_a_stream_that_falls_silent_fails_with_what_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.server, "_SILENCE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as pool:
        done = threading.Event()
        serving = pool.submit(_serve_half_a_stream, listening, done)
        objects = Server(f"http://127.0.0.1:{listening.getsockname()[1]}").stream("/api/chat", {"model": "demo"})
        try:
            assert next(objects) == {"content": "half"}
            with pytest.raises(CommandFailed, match="accepts connections, but does not answer in time") as failed:
                next(objects)
        finally:
            done.set()
        serving.result()
    assert failed.value.code is ExitCode.UNREACHABLE


def _serve_half_a_stream(listening: socket.socket, done: threading.Event) -> None:
    """Answer the question whether it is alive, and begin to answer the next one."""
    connection, _ = listening.accept()
    with connection, connection.makefile("rb") as received:
        _read_head(received)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        _read_head(received)
        line = b'{"content": "half"}\n'
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
        connection.sendall(head + b"%x\r\n%s\r\n" % (len(line), line))
        done.wait(60)


def _read_head(received: BinaryIO) -> None:
    while received.readline().strip():
        pass
