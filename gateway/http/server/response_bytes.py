"""The bytes of a response, in as few writes as there can be."""

import asyncio
import re

from starlette.types import Message
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_CLOSE = (b"connection", b"close")
# For these a body would be the beginning of the next response.
_STATUS_WITHOUT_BODY = frozenset({204, 304})


class ResponseBytes:
    """One response on a connection of uvicorn; `send` is its ASGI side."""

    __slots__ = ("_cycle", "_flow", "_head", "_is_chunked", "_left_bytes", "_loop", "_transport")

    def __init__(
        self,
        transport: asyncio.Transport,
        flow: FlowControl,
        cycle: RequestResponseCycle,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._transport = transport
        self._flow = flow
        self._cycle = cycle
        self._loop = loop
        self._head = b""  # waits for the first piece of the body, which nearly always comes at once
        self._is_chunked = False
        self._left_bytes: int | None = None  # of a body whose length was announced

    async def send(self, message: Message) -> None:
        """Write a part of the response; waits while the client reads nothing."""
        cycle, flow = self._cycle, self._flow
        if flow.write_paused and not cycle.disconnected:
            await flow.drain()
        if cycle.disconnected:
            return
        if message["type"] == "http.response.start":
            assert not cycle.response_started
            self._start(message["status"], message["headers"])
        else:
            assert cycle.response_started
            assert not cycle.response_complete
            self._body(message.get("body", b""), more=message.get("more_body", False))

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Make the head; names of headers are in lower case."""
        cycle = self._cycle
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        if _CONTROL.search(b"".join([part for header in headers for part in header])):
            raise ValueError("a response header has control characters")
        lines = [STATUS_LINE[status], *[b"%b: %b\r\n" % header for header in cycle.default_headers + headers]]
        length = next((value for name, value in headers if name == b"content-length"), None)
        has_body = status not in _STATUS_WITHOUT_BODY and cycle.scope["method"] != "HEAD"
        if length is not None:
            self._left_bytes = int(length) if has_body else 0
        elif not has_body:
            self._left_bytes = 0
        elif cycle.scope["http_version"] == "1.1":
            self._is_chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        else:
            cycle.keep_alive = False  # the end of the connection is that of the body
        if _CLOSE in headers:
            cycle.keep_alive = False
        elif not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self._head = b"".join(lines)
        self._loop.call_soon(self._flush)

    def _body(self, body: bytes, *, more: bool) -> None:
        cycle = self._cycle
        pieces = [self._head]
        self._head = b""
        if self._is_chunked:
            if body:
                pieces += (b"%x\r\n" % len(body), body, b"\r\n")
            if not more:
                pieces.append(b"0\r\n\r\n")
        elif cycle.scope["method"] != "HEAD":
            pieces.append(body)
            self._count(len(body), more=more)
        self._write(b"".join(pieces))
        if more:
            return
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self._transport.close()
        cycle.on_response()

    def _count(self, body_bytes: int, *, more: bool) -> None:
        if self._left_bytes is None:
            return
        self._left_bytes -= body_bytes
        if self._left_bytes < 0 or (self._left_bytes and not more):
            raise ValueError("a response body is not as long as its head says")

    def _flush(self) -> None:
        """Send a head alone if its body takes time."""
        if self._head and not self._cycle.disconnected:
            self._write(self._head)
            self._head = b""

    def _write(self, data: bytes) -> None:
        if data:
            self._transport.write(data)
