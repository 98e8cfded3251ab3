"""Set-up of every gRPC channel of Puna, and the request id that a call carries."""

import asyncio
from collections.abc import Iterable
from typing import Any, TypeVar

import structlog
from grpc import aio

from common.grpc.errors import domain_errors
from common.grpc.server import KEEPALIVE_OPTIONS, MESSAGE_BYTES_MAX, REQUEST_ID_KEY
from common.grpc.trusted_channel import TrustedChannel
from common.network import UNIX_PREFIX
from common.telemetry import tracing
from common.telemetry.logs import get_logger
from common.trust.identity import own_identity
from common.trust.sockets import socket_fault

log = get_logger()

# A socket that is never there: calls to it end as to one that nothing listens on.
_REFUSED = "unix:/dev/null/refused"

Request = TypeVar("Request")
Response = TypeVar("Response")

CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    *KEEPALIVE_OPTIONS.items(),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.use_local_subchannel_pool", 1),
]


def open_channel(address: str, peer: str = "", options: Iterable[tuple[str, Any]] = ()) -> aio.Channel:
    """Open a channel to `host:port` or `unix:/path`; it connects at the first call.

    `peer` is the role that the certificate there must name if this process has an identity: `node/a` is that node,
    `node` is any node, empty is our own role. `options` are added to those of every channel. Sockets that may be
    another user's are not connected to.
    """
    channel_options = [*CHANNEL_OPTIONS, *options]
    if address.startswith(UNIX_PREFIX):
        if fault := socket_fault(address):
            log.error("socket.refused", address=address, text=fault)
            address = _REFUSED
    elif (identity := own_identity()) is not None:
        return TrustedChannel(address, peer, identity, channel_options)
    return aio.insecure_channel(address, options=channel_options)


class ChannelBook:
    """One channel for each address that is called."""

    def __init__(self, peer: str = "") -> None:
        """`peer`: as `open_channel`."""
        self._peer = peer
        self._channels: dict[tuple[str, str], aio.Channel] = {}  # by address and peer

    def channel(self, address: str, peer: str = "") -> aio.Channel:
        """Return the channel to an address, the same every time. `peer`: another one than that of the book."""
        key = address, peer or self._peer
        known = self._channels.get(key)
        if known is None:
            known = self._channels[key] = open_channel(*key)
        return known

    async def forget(self, address: str) -> None:
        """Close the channel to one that left."""
        keys = [key for key in self._channels if key[0] == address]
        await asyncio.gather(*(self._channels.pop(key).close() for key in keys))

    async def close(self) -> None:
        """Close every channel; running calls end."""
        await asyncio.gather(*(self.forget(address) for address in {key[0] for key in self._channels}))


async def ask(
    method: "aio.UnaryUnaryMultiCallable[Request, Response]", request: Request, *, timeout_s: float | None
) -> Response:
    """Return the answer to one call, which carries the id of the request that is being served.

    Raises:
        PunaError: what the other side raised, or the nearest one for an error of the transport.
    """
    with domain_errors():
        return await method(request, timeout=timeout_s, metadata=call_metadata())


def call_metadata() -> tuple[tuple[str, str], ...]:
    """Metadata for an outgoing call: the id of the request that is being served, if any, and its trace."""
    request_id = structlog.contextvars.get_contextvars().get("request_id")
    headers = tracing.current().headers()
    return ((REQUEST_ID_KEY, request_id), *headers) if isinstance(request_id, str) else headers
