"""HTTP connections, counted: beyond the limits of `core.dispatch.shedding` a new one gets an error and is closed."""

from typing import Any

from gateway.core.dispatch.shedding import RETRY_AFTER_S, Connections
from gateway.http.server.connections import TimedProtocol
from gateway.pressure.pressure import PRESSURE

_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n"
    b"retry-after: %d\r\n\r\n" % RETRY_AFTER_S
)
CONNECTIONS = Connections()


class LimitedProtocol(TimedProtocol):
    """A connection that is counted as long as it lasts."""

    _counted: str | None = None

    def connection_made(self, transport: Any) -> None:
        """Count a new client, or refuse it."""
        peer = transport.get_extra_info("peername")
        address = str(peer[0]) if isinstance(peer, tuple) else ""
        super().connection_made(transport)
        if CONNECTIONS.admit(address, PRESSURE):
            self._counted = address
            return
        transport.write(_REFUSAL)
        transport.close()

    def data_received(self, data: bytes) -> None:
        """Ignore bytes that a refused client has sent already."""
        if self._counted is not None:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count a client that left."""
        if self._counted is not None:
            CONNECTIONS.leave(self._counted)
            self._counted = None
        super().connection_lost(exc)
