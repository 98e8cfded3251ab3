"""HTTP connections whose requests have to begin in time, counted.

A client that drips its headers holds nothing for long; beyond the limits of `core.dispatch.shedding` a new connection
gets an error and is closed.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from gateway.core.dispatch.shedding import RETRY_AFTER_S, Connections
from gateway.http.server.response_bytes import ResponseBytes
from gateway.pressure.pressure import PRESSURE

_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n"
    b"retry-after: %d\r\n\r\n" % RETRY_AFTER_S
)
CONNECTIONS = Connections()


# From the first byte of a request, or from the connection, to the end of its headers.
HEAD_S_MAX = 10.0
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


# Where an application finds its client in a request's scope.
CLIENT = "puna.client"


class ClientConnection:
    """Connection of a request, until it ends: `on_leave` is called once if the connection closes before."""

    __slots__ = ("_cycle", "on_leave")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
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
    _client: ClientConnection | None = None
    _counted: str | None = None  # the address; None: refused

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._application, self.app = self.app, self._serve

    def connection_made(self, transport: Any) -> None:
        """Count a new client, which has to send a request in time, or refuse it."""
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) else ""
        super().connection_made(transport)
        self._wait_for_head()
        if CONNECTIONS.admit(address, PRESSURE):
            self._counted = address
            return
        transport.write(_REFUSAL)
        transport.close()

    def data_received(self, data: bytes) -> None:
        """Note received bytes: a whole head, or a part of one; those of a refused client are ignored."""
        if self._counted is None:
            return
        super().data_received(data)
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering or self.transport.is_closing():
            self._stop_waiting()
        elif self._head_timer is None and self.conn.trailing_data[0]:
            self._wait_for_head()
        elif not self.conn.trailing_data[0]:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the client left."""
        if self._counted is not None:
            CONNECTIONS.leave(self._counted)
            self._counted = None
        self._stop_waiting()
        super().connection_lost(exc)
        client = self._client
        if client is not None and client.has_left and client.on_leave is not None:
            client.on_leave()

    async def _serve(self, scope: Scope, receive: Receive, _send: Send) -> None:
        client = self._client = ClientConnection(self.cycle)
        scope["extensions"] = {CLIENT: client}
        try:
            await self._application(scope, receive, ResponseBytes(self, self.loop).send)
        finally:
            if self._client is client:  # a request behind it on the same connection may have begun
                self._client = None

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S_MAX, self._give_up)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if self.conn.trailing_data[0]:
            self.transport.write(_TOO_SLOW)
        self.transport.close()
