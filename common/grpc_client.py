"""How every gRPC channel of Puna is set up, and how a call carries the request id."""

from typing import Any

import structlog
from grpc import aio

from common import tracing
from common.grpc_server import MESSAGE_BYTES_MAX, REQUEST_ID_KEY

# Silent loss of a peer is noticed within 8 s, also on a channel without calls.
CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.use_local_subchannel_pool", 1),
]


def open_channel(address: str) -> aio.Channel:
    """A channel to `host:port` or `unix:/path`; connects when first used."""
    return aio.insecure_channel(address, options=CHANNEL_OPTIONS)


def call_metadata() -> tuple[tuple[str, str], ...]:
    """Metadata for an outgoing call: the id of the request that is being served, if any, and its trace."""
    request_id = structlog.contextvars.get_contextvars().get("request_id")
    headers = tracing.current().headers()
    return ((REQUEST_ID_KEY, request_id), *headers) if isinstance(request_id, str) else headers
