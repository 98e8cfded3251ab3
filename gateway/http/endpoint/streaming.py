"""Streams over HTTP: server-sent events and lines of JSON. Each ends in exactly one terminal or error object."""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import orjson

from common.errors import InternalError, PunaError, RequestCanceled
from common.telemetry.logs import get_logger
from gateway.answers.choices import ChoiceEvent
from gateway.answers.feed import Feed
from gateway.core.request.answers import Delta, Dialect, LoadUpdate, Queued
from gateway.http.endpoint.errors import error_body
from gateway.http.endpoint.exchange import Exchange

log = get_logger()

Event = TypeVar("Event")

STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
NDJSON_HEADERS = {"content-type": "application/x-ndjson", **STREAM_HEADERS}
SSE_HEADERS = {"content-type": "text/event-stream; charset=utf-8", **STREAM_HEADERS}
HEARTBEAT_S = 10.0
SSE_DONE = b"data: [DONE]\n\n"

Objects = Callable[[Event], Iterable[object]]


async def stream_ndjson(exchange: Exchange, feed: Feed[Event], objects: Objects[Event]) -> None:
    """Write one object per line. Never committed before the first object, because clients parse every line.

    Later silence is filled with spaces in front of the next object, which parsers of JSON skip; an empty line would
    end the stream of Ollama's own clients with an error.
    """
    loop = asyncio.get_running_loop()
    spaces = _Spaces(exchange, heard_s=loop.time())
    writing = loop.create_task(spaces.write(), name="spaces")
    try:
        async for event in feed:
            spaces.heard_s = loop.time()
            lines = [orjson.dumps(value) + b"\n" for value in objects(event)]
            if lines:
                if exchange.status is None:
                    await exchange.begin(200, NDJSON_HEADERS)
                await exchange.write(b"".join(lines))
    except PunaError as error:
        if exchange.status is None or isinstance(error, RequestCanceled):
            raise
        await _write_error(exchange, error, b"", b"\n")
    else:
        await exchange.write(b"", more=False)
    finally:
        writing.cancel()


@dataclass(slots=True)
class _Spaces:
    """White space in the silence of a stream of lines, which keeps the connection alive."""

    exchange: Exchange
    heard_s: float  # when the last event came, on the loop's clock

    async def write(self) -> None:
        """Write a space whenever nothing has come for a while; before the first object nothing."""
        loop = asyncio.get_running_loop()
        while True:
            wait_s = self.heard_s + HEARTBEAT_S - loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
                continue
            self.heard_s = loop.time()
            if self.exchange.status is not None and not self.exchange.complete:
                await self.exchange.write(b" ")


def data_event(value: object) -> bytes:
    """Encode an event as OpenAI's clients read them."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def named_event(value: Mapping[str, object]) -> bytes:
    """Encode an event as Anthropic's clients read them: its type stands before it once more."""
    return f"event: {value['type']}\n".encode() + data_event(value)


@dataclass(slots=True, kw_only=True)
class SseStream(Generic[Event]):
    """A stream of server-sent events. `commit_s`: see PUNA_STREAM_COMMIT_S."""

    exchange: Exchange
    feed: Feed[Event]
    objects: Objects[Event]
    commit_s: float
    named: bool = False  # events as Anthropic's clients read them, without an end of their own
    heartbeat: bytes = b""  # empty: a comment that says what is being waited for
    failure: Callable[[dict[str, object]], Any] | None = None  # makes the event of a broken stream from its error
    _progress: str = "waiting"
    _heard_s: float = 0.0  # on the loop's clock
    _begun: bool = False
    _beginning: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Relay the feed."""
        frame: Callable[[Any], bytes] = named_event if self.named else data_event
        loop = asyncio.get_running_loop()
        self._heard_s = loop.time()
        comments = loop.create_task(self._comment(), name="comments")
        try:
            async for item in self.feed:
                self._heard_s = loop.time()
                event = item.event if isinstance(item, ChoiceEvent) else item
                if not isinstance(event, Delta):
                    self._note_progress(event)
                frames = [frame(value) for value in self.objects(item)]
                if frames:
                    await self._begin()
                    await self.exchange.write(b"".join(frames))
            await self._begin()
            await self.exchange.write(b"" if self.named else SSE_DONE, more=False)
        except PunaError as error:
            if self.exchange.status is None or isinstance(error, RequestCanceled):
                raise
            await self._begin()
            await self._fail(error)
        finally:
            comments.cancel()

    async def _comment(self) -> None:
        """Write a comment whenever nothing has come for a while, which keeps the connection alive."""
        loop = asyncio.get_running_loop()
        while True:
            silence_s = HEARTBEAT_S if self._begun else self.commit_s or math.inf
            wait_s = self._heard_s + silence_s - loop.time()
            if wait_s > 0:
                await asyncio.sleep(min(wait_s, HEARTBEAT_S))
                continue
            self._heard_s = loop.time()
            await self._begin()
            if not self.exchange.complete:
                await self.exchange.write(self.heartbeat or f": {self._progress}\n\n".encode())

    async def _fail(self, error: PunaError) -> None:
        if self.failure is not None:
            _note_error(self.exchange, error)
            body = orjson.loads(error_body(error, self.exchange.dialect, self.exchange.request_id))["error"]
            await self.exchange.write(named_event(self.failure(body)), more=False)
            return
        is_named = self.exchange.dialect is Dialect.ANTHROPIC
        await _write_error(self.exchange, error, b"event: error\ndata: " if is_named else b"data: ", b"\n\n")

    def _note_progress(self, item: object) -> None:
        match item:
            case Queued(position=position):
                self._progress = f"queued position={position}"
            case LoadUpdate(fraction=fraction):
                self._progress = f"loading {fraction:.0%}"

    async def _begin(self) -> None:
        if self._begun:
            return
        async with self._beginning:
            if self.exchange.status is None:
                await self.exchange.begin(200, SSE_HEADERS)
            self._begun = True


async def _write_error(exchange: Exchange, error: PunaError, before: bytes, after: bytes) -> None:
    """Write the one error object that ends a stream whose status line is out."""
    _note_error(exchange, error)
    await exchange.write(before + error_body(error, exchange.dialect, exchange.request_id) + after, more=False)


def _note_error(exchange: Exchange, error: PunaError) -> None:
    if isinstance(error, InternalError):
        log.error("stream.failed", text=error.message)
    exchange.record.error = error.reason
