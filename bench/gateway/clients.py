"""Clients that cost little: raw sockets for HTTP, bytes instead of messages for gRPC; open loop or a fixed crowd."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from grpc import aio
from grpc.aio import AioRpcError

from bench.gateway.canned import MODEL, prompt_text
from protos import runner_pb2

_END = b"\r\n0\r\n\r\n"  # the last chunk; a head may end in a zero as well
_FIRST = b" word"
_ADDRESSES = 200
_READ_BYTES = 256 * 1024
# Of an answer; a gateway that is overrun by a busy machine must not hold up the whole run.
_DEADLINE_S, _DEADLINE_PER_TOKEN_S = 15.0, 0.03


@dataclass(frozen=True, slots=True)
class Timed:
    """One answer: seconds from the moment at which it was due."""

    first_s: float
    whole_s: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Outcomes:
    """A loop: the answers, and how many requests got none."""

    timed: list[Timed]
    failed: int


Ask = Callable[[int, int, float], Awaitable[Timed]]  # tokens, rate, when it was due


@dataclass(slots=True)
class HttpClient:
    """Streams chat completions over connections that are kept."""

    host: str
    port: int
    path: str = "/v1/chat/completions"
    model: str = MODEL
    mark: bytes = _FIRST  # what is in the answer once for each token
    _connections: int = 0
    _idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    async def ask(self, tokens: int, rate: int, due_s: float) -> Timed:
        """One answer, read to its end."""
        body = self.body(tokens, rate)
        connection = await self._connection()
        reader, writer = connection
        head = (
            f"POST {self.path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer none\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        first_s, seen = 0.0, b""
        pieces: list[bytes] = []
        fresh: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            async with asyncio.timeout(_DEADLINE_S + tokens * _DEADLINE_PER_TOKEN_S):
                while not seen.endswith(_END):
                    data = await reader.read(_READ_BYTES)
                    if not data and not pieces and (reader, writer) != fresh:
                        # The server let go of a kept connection at the same moment, as it may.
                        reader, writer = connection = fresh = await self._connect()
                        writer.write(head.encode() + body)
                        continue
                    if not data:
                        raise ConnectionError(b"".join(pieces)[:500])
                    pieces.append(data)
                    seen = (seen + data)[-64:] if first_s else seen + data
                    if not first_s and self.mark in seen:
                        first_s = time.perf_counter()
        except OSError:
            writer.close()
            raise
        whole_s = time.perf_counter()
        self._idle.append(connection)
        count = b"".join(pieces).count(self.mark)
        if count != tokens:
            raise ConnectionError(f"{count} tokens came instead of {tokens}: {b''.join(pieces)[:500]!r}")
        return Timed(first_s - due_s, whole_s - due_s, tokens)

    def body(self, tokens: int, rate: int) -> bytes:
        """Return the request body for an answer of so many tokens."""
        return orjson.dumps(
            {"model": self.model, "stream": True, "messages": [{"role": "user", "content": prompt_text(tokens, rate)}]}
        )

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One that is kept, unless the server has closed it meanwhile."""
        while self._idle:
            kept = self._idle.pop()
            if not kept[0].at_eof():
                return kept
        return await self._connect()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """From ever other addresses of loopback: a gateway takes only so many connections of one."""
        self._connections += 1
        source = f"127.0.1.{self._connections % _ADDRESSES + 1}"
        return await asyncio.open_connection(self.host, self.port, local_addr=(source, 0))


@dataclass(slots=True)
class GrpcClient:
    """Calls the runner as the gateway does, and looks only at the bytes."""

    channel: aio.Channel

    async def ask(self, tokens: int, rate: int, due_s: float) -> Timed:
        """One answer, read to its end."""
        request = runner_pb2.GenerateRequest(prompt=[runner_pb2.Segment(text=prompt_text(tokens, rate))])
        first_s, count = 0.0, 0
        generate: Any = self.channel.unary_stream("/puna.v1.Runner/Generate")
        async for event in generate(request.SerializeToString()):
            if b" word" in event:
                first_s = first_s or time.perf_counter()
                count += 1
        if count != tokens:
            raise ConnectionError(f"{count} tokens came instead of {tokens}")
        return Timed(first_s - due_s, time.perf_counter() - due_s, tokens)


async def open_loop(ask: Ask, *, per_second: float, duration_s: float, tokens: int) -> Outcomes:
    """Send requests at a constant rate, without waiting for earlier ones; each is timed from the moment it was due.

    Raises:
        OSError: none was answered.
    """
    begun_s = time.perf_counter()
    running: list[asyncio.Task[Timed]] = []
    for number in range(round(per_second * duration_s)):
        due_s = begun_s + number / per_second
        if (wait_s := due_s - time.perf_counter()) > 0:
            await asyncio.sleep(wait_s)
        running.append(asyncio.ensure_future(ask(tokens, 0, due_s)))
    return await _outcomes(running)


async def crowd(ask: Ask, *, streams: int, tokens: int, rate: int) -> Outcomes:
    """So many answers at once.

    Raises:
        OSError: none came to its end.
    """
    now_s = time.perf_counter()
    return await _outcomes([asyncio.ensure_future(ask(tokens, rate, now_s)) for _ in range(streams)])


async def _outcomes(running: list[asyncio.Task[Timed]]) -> Outcomes:
    ended = await asyncio.gather(*running, return_exceptions=True)
    timed = [one for one in ended if isinstance(one, Timed)]
    errors = [one for one in ended if isinstance(one, BaseException)]
    if not timed or not all(isinstance(error, OSError | AioRpcError) for error in errors):
        raise errors[0]
    return Outcomes(timed, len(errors))
