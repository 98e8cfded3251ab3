"""HTTP connections whose requests have to begin in time: a client that drips its headers holds nothing for long."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

# From the first byte of a request, or from the connection, to the end of its headers.
HEAD_S_MAX = 10.0
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class TimedProtocol(H11Protocol):
    """Uvicorn's protocol; between requests its own timeout of idle connections holds."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A client is there, and has to say what it wants."""
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Bytes came: a whole head, or a part of one."""
        super().data_received(data)
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering or self.transport.is_closing():
            self._stop_waiting()
        elif self._head_timer is None and self.conn.trailing_data[0]:
            self._wait_for_head()
        elif not self.conn.trailing_data[0]:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client left."""
        self._stop_waiting()
        super().connection_lost(exc)

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
