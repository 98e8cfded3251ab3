"""The command that health checks of containers run, asked about servers over HTTP; gRPC: with the discovery's tests."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from cli.cluster.plan import embedded_redis_server
from common import healthcheck
from tests.ports import free_port
from tests.waiting import Stopwatch, next_look


class Answers(BaseHTTPRequestHandler):
    """/well is well, everything else is not."""

    def do_GET(self) -> None:  # the name that the base class looks for
        self.send_response(200 if self.path == "/well" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing on standard error."""


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def ask(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["healthcheck", *words])
    return healthcheck.main()


def test_it_says_whether_a_page_answers_200(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, f"{url}/well") == 0
    assert ask(monkeypatch, f"{url}/ill") == 1
    assert ask(monkeypatch, f"http://127.0.0.1:{free_port()}/well") == 1


def test_it_asks_no_proxy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    assert ask(monkeypatch, f"{url}/well") == 0


async def test_it_says_whether_a_redis_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    server = await asyncio.create_subprocess_exec(
        *(embedded_redis_server(), "--port", str(port), "--bind", "127.0.0.1", "--save", ""),
        stdout=asyncio.subprocess.DEVNULL,
    )
    url = f"redis://127.0.0.1:{port}"
    watch = Stopwatch()
    while ask(monkeypatch, url) != 0:
        assert not watch.is_past(30), "it does not answer"
        await next_look()
    server.kill()
    await server.wait()
    assert ask(monkeypatch, url) == 1


def test_it_says_how_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch) == 2
