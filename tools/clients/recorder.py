"""A proxy between a client and the cluster that keeps each exchange: what was asked, and what came back."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit

# Evaluating the prompt of an agent takes a small machine a minute.
ANSWER_DEADLINE_S = 300.0
PIECE_BYTES = 65_536
# These belong to one connection, and the proxy has two.
_OF_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and its whole answer."""

    method: str
    path: str
    asked: bytes
    status: int
    answered: bytes

    @property
    def body(self) -> dict[str, Any]:
        """Return the request's JSON object, empty where there is none."""
        try:
            found = json.loads(self.asked)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def is_stream(self) -> bool:
        """Return True if the answer came in events."""
        return self.answered.lstrip().startswith((b"data:", b"event:")) or b"\n{" in self.answered.strip()


@dataclass(slots=True, kw_only=True)
class Recorder:
    """A running proxy. Exchanges are in the order of their ends."""

    url: str
    exchanges: list[Exchange] = field(default_factory=list)

    def drain(self) -> list[Exchange]:
        """Return the exchanges since the last call."""
        taken, self.exchanges = self.exchanges, []
        return taken


@contextmanager
def recording(upstream: str) -> Iterator[Recorder]:
    """Run a proxy before the cluster at this URL."""
    recorder = Recorder(url="")

    class Handler(_Handler):
        target = upstream
        kept = recorder

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    recorder.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield recorder
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Passes one request on and its answer back, piece by piece as it comes."""

    protocol_version = "HTTP/1.1"
    target: ClassVar[str]
    kept: ClassVar[Recorder]

    def _pass_on(self) -> None:
        asked = self.rfile.read(int(self.headers.get("content-length", 0)))
        place = urlsplit(self.target)
        assert place.hostname is not None
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=ANSWER_DEADLINE_S)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_CONNECTION}
        pieces: list[bytes] = []
        status = 0
        try:
            connection.request(self.command, self.path, asked, headers | {"Host": place.netloc})
            answer = connection.getresponse()
            status = answer.status
            self._send_head(answer)
            for piece in iter(lambda: answer.read1(PIECE_BYTES), b""):
                pieces.append(piece)
                self._send_piece(piece)
            if self.command != "HEAD":
                self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True  # one of the two has left
        finally:
            connection.close()
            self.kept.exchanges.append(
                Exchange(method=self.command, path=self.path, asked=asked, status=status, answered=b"".join(pieces))
            )

    def _send_head(self, answer: http.client.HTTPResponse) -> None:
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _OF_CONNECTION:
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _send_piece(self, piece: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.flush()

    do_GET = do_POST = do_HEAD = do_PUT = do_DELETE = do_OPTIONS = _pass_on  # noqa: N815  # the base class's names

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
        """Say nothing: the exchanges are kept."""
