"""A request body of any length as a stream of pieces, at the pace at which they are taken."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from common.errors import (
    InvalidRequest,
    PunaError,
    RequestCanceled,
    RequestTimeout,
    RequestTooLarge,
    UnsupportedMediaType,
)
from gateway.http.endpoint.exchange import Exchange

PIECE_BYTES = 512 * 1024
# Pieces that have come and are not taken yet.
_PIECES_HELD = 4
# Lowest rate of a large upload: it may take as long as it needs, but never less than the rate.
BYTES_PER_S_MIN = 64 * 1024
# A client may fall silent for so long, if it was quick enough before.
PAUSE_S_MAX = 10.0


@dataclass(frozen=True, slots=True)
class UploadPace:
    """`left_s` is how long the next piece may take. Only waiting for the client counts."""

    left_s: float = PAUSE_S_MAX

    def after(self, piece_bytes: int, waited_s: float) -> "UploadPace":
        """Return the pace after a piece."""
        return UploadPace(min(self.left_s - waited_s + piece_bytes / BYTES_PER_S_MIN, PAUSE_S_MAX))


FULL_PACE = UploadPace()


class BlobBody:
    """Reads in a task of its own while used as a context, so that the consumer of the pieces may stop at any time."""

    def __init__(self, exchange: Exchange, *, bytes_max: int, pace: UploadPace = FULL_PACE) -> None:
        """Start with nothing read.

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
        while not self._pieces.empty():  # a consumer that still waits gets None, the end
            self._pieces.get_nowait()
        self._pieces.put_nowait(None)

    @property
    def is_closed(self) -> bool:
        """Nothing is read any more."""
        return self._reader.done()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body, in order. After an early end, of which `error` has the reason, it is not whole."""
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
