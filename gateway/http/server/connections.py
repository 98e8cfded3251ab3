"""HTTP connections whose requests have to begin in time, counted.

A client that drips its headers or hardly reads holds nothing for long; beyond the limits of `core.dispatch.shedding` a
new connection gets an error and is closed. A client that ends its sending behind a request (`shutdown(SHUT_WR)`) gets
its response.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, ClassVar

import httptools
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.core.dispatch.shedding import RETRY_AFTER_S, Connections
from gateway.core.dispatch.work_limit import cost_of
from gateway.http.server.refusals import Refusals
from gateway.http.server.response_bytes import ResponseBytes
from gateway.pressure.pressure import PRESSURE
from gateway.pressure.work import WORK, RequestWork, work_s

# Of all header lines together; nor may more come of a body without a byte of its content.
HEADER_BYTES_MAX = 16 * 1024
# Requests behind the one that is being answered; those beyond them are not read, and the connection ends.
PIPELINED_MAX = 128
HEAD_INVALID = "Invalid HTTP request received."
HEAD_TOO_LARGE = f"the URL or the headers of the request exceed {HEADER_BYTES_MAX} bytes"
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n"
    b"retry-after: %d\r\n\r\n" % RETRY_AFTER_S
)
CONNECTIONS = Connections()

# From the first byte of a request, or from the connection, to the end of its headers.
HEAD_S_MAX = 10.0
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_REFUSED_HEAD = (
    b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n\r\n%b"
)
_TOO_LARGE = _REFUSED_HEAD % (b"431 Request Header Fields Too Large", len(HEAD_TOO_LARGE), HEAD_TOO_LARGE.encode())
_INVALID = _REFUSED_HEAD % (b"400 Bad Request", len(HEAD_INVALID), HEAD_INVALID.encode())
# A client that reads less than this in that time, while the transport's buffer is full, is cut: it holds memory, and by
# its stream a slot. A mobile line takes a hundred times as much.
SLOW_READER_S_MAX = 30.0
SLOW_READER_BYTES_MIN = 16 * 1024
# How long a refused client may take to read that, and how many may at once for each that is admitted; more are reset.
LINGER_S = 1.0
LINGERING_SHARE = 0.25
# A client that closed resets the connection when it receives something; one that still reads ignores this.
_ARE_YOU_THERE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FIRST_LOOK_S, _LOOK_S_MAX = 0.002, 0.25
_TCP_CLOSED = 7  # in include/net/tcp_states.h of Linux


# Where an application finds its client in a request's scope.
CLIENT = "puna.client"


class ClientConnection:
    """Connection of a request, until it ends: `on_leave` is called once if the connection closes before."""

    __slots__ = ("_cycle", "on_leave", "work")

    def __init__(self, cycle: RequestResponseCycle, work: RequestWork | None) -> None:
        self._cycle = cycle
        self.work = work
        self.on_leave: Callable[[], None] | None = None

    @property
    def has_left(self) -> bool:
        """True if the connection went before the response was complete."""
        return self._cycle.disconnected

    @property
    def is_sending(self) -> bool:
        """True until the last byte of the request's body is here."""
        return self._cycle.more_body


class LimitedProtocol(HttpToolsProtocol):
    """Uvicorn's protocol, counted as long as it lasts; between requests its own timeout of idle connections holds.

    Its `cycle` is the newest request, `pipeline` has those that wait for the one that is being answered.
    """

    _head_timer: asyncio.TimerHandle | None = None
    _reader_timer: asyncio.TimerHandle | None = None
    _client: ClientConnection | None = None
    _counted: str | None = None  # the address
    _address = ""
    _work: RequestWork | None = None  # of the request whose task is about to begin
    _answering: RequestResponseCycle | None = None
    _is_in_head = False
    _is_skipping = False  # the body of a request that was refused from its head
    _silent_bytes = 0  # received since the parser has last found a head, a part of a body or the end of one
    _is_last = False  # nothing is read any more behind the requests that are known
    _is_refused = False
    _lingering: ClassVar[int] = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._application, self.app = self.app, self._serve
        self._refusals: Refusals = self._application.refusals

    def connection_made(self, transport: Any) -> None:
        """Count a new client, which has to send a request in time, or refuse it."""
        peer = transport.get_extra_info("peername")
        address = self._address = str(peer[0]) if isinstance(peer, tuple) else ""
        super().connection_made(transport)
        if not CONNECTIONS.admit(address, PRESSURE):
            self._refuse(_REFUSAL)
            return
        self._counted = address
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Read requests, and parts of them; what comes behind a refusal is ignored."""
        if self._is_refused or self._is_last:
            return
        self._unset_keepalive_if_required()
        before = self._answering
        self._silent_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._reject(_INVALID)
            return
        if self._silent_bytes > HEADER_BYTES_MAX:
            self._reject(_TOO_LARGE if self._is_in_head else _INVALID)
            return
        cycle = self._answering
        if cycle is not None and cycle is not before and not cycle.more_body:
            body_bytes = len(cycle.body)
            # Counted before its task begins; without room `Exchange` decides.
            if cycle.scope["path"] in self._refusals.dialects and WORK.has_room(cost_of(body_bytes), work_s()):
                self._work = RequestWork(body_bytes)
        if self._unanswered() or self.timeout_keep_alive_task is not None or self.transport.is_closing():
            self._stop_waiting()
        elif self._head_timer is None:
            self._wait_for_head()

    def on_message_begin(self) -> None:
        """Expect a head."""
        super().on_message_begin()
        self._is_in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; those behind a body are of no use to anyone."""
        if self._is_in_head:
            super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Begin to answer a request, or refuse it."""
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            return  # see `_feed`
        version = self.parser.get_http_version()
        if not _is_clear(version, self.headers):
            raise ValueError("a head with two meanings")
        if len(self.pipeline) >= PIPELINED_MAX:
            raise ValueError("too many requests at once")
        self._silent_bytes = 0
        self._is_skipping = not WORK.has_room(1, work_s()) and self._has_refused(version)
        if not self._is_skipping:
            super().on_headers_complete()
            if not self.url.startswith(b"/"):  # of a proxy; here it names no route
                self.scope["path"] = self.url.decode("latin-1")
        self._is_in_head = False

    def on_body(self, body: bytes) -> None:
        """Keep a part of a body."""
        self._silent_bytes = 0
        if not self._is_skipping:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Note the end of a request."""
        if self._is_in_head:  # see `_feed`
            return
        self._silent_bytes = 0
        if not self._is_skipping:
            super().on_message_complete()
            return
        self._is_skipping = False
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio asks for it; uvicorn always gives None
        """Keep the connection of a client that may still read its response; ask the client if it does."""
        cycle = self._answering
        if cycle is None or cycle.response_started or cycle.more_body or cycle.scope["http_version"] == "1.0":
            return False
        if not self.transport.can_write_eof():  # TLS has no half of a connection
            return False
        self._unanswered()[-1].keep_alive = False
        self.transport.write(_ARE_YOU_THERE)
        self.loop.call_later(_FIRST_LOOK_S, self._look_for_client, cycle, _FIRST_LOOK_S)
        return True

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:
                # Of another protocol, which is not taken: the parser gets the head again, without it, and reads on.
                data = self._head_without_offer() + data[offer.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
            else:
                return

    def _head_without_offer(self) -> bytes:
        first = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        lines = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        return b"".join([first, *lines, b"\r\n"])

    def _has_refused(self, version: str) -> bool:
        """Refuse the request whose head is complete before its body is read, if that can be done."""
        if version != "1.1" or not self.parser.should_keep_alive() or self.expect_100_continue:
            return False
        if self.parser.get_method() != b"POST" or self._unanswered() or self.flow.write_paused:
            return False
        response = self._refusals.refuse(self.url, self.headers, self._address)
        if response is not None:
            self.transport.write(response)
        return response is not None

    def _unanswered(self) -> list[RequestResponseCycle]:
        """Return the requests whose response is not complete, oldest first."""
        cycles = [self._answering, *(cycle for cycle, _ in reversed(self.pipeline))]
        return [cycle for cycle in cycles if cycle is not None and not cycle.response_complete]

    def _reject(self, response: bytes) -> None:
        """Read no further: these bytes are no request. Requests before them are answered first."""
        self._stop_waiting()
        requests = self._unanswered()
        broken = requests.pop() if requests and not self._is_in_head and requests[-1].more_body else None
        if requests:
            self._is_last = True
            requests[-1].keep_alive = False
            if broken is not None:
                self.pipeline.popleft()
        elif self._is_in_head:
            self._refuse(response)
        elif broken is not None and not broken.response_started:
            _disconnect(broken)
            self._refuse(response)
        else:
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _look_for_client(self, cycle: RequestResponseCycle, interval_s: float) -> None:
        if cycle.response_complete or self.transport.is_closing():
            return
        info = self.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        if info[0] == _TCP_CLOSED:
            self.transport.abort()
            return
        later_s = min(2 * interval_s, _LOOK_S_MAX)
        self.loop.call_later(later_s, self._look_for_client, cycle, later_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the client left."""
        if self._is_refused:
            LimitedProtocol._lingering -= 1
        if self._counted is not None:
            CONNECTIONS.leave(self._counted)
            self._counted = None
        self._stop_waiting()
        self._stop_watching_reader()
        for cycle in self._unanswered():
            _disconnect(cycle)
        self.pipeline.clear()
        super().connection_lost(exc)
        client = self._client
        if client is not None and client.has_left and client.on_leave is not None:
            client.on_leave()

    def pause_writing(self) -> None:
        """Watch how fast the client reads, also after the response is complete."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Let the response go on: the client has read."""
        self._stop_watching_reader()
        super().resume_writing()

    def _watch_reader(self) -> None:
        waiting_bytes = self.transport.get_write_buffer_size()
        self._reader_timer = self.loop.call_later(SLOW_READER_S_MAX, self._look_at_reader, waiting_bytes)

    def _look_at_reader(self, before_bytes: int) -> None:
        if before_bytes - self.transport.get_write_buffer_size() < SLOW_READER_BYTES_MIN:
            self.transport.abort()  # closing would wait until the client has read the rest
        else:
            self._watch_reader()

    def _stop_watching_reader(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    async def _serve(self, scope: Scope, receive: Receive, _send: Send) -> None:
        cycle = self._answering
        assert cycle is not None
        client = self._client = ClientConnection(cycle, self._work)
        self._work = None
        scope["extensions"] = {CLIENT: client}
        try:
            await self._application(scope, receive, ResponseBytes(self.transport, self.flow, cycle, self.loop).send)
        finally:
            if self._client is client:  # a request behind it on the same connection may have begun
                self._client = None

    def _refuse(self, response: bytes) -> None:
        """Send a response, and read on for a while: the kernel resets a connection that is closed with unread bytes."""
        self._is_refused = True
        LimitedProtocol._lingering += 1
        self._stop_waiting()
        if LimitedProtocol._lingering > LINGERING_SHARE * CONNECTIONS.limit:
            self.transport.abort()
            return
        self.transport.write(response)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S_MAX, self._give_up)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if self._is_in_head:
            self._refuse(_TOO_SLOW)
        else:
            self.transport.close()


def _disconnect(cycle: RequestResponseCycle) -> None:
    """End what its application waits for."""
    cycle.disconnected = True
    cycle.message_event.set()


def _is_clear(version: str, headers: list[tuple[bytes, bytes]]) -> bool:
    """Return False for a head that names no host or two, a coding that this server does not know, another protocol.

    Whatever else is not clear the parser refuses.
    """
    hosts = sum(name == b"host" for name, _ in headers)
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    if version == "1.0":
        return hosts <= 1 and not codings
    return version == "1.1" and hosts == 1 and codings in ([], [b"chunked"])
