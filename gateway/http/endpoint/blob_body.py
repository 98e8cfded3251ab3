"""A request body of any length as a stream of pieces, at the pace at which they are taken."""

import asyncio
import time
from collections.abc import AsyncIterator

from common.errors import (
    InvalidRequest,
    PunaError,
    RequestCanceled,
    RequestTimeout,
    RequestTooLarge,
    UnsupportedMediaType,
)
from gateway.core.dispatch.upload_pace import UploadPace
from gateway.http.endpoint.exchange import Exchange

PIECE_BYTES = 512 * 1024
FULL_PACE = UploadPace()
# Pieces that have come and are not taken yet.
_PIECES_HELD = 4


class BlobBody:
    """Reads in a task of its own while used as a context, so that whoever takes the pieces may stop at any time."""

    def __init__(self, exchange: Exchange, *, bytes_max: int, pace: UploadPace = FULL_PACE) -> None:
        """Nothing is read yet.

        Raises:
            RequestTooLarge: announced to be longer than `bytes_max`.
            UnsupportedMediaType: compressed.
        """
        self._exchange = exchange
        self._bytes_max = bytes_max
        self._pace = pace
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=_PIECES_HELD)
        self.error: PunaError | None = None  # why it ended early
        if exchange.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise UnsupportedMediaType("Content-Encoding is not supported")
        announced = exchange.headers.get("content-length", "")
        self.size_bytes = int(announced) if announced.isdecimal() else 0
        if self.size_bytes > bytes_max:
            raise self._too_large()

    async def __aenter__(self) -> "BlobBody":
        self._reader = asyncio.create_task(self._read(), name="blob body")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        while not self._pieces.empty():  # whoever still waits for a piece hears that there is none
            self._pieces.get_nowait()
        self._pieces.put_nowait(None)

    @property
    def is_closed(self) -> bool:
        """Nothing is read any more."""
        return self._reader.done()

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body, in order. What ended it early is in `error`; then it must not be taken for whole."""
        while (piece := await self._pieces.get()) is not None:
            yield piece
        if self.error is not None:
            raise self.error

    async def _read(self) -> None:
        try:
            await self._read_to_end()
        except PunaError as error:
            self.error = error
        await self._pieces.put(None)

    async def _read_to_end(self) -> None:
        pace, seen, held, more = self._pace, 0, bytearray(), True
        while more:
            began_s = time.monotonic()
            try:
                async with asyncio.timeout(pace.left_s):
                    message = await self._exchange.receive()
            except TimeoutError as error:
                raise RequestTimeout("the blob came too slowly") from error
            if message["type"] == "http.disconnect":
                raise RequestCanceled("request canceled")
            part, more = message.get("body", b""), message.get("more_body", False)
            pace = pace.after(len(part), time.monotonic() - began_s)
            seen += len(part)
            if seen > self._bytes_max:
                raise self._too_large()
            held += part
            if len(held) >= PIECE_BYTES or (held and not more):
                await self._pieces.put(bytes(held))
                held.clear()
        self._exchange.body_read = True
        if self.size_bytes and seen != self.size_bytes:
            raise InvalidRequest("the body is shorter than announced")

    def _too_large(self) -> RequestTooLarge:
        return RequestTooLarge(f"a blob has at most {self._bytes_max} bytes")
