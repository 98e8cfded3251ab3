"""The bytes of a response, in as few writes as there can be.

h11 knows the rules of a connection: it frames each response, and says when to close. It is asked for the head and the
end; the other headers and the chunks between go past it, because it looks at each of them several times.
"""

import asyncio
import re
from typing import Any

import h11
from starlette.types import Message
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

# Headers that h11 acts on; it only copies the others into the head.
_FRAMING = frozenset({b"connection", b"content-length", b"transfer-encoding"})
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_CLOSE = (b"connection", b"close")


class ResponseBytes:
    """One response on a connection of uvicorn; `send` is its ASGI side."""

    __slots__ = ("_cycle", "_head", "_is_chunked", "_loop", "_protocol")

    def __init__(self, protocol: H11Protocol, loop: asyncio.AbstractEventLoop) -> None:
        self._protocol = protocol
        self._cycle = protocol.cycle
        self._loop = loop
        self._head = b""  # waits for the first piece of the body, which nearly always comes at once
        self._is_chunked = False

    async def send(self, message: Message) -> None:
        """Write a part of the response; waits while the client reads nothing."""
        cycle, flow = self._cycle, self._protocol.flow
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
        cycle = self._cycle
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        framing = [header for header in headers if header[0] in _FRAMING]
        if _CLOSE in cycle.scope["headers"] and _CLOSE not in framing:
            framing.append(_CLOSE)
        others = [header for header in headers if header[0] not in _FRAMING]
        if _CONTROL.search(b"".join([part for header in others for part in header])):
            raise ValueError("a response header has control characters")
        lines = [b"%b: %b\r\n" % header for header in cycle.default_headers + others]
        head = self._tell(h11.Response(status_code=status, headers=framing, reason=STATUS_PHRASES[status]))
        self._is_chunked = b"\r\ntransfer-encoding: chunked\r\n" in head.lower()
        self._head = b"".join((head[:-2], *lines, b"\r\n"))
        self._loop.call_soon(self._flush)

    def _body(self, body: bytes, *, more: bool) -> None:
        cycle = self._cycle
        pieces = [self._head]
        self._head = b""
        if body and cycle.scope["method"] != "HEAD":
            pieces += (b"%x\r\n" % len(body), body, b"\r\n") if self._is_chunked else (self._tell(h11.Data(data=body)),)
        if more:
            self._write(b"".join(pieces))
            return
        pieces.append(self._tell(h11.EndOfMessage()))
        self._write(b"".join(pieces))
        cycle.response_complete = True
        cycle.message_event.set()
        connection = self._protocol.conn
        if connection.our_state is h11.MUST_CLOSE or not cycle.keep_alive:
            connection.send(h11.ConnectionClosed())
            self._protocol.transport.close()
        cycle.on_response()

    def _tell(self, event: Any) -> bytes:
        written: bytes | None = self._protocol.conn.send(event)
        return written or b""

    def _flush(self) -> None:
        """Send a head alone if its body takes time."""
        if self._head and not self._cycle.disconnected:
            self._write(self._head)
            self._head = b""

    def _write(self, data: bytes) -> None:
        if data:
            self._protocol.transport.write(data)
