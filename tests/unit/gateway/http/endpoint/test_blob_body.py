"""A body as pieces: whole, or with the reason why it is not."""

from collections.abc import Iterable
from typing import Any

import pytest

from common.errors import (
    InvalidRequest,
    PunaError,
    RequestCanceled,
    RequestTimeout,
    RequestTooLarge,
    UnsupportedMediaType,
)
from gateway.answers.record import RequestRecord
from gateway.core.request.answers import Dialect
from gateway.http.endpoint.blob_body import PIECE_BYTES, BlobBody, UploadPace
from gateway.http.endpoint.exchange import Exchange
from tests.waiting import next_look, until


def exchange_of(messages: Iterable[dict[str, Any]], **headers: str) -> Exchange:
    """A request whose body comes in these messages, and then not at all."""
    left = iter(messages)

    async def receive() -> dict[str, Any]:
        while (message := next(left, None)) is None:
            await next_look(3600)
        return message

    async def send(_message: Any) -> None:
        raise AssertionError("nothing is answered here")

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    record = RequestRecord(dialect=Dialect.OLLAMA, route="/api/blobs/{digest}", method="POST")
    scope = {"type": "http", "method": "POST", "headers": raw}
    return Exchange(scope=scope, receive=receive, send=send, record=record, request_id="req_1")


def part(content: bytes, *, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": content, "more_body": more}


async def read(exchange: Exchange, *, bytes_max: int = 10**9, pace: UploadPace | None = None) -> list[bytes]:
    async with BlobBody(exchange, bytes_max=bytes_max, pace=pace or UploadPace()) as body:
        return [piece async for piece in body.pieces()]


async def test_a_body_comes_in_pieces_of_a_good_size() -> None:
    size = PIECE_BYTES // 2
    pieces = await read(exchange_of([part(b"a" * size), part(b"b" * size), part(b"c"), part(b"", more=False)]))
    assert [len(piece) for piece in pieces] == [PIECE_BYTES, 1]
    assert b"".join(pieces) == b"a" * size + b"b" * size + b"c"


@pytest.mark.parametrize(
    ("messages", "headers", "error"),
    [
        ([part(b"x" * 50), {"type": "http.disconnect"}], {}, RequestCanceled),
        ([part(b"x" * 50), part(b"x" * 51, more=False)], {}, RequestTooLarge),
        ([part(b"x" * 50, more=False)], {"content_length": "60"}, InvalidRequest),
        ([], {"content_length": "101"}, RequestTooLarge),
        ([], {"content_encoding": "gzip"}, UnsupportedMediaType),
        ([part(b"x")], {}, RequestTimeout),
    ],
)
async def test_a_body_that_is_not_whole_says_why(
    messages: list[dict[str, Any]], headers: dict[str, str], error: type[PunaError]
) -> None:
    with pytest.raises(error):
        await read(exchange_of(messages, **headers), bytes_max=100, pace=UploadPace(left_s=0.05))


async def test_who_takes_no_more_pieces_ends_the_reading() -> None:
    exchange = exchange_of([part(b"x" * PIECE_BYTES) for _ in range(100)])
    async with BlobBody(exchange, bytes_max=10**9) as body:
        pieces = body.pieces()
        assert len(await anext(pieces)) == PIECE_BYTES
    await until(lambda: body.is_closed, what="the reader is gone")
    assert [piece async for piece in pieces] == []
    assert not exchange.body_read
