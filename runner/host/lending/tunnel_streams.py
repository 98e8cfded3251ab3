"""Connections of the tunnel: sockets that notice a dead peer, and bytes carried both ways with an end for each way."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass

from common.network import notice_silence
from runner.core.host.tunnel import END_OF_DIRECTION, FRAME_BYTES_MAX, FRAME_HEADER, LINE_BYTES_MAX, BadLine, frame

CHUNK_BYTES = 256 * 1024
assert CHUNK_BYTES <= FRAME_BYTES_MAX
# What a connection may raise when it breaks, wherever it breaks.
BROKEN = (OSError, EOFError, ssl.SSLError)


@dataclass(frozen=True, slots=True)
class TunnelStream:
    """Both directions of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def close(self) -> None:
        """Close at once; what is still to be written is dropped."""
        self.writer.transport.abort()

    async def read_line(self) -> bytes:
        """One line of the opening.

        Raises:
            BadLine: too long.
            EOFError, OSError: the connection broke.
        """
        try:
            line = await self.reader.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            raise BadLine("line too long") from error
        if len(line) > LINE_BYTES_MAX:
            raise BadLine("line too long")
        return line


def watch_peer(connection: socket.socket) -> None:
    """Have the kernel notice within 6 s that the other machine is gone: the engine would wait for it for ever."""
    notice_silence(connection, idle_s=3, interval_s=1, unacknowledged_s=6)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def accept_tls(connection: socket.socket, context: ssl.SSLContext, *, timeout_s: float) -> TunnelStream:
    """Do the server's side of a handshake. Close the socket when it fails.

    Raises:
        OSError, TimeoutError: no connection.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=CHUNK_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    try:
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=context, ssl_handshake_timeout=timeout_s
        )
    except BaseException:
        connection.close()
        raise
    return TunnelStream(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


async def dial_tls(host: str, port: int, context: ssl.SSLContext, *, timeout_s: float) -> TunnelStream:
    """Connect and shake hands.

    Raises:
        OSError, TimeoutError: no connection.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout_s):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            watch_peer(connection)
            await loop.sock_connect(connection, address)
            reader, writer = await asyncio.open_connection(
                sock=connection, ssl=context, server_hostname="", limit=CHUNK_BYTES
            )
        except BaseException:
            connection.close()
            raise
    return TunnelStream(reader, writer)


async def carry(
    plain: TunnelStream, framed: TunnelStream, *, plain_ended_first: Callable[[], None] = lambda: None
) -> None:
    """Carry bytes between an ordinary connection and the tunnel until both directions ended or one of them broke.

    Each side reads only as fast as the other takes. An end in one direction is passed on, the other direction goes on.
    `plain_ended_first` hears that the ordinary connection ended although nothing has ended in the tunnel.
    """
    receiving = asyncio.create_task(_receive(framed.reader, plain.writer))

    def see_end() -> None:
        if not receiving.done():
            plain_ended_first()

    ways = [asyncio.create_task(_send(plain.reader, framed.writer, see_end)), receiving]
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
        for way in done:
            way.result()
        for stream in (plain, framed):
            with contextlib.suppress(*BROKEN):
                await stream.writer.drain()
                stream.writer.close()
                await stream.writer.wait_closed()
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        plain.close()
        framed.close()


async def _send(source: asyncio.StreamReader, target: asyncio.StreamWriter, ended: Callable[[], None]) -> None:
    while True:
        try:
            chunk = await source.read(CHUNK_BYTES)
        except OSError:
            ended()
            raise
        if not chunk:
            ended()
        target.write(frame(chunk) if chunk else END_OF_DIRECTION)
        await target.drain()
        if not chunk:
            return


async def _receive(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while True:
        (length,) = FRAME_HEADER.unpack(await source.readexactly(FRAME_HEADER.size))
        if length == 0:
            target.write_eof()
            return
        if length > FRAME_BYTES_MAX:
            raise OSError(f"a frame of {length} bytes")
        remaining = length
        while remaining:
            part = await source.read(min(remaining, CHUNK_BYTES))
            if not part:
                raise EOFError("the tunnel broke inside a frame")
            target.write(part)
            await target.drain()
            remaining -= len(part)
