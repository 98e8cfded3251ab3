"""One HTTP request and its response, as endpoints see them.

JSON bodies come from strangers: they are read strictly, within bounds, and off the event loop when large.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from starlette.datastructures import Headers, QueryParams
from starlette.types import Receive, Scope, Send

from common.durations import go_duration_text
from common.errors import InvalidRequest, RequestCanceled, RequestTimeout, RequestTooLarge, UnsupportedMediaType
from common.rate_limits import BucketLevel
from gateway.answers.record import RequestRecord
from gateway.core.dispatch.work_limit import cost_of
from gateway.core.request.answers import Dialect
from gateway.keys.visits import current_visit, sender
from gateway.large_texts import INLINE_CHARACTERS, beside_loop
from gateway.pressure.pressure import PRESSURE
from gateway.pressure.work import WORK, work_s

BODY_BYTES_MAX = 32 * 1024 * 1024
# A body without images has no reason to be larger; one that is, is refused once it is known to have none.
TEXT_BODY_BYTES_MAX = 10 * 1024 * 1024
DEPTH_MAX = 64
NODES_MAX = 200_000

_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_INSIDE_STRING = re.compile(rb'(?:[^"\\]{1,64}+|\\.){0,256}+', re.DOTALL)
_SHORT_STRINGS = re.compile(rb'(?:[^"]{1,1024}+|"(?:[^"\\]{1,64}+|\\.){0,64}+"){0,16}+', re.DOTALL)
_QUOTE = ord('"')
_LONG_INTEGER = re.compile(rb"(?<![0-9.eE+])-?[0-9]{20,}(?![0-9.eE])")
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)  # every digit as 0
_LONG_DIGITS = b"0" * 20
_PLAIN_BYTES_MAX = 1024 * 1024  # in a larger one each look takes milliseconds, and keeps the event loop from running
_IMAGE_FIELDS = frozenset({"images", "image_url"})
_TOO_LARGE = f"request body without images exceeds {TEXT_BODY_BYTES_MAX} bytes"
# A body that takes longer is a client that drips.
BODY_READ_S_MAX = 60.0
# Bytes and seconds of a refused body that are read before the refusal is sent.
DISCARD_BYTES_MAX = 64 * 1024 * 1024
DISCARD_S_MAX = 5.0
IGNORED = "x-puna-ignored"
_IGNORED_MAX = 32
_IGNORED_LENGTH_MAX = 128
_UNPRINTABLE = re.compile(r"[^!-+\--~]")  # of what a client named, a comma included


async def parse_json(raw: bytes | bytearray) -> Any:
    """Parse the value of a body.

    Raises:
        InvalidRequest: no valid JSON, or one of the limits is exceeded.
        RequestTooLarge: larger than a body without images may be.
    """
    return await beside_loop(len(raw), lambda: _parsed(raw))


def _parsed(raw: bytes | bytearray) -> Any:
    if not raw or raw.isspace():
        raise InvalidRequest("missing request body")
    if len(raw) > TEXT_BODY_BYTES_MAX and not any(f'"{name}"'.encode() in raw for name in _IMAGE_FIELDS):
        raise RequestTooLarge(_TOO_LARGE)  # before it is parsed
    try:
        value = orjson.loads(raw)  # refuses NaN, infinity, lone surrogates, anything but UTF-8
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"invalid JSON in request body: {error}") from error
    keys, has_images = _measured(value)
    if not _is_plain(raw, value, keys):
        # The rest of valid JSON without its strings shows what parsers hide: one colon per key, and every digit.
        bare = _without_strings(raw).translate(None, b" \t\r\n")
        if bare.count(b":") != keys:
            raise InvalidRequest("invalid JSON in request body: duplicate key")
        if _LONG_INTEGER.search(bare):
            raise InvalidRequest("invalid JSON in request body: integer with more than 19 digits")
    if len(raw) > TEXT_BODY_BYTES_MAX and not has_images:
        raise RequestTooLarge(_TOO_LARGE)
    return value


def _is_plain(raw: bytes | bytearray, value: Any, keys: int) -> bool:
    """Return True if the colons and digits alone show that the parser hid nothing, as those of most bodies do."""
    if len(raw) > _PLAIN_BYTES_MAX or _LONG_DIGITS in raw.translate(_DIGITS):
        return False
    colons = raw.count(b":")
    if colons == keys:
        return True
    # An escaped colon would make up for the colon of a hidden key.
    return b"\\u003a" not in raw and b"\\u003A" not in raw and colons == keys + _colons(value)


def _colons(value: Any) -> int:
    """Count the colons in the strings of a value, its keys included."""
    count = 0
    found = [value]
    while found:
        one = found.pop()
        if isinstance(one, str):
            count += one.count(":")
        elif isinstance(one, list):
            found += one
        elif isinstance(one, dict):
            found += one
            found += one.values()
    return count


def _without_strings(raw: bytes | bytearray) -> bytes:
    """Return valid JSON without its strings. Slices of a long one are below a millisecond: see `SpecialTexts`."""
    if len(raw) <= INLINE_CHARACTERS:
        return _STRING.sub(b"", raw)
    kept, position = [], 0
    while position < len(raw):
        start, position = position, _some(_SHORT_STRINGS, raw, position)
        if position > start:
            kept.append(_STRING.sub(b"", raw[start:position]))
            continue
        position += 1  # the quotation mark before a long string
        while raw[position] != _QUOTE:
            position = _some(_INSIDE_STRING, raw, position)
        position += 1
    return b"".join(kept)


def _some(pattern: re.Pattern[bytes], raw: bytes | bytearray, position: int) -> int:
    match = pattern.match(raw, position)
    assert match is not None  # it matches nothing, too
    return match.end()


def _measured(value: Any) -> tuple[int, bool]:
    """Count the keys, look for images, hold depth and size to their limits."""
    keys, nodes, depth, has_images = 0, 0, 0, False
    level = [value]
    while level:
        nodes += len(level)
        if nodes > NODES_MAX:
            raise InvalidRequest(f"request body has more than {NODES_MAX} values")
        below: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                keys += len(node)
                has_images = has_images or not _IMAGE_FIELDS.isdisjoint(node)
                below += node.values()
            elif isinstance(node, list):
                below += node
            else:
                continue
            if depth == DEPTH_MAX:
                raise InvalidRequest(f"request body is nested deeper than {DEPTH_MAX} levels")
        level, depth = below, depth + 1
    return keys, has_images


def rate_headers(levels: Mapping[str, BucketLevel], dialect: Dialect, *, wall_unix_s: float) -> dict[str, str]:
    """Build the headers of a dialect; Ollama has none."""
    headers: dict[str, str] = {}
    for name, level in levels.items():
        match dialect:
            case Dialect.OPENAI:
                headers |= _openai(name, level)
            case Dialect.ANTHROPIC:
                headers |= _anthropic(name, level, wall_unix_s)
    return headers


def _openai(name: str, level: BucketLevel) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{name}": str(level.limit),
        f"x-ratelimit-remaining-{name}": str(level.remaining),
        f"x-ratelimit-reset-{name}": go_duration_text(level.full_in_s),
    }


def _anthropic(name: str, level: BucketLevel, wall_unix_s: float) -> dict[str, str]:
    # Whole seconds, rounded up: a retry at the named time is not too early.
    full_at = datetime.fromtimestamp(wall_unix_s, UTC) + timedelta(seconds=level.full_in_s + 0.999999)
    return {
        f"anthropic-ratelimit-{name}-limit": str(level.limit),
        f"anthropic-ratelimit-{name}-remaining": str(level.remaining),
        f"anthropic-ratelimit-{name}-reset": f"{full_at:%Y-%m-%dT%H:%M:%SZ}",
    }


@dataclass(slots=True, kw_only=True)
class Exchange:
    """Reads the request, writes the response. Headers common to all responses are added on the way out."""

    scope: Scope
    receive: Receive
    send: Send
    record: RequestRecord
    request_id: str
    path_value: str = ""  # what stands behind the prefix of a route like /v1/models/
    headers_out: dict[str, str] = field(default_factory=dict)
    status: int | None = None  # once the status line is out
    complete: bool = False  # the last byte of the response is out
    body_read: bool = False
    _headers: Headers | None = None

    @property
    def dialect(self) -> Dialect:
        """Of the matched route."""
        return self.record.dialect

    @property
    def headers(self) -> Headers:
        """The request's headers."""
        if self._headers is None:
            self._headers = Headers(scope=self.scope)
        return self._headers

    @property
    def wants_debug(self) -> bool:
        """True if the answer is to say where it was produced."""
        return self.headers.get("x-puna-debug") == "1"

    @property
    def query(self) -> QueryParams:
        """The request's query."""
        return QueryParams(self.scope["query_string"])

    async def json(self) -> Any:
        """Read the request's JSON body.

        Raises:
            InvalidRequest: missing or malformed.
            UnsupportedMediaType: compressed, or a media type that the dialect does not take.
            RequestTooLarge: over the limit.
            QueueFull: the gateway has too much to do.
            RequestCanceled: the client left before it was complete.
        """
        self._check_media_type()
        try:
            async with asyncio.timeout(BODY_READ_S_MAX):
                raw = await self._read_body()
        except TimeoutError as error:
            raise RequestTimeout("the request body did not arrive in time") from error
        return await parse_json(raw)

    def _check_media_type(self) -> None:
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            raise UnsupportedMediaType("Content-Encoding is not supported")
        media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type.startswith("multipart/"):
            raise UnsupportedMediaType("multipart bodies are not supported")
        # curl -d sends a form type, and Ollama's clients rely on that being accepted.
        if self.dialect is not Dialect.OLLAMA and media_type not in ("", "application/json"):
            raise UnsupportedMediaType("Content-Type must be application/json")

    async def _read_body(self) -> bytearray:
        announced = self.headers.get("content-length", "0")
        too_large = RequestTooLarge(f"request body exceeds {BODY_BYTES_MAX} bytes")
        if announced.isdecimal() and int(announced) > BODY_BYTES_MAX:
            raise too_large
        PRESSURE.check_body()
        is_counted_late = self.record.is_limited and self.record.work is None
        if is_counted_late:
            WORK.check(cost_of(int(announced) if announced.isdecimal() else 0), sender(), work_s())
        body = bytearray()
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise RequestCanceled("request canceled")
            body += message.get("body", b"")
            if len(body) > BODY_BYTES_MAX:
                raise too_large
            PRESSURE.check_body()
            if not message.get("more_body", False):
                break
        self.body_read = True
        if is_counted_late:
            self.record.begin_work(len(body))
        return body

    async def discard_body(self) -> None:
        """Read on for nothing: a client that is still sending would lose the answer when the connection is reset."""
        announced = self.headers.get("content-length", "0")
        if not announced.isdecimal() or int(announced) > DISCARD_BYTES_MAX:
            return
        seen = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_S_MAX):
                while not self.body_read and seen <= DISCARD_BYTES_MAX:
                    message = await self.receive()
                    seen += len(message.get("body", b""))
                    self.body_read = not message.get("more_body", False)

    async def respond(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a whole response."""
        await self.begin(status, {**headers, "content-length": str(len(body))})
        await self.write(b"" if self.scope["method"] == "HEAD" else body, more=False)

    async def respond_json(self, value: object, status: int = 200) -> None:
        """Send a whole response with a JSON body."""
        await self.respond(status, orjson.dumps(value), {"content-type": "application/json"})

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the status line."""
        assert self.status is None
        self.status = status
        raw = [(key.encode("latin-1"), value.encode("latin-1", "replace")) for key, value in headers.items()]
        common = self.headers_out | self._rate_headers()
        raw += [(key.encode("latin-1"), value.encode("latin-1", "replace")) for key, value in common.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})

    def ignore(self, *names: str) -> None:
        """Name fields of the body that have no effect in the header x-puna-ignored; of very many the first."""
        if not names:
            return
        known = self.headers_out.get(IGNORED, "").split(", ")
        shown = {_UNPRINTABLE.sub("?", name)[:_IGNORED_LENGTH_MAX] for name in names}
        found = sorted({*known, *shown} - {""})
        self.headers_out[IGNORED] = ", ".join(found[:_IGNORED_MAX])

    def _rate_headers(self) -> dict[str, str]:
        visit = current_visit()
        if visit is None or visit.usage is None:
            return {}
        return rate_headers(visit.usage.levels, self.dialect, wall_unix_s=visit.clock.wall_unix_s())

    async def write(self, chunk: bytes, *, more: bool = True) -> None:
        """Send a piece of the body; waits while the client has much to read."""
        self.complete = not more
        await self.send({"type": "http.response.body", "body": chunk, "more_body": more})


Endpoint = Callable[[Exchange], Awaitable[None]]
