"""Notice to a cluster that the clock of this machine does not agree with its certificates.

With such a clock no certificate of the cluster passes verification, and gRPC calls nothing without it. So this is one
call of `puna.v1.Authority/GetAuthorities` in hand-made frames, to an unverified peer. It holds nothing but this clock.

Source: RFC 9113 (frames), RFC 7541 6.2.2 (literal fields), gRPC over HTTP/2 (PROTOCOL-HTTP2.md).
"""

import asyncio
import ssl
from contextlib import suppress

from common.clock import MS_PER_S
from common.network import split_host_port
from protos import authority_pb2

_METHOD = "/puna.v1.Authority/GetAuthorities"
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 0x1, 0x4
_FRAME_HEADER_BYTES = 9
_WITHIN_S = 5.0


async def report_clock(address: str, *, now_unix_s: float) -> None:
    """Tell the join listener at `address` what this clock says, so that its log has it, too. Failures do not matter."""
    host, port = split_host_port(address)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with suppress(OSError, EOFError, TimeoutError):
        async with asyncio.timeout(_WITHIN_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            try:
                writer.write(_call(address, now_unix_s))
                while await _next_kind(reader) != _HEADERS:  # those of the answer
                    pass
            finally:
                writer.transport.abort()


def _call(address: str, now_unix_s: float) -> bytes:
    message = authority_pb2.GetAuthoritiesRequest(clock_unix_ms=round(now_unix_s * MS_PER_S)).SerializeToString()
    fields = {
        ":method": "POST",
        ":scheme": "https",
        ":path": _METHOD,
        ":authority": address,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    headers = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
    return (
        _PREFACE
        + _frame(_SETTINGS, 0, 0, b"")
        + _frame(_HEADERS, _END_HEADERS, 1, headers)
        + _frame(_DATA, _END_STREAM, 1, b"\0" + len(message).to_bytes(4) + message)
    )


def _text(text: str) -> bytes:
    content = text.encode()
    assert len(content) < 0x7F  # longer ones have a longer prefix; names of machines are shorter
    return bytes((len(content),)) + content


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


async def _next_kind(reader: asyncio.StreamReader) -> int:
    """Read a frame; return its kind."""
    head = await reader.readexactly(_FRAME_HEADER_BYTES)
    await reader.readexactly(int.from_bytes(head[:3]))
    return head[3]
