"""HTTP connections whose requests have to begin in time, counted.

A client that drips its headers or hardly reads holds nothing for long; beyond the limits of `core.dispatch.shedding` a
new connection gets an error and is closed. A client that ends its sending behind a request (`shutdown(SHUT_WR)`) gets
its response.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, ClassVar

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from gateway.core.dispatch.shedding import RETRY_AFTER_S, Connections
from gateway.core.dispatch.work_limit import cost_of
from gateway.http.server.refusals import Refusals
from gateway.http.server.response_bytes import ResponseBytes
from gateway.pressure.pressure import PRESSURE
from gateway.pressure.work import WORK, RequestWork, work_s

# Of all header lines together.
HEADER_BYTES_MAX = 16 * 1024
HEAD_TOO_LARGE = f"the URL or the headers of the request exceed {HEADER_BYTES_MAX} bytes"
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n"
    b"retry-after: %d\r\n\r\n" % RETRY_AFTER_S
)
CONNECTIONS = Connections()

# From the first byte of a request, or from the connection, to the end of its headers.
HEAD_S_MAX = 10.0
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(HEAD_TOO_LARGE), HEAD_TOO_LARGE.encode())
)
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


class LimitedProtocol(H11Protocol):
    """Uvicorn's protocol, counted as long as it lasts; between requests its own timeout of idle connections holds."""

    _head_timer: asyncio.TimerHandle | None = None
    _reader_timer: asyncio.TimerHandle | None = None
    _client: ClientConnection | None = None
    _counted: str | None = None  # the address
    _address = ""
    _work: RequestWork | None = None  # of the request whose task is about to begin
    _unread_bytes = 0  # of the body of a request that was refused from its head
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
        """Note received bytes: a whole head, or a part of one; those of a refused client are ignored."""
        if self._is_refused:
            return
        if self._unread_bytes:
            skipped = min(len(data), self._unread_bytes)
            self._unread_bytes -= skipped
            data = data[skipped:]
        if not data or (not WORK.has_room(1, work_s()) and self._has_refused(data)):
            return
        cycle = self.cycle
        super().data_received(data)
        if self.cycle is not cycle and not self.cycle.more_body:
            body_bytes = len(self.cycle.body)
            # Counted before its task begins, as are those behind it; without room `Exchange` decides.
            if self.cycle.scope["path"] in self._refusals.dialects and WORK.has_room(cost_of(body_bytes), work_s()):
                self._work = RequestWork(body_bytes)
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering or self.transport.is_closing():
            self._stop_waiting()
        elif self._head_timer is None and self.conn.trailing_data[0]:
            self._wait_for_head()
        elif not self.conn.trailing_data[0]:
            self._stop_waiting()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio asks for it; uvicorn always gives None
        """Keep the connection of a client that may still read its response; ask the client if it does."""
        cycle = self.cycle
        if cycle is None or cycle.response_started or cycle.more_body or self.conn.their_http_version == b"1.0":
            return False
        if not self.transport.can_write_eof():  # TLS has no half of a connection
            return False
        cycle.keep_alive = False
        self.transport.write(_ARE_YOU_THERE)
        self.loop.call_later(_FIRST_LOOK_S, self._look_for_client, cycle, _FIRST_LOOK_S)
        return True

    def _has_refused(self, data: bytes) -> bool:
        """Refuse the next request before it is parsed, if that can be done."""
        if self.conn.their_state is not h11.IDLE or self.conn.trailing_data[0] or self.flow.write_paused:
            return False
        refusal = self._refusals.refuse(data, self._address)
        if refusal is None:
            return False
        self._stop_waiting()
        self._unset_keepalive_if_required()
        self._unread_bytes = refusal.unread_bytes
        if refusal.closes and refusal.unread_bytes:
            self._refuse(refusal.response)
            return True
        self.transport.write(refusal.response)
        if refusal.closes:
            self.transport.close()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        return True

    def _look_for_client(self, cycle: RequestResponseCycle, interval_s: float) -> None:
        if cycle.response_complete or self.transport.is_closing():
            return
        info = self.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        if info[0] == _TCP_CLOSED:
            self.transport.abort()
            return
        later_s = min(2 * interval_s, _LOOK_S_MAX)
        self.loop.call_later(later_s, self._look_for_client, cycle, later_s)

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that cannot be read."""
        is_in_body = self.cycle is not None and not self.cycle.response_complete
        if not is_in_body and len(self.conn.trailing_data[0]) > HEADER_BYTES_MAX:
            self._refuse(_TOO_LARGE)
        else:
            super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the client left."""
        if self._is_refused:
            LimitedProtocol._lingering -= 1
        if self._counted is not None:
            CONNECTIONS.leave(self._counted)
            self._counted = None
        self._stop_waiting()
        self._stop_watching_reader()
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
        client = self._client = ClientConnection(self.cycle, self._work)
        self._work = None
        scope["extensions"] = {CLIENT: client}
        try:
            await self._application(scope, receive, ResponseBytes(self, self.loop).send)
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
        if self.conn.trailing_data[0]:
            self._refuse(_TOO_SLOW)
        else:
            self.transport.close()
