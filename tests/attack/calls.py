"""Calls of an attacker: any method with any bytes to any listener, without the checks of our own clients."""

import asyncio
import contextlib
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from cryptography import x509
from grpc import aio

if TYPE_CHECKING:  # generic in the stubs only
    Stream = aio.StreamStreamCall[bytes, bytes]

# What gRPC's client says when a refusal arrived before a message was sent: it loses the status then.
LOST_STATUS = "Internal error from Core"
TRIES_MAX = 10
# Codes of a call that an interceptor or TLS refused.
REFUSED = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED})


@dataclass(frozen=True, slots=True)
class Caller:
    """Files of a certificate that the attacker holds."""

    authorities: bytes
    certificate: bytes
    key: bytes

    @classmethod
    def of(cls, directory: Path, *, authorities: Path | None = None) -> "Caller":
        """Read them; `authorities` are those of the servers if they are other ones."""
        read = [(directory / name).read_bytes() for name in ("ca.crt", "tls.crt", "tls.key")]
        return cls(authorities.read_bytes() if authorities else read[0], *read[1:])


@dataclass(frozen=True, slots=True)
class Answer:
    """End of a call, and its first message."""

    code: grpc.StatusCode
    text: str
    first: bytes = b""

    @property
    def refused(self) -> bool:
        """Return True if the call never came to the method."""
        return self.code in REFUSED and not self.first


async def exchange(
    address: str, method: str, request: bytes, caller: Caller | None, *, within_s: float = 10.0
) -> Answer:
    """Send one message, wait for the first one or the end. OK stands for a stream that was left open."""
    for _ in range(TRIES_MAX):
        answer = await _exchange_once(address, method, request, caller, within_s)
        if answer.text != LOST_STATUS:
            return answer
    return answer


async def _exchange_once(address: str, method: str, request: bytes, caller: Caller | None, within_s: float) -> Answer:
    async with await _channel(address, caller) as channel:
        call: Stream = channel.stream_stream(method, request_serializer=None, response_deserializer=None)(
            timeout=within_s
        )
        try:
            await call.write(request)
            await call.done_writing()
            first = await call.read()
            if isinstance(first, bytes):
                return Answer(grpc.StatusCode.OK, "", first)
        except (aio.AioRpcError, asyncio.InvalidStateError):
            pass
        return Answer(await call.code(), (await call.details() or "")[:200])


async def converse(address: str, method: str, request: bytes, caller: Caller | None) -> tuple[list[bytes], str]:
    """Send one message, return all of the answer and the error at its end."""
    messages = []
    async with await _channel(address, caller) as channel:
        ask: aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(
            method, request_serializer=None, response_deserializer=None
        )
        call = ask(request, timeout=60)
        try:
            messages += [message async for message in call]
        except aio.AioRpcError as error:
            return messages, f"{error.code().name} {error.details()}"
    return messages, ""


async def open_stream(
    address: str, method: str, request: bytes, caller: Caller | None
) -> "tuple[aio.Channel, Stream, bytes]":
    """Open a stream that stays, and return the first message; empty if it was refused."""
    channel = await _channel(address, caller)
    call: Stream = channel.stream_stream(method, request_serializer=None, response_deserializer=None)()
    first: object = b""
    with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
        await call.write(request)
        first = await asyncio.wait_for(call.read(), 10)
    return channel, call, first if isinstance(first, bytes) else b""


async def _channel(address: str, caller: Caller | None) -> aio.Channel:
    options = [("grpc.max_receive_message_length", 2**28), ("grpc.use_local_subchannel_pool", 1)]
    if caller is None:
        return aio.insecure_channel(address, options=options)
    name = await asyncio.to_thread(_shown_name, address)
    credentials = grpc.ssl_channel_credentials(caller.authorities, caller.key, caller.certificate)
    return aio.secure_channel(address, credentials, options=[*options, ("grpc.ssl_target_name_override", name)])


def _shown_name(address: str) -> str:
    """Return a name that the server's certificate has, so that no check of ours protects it."""
    host, _, port = address.rpartition(":")
    try:
        shown = x509.load_pem_x509_certificate(ssl.get_server_certificate((host, int(port)), timeout=5).encode())
        names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return names.get_values_for_type(x509.DNSName)[0]
    except (OSError, x509.ExtensionNotFound, IndexError):
        return "unknown.puna.internal"
