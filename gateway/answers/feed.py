"""Run an answer in a task of its own, so that reading it can time out, stop early, or be ended from outside."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, Self, TypeVar

from common.closing import closing
from common.errors import InternalError, PunaError

Event = TypeVar("Event")

# Events that a reader may lag behind before the runner's stream is held up.
BUFFERED_MAX = 64
# A pass of the event loop costs a microsecond, a write to a socket ten.
PASSES = 2


class EndOfFeed:
    """The stream ended without an error."""


END = EndOfFeed()


class _Buffer(Generic[Event]):
    """A queue between one writer and one reader. Cheaper than asyncio's, which is for any number of both."""

    __slots__ = ("_items", "_loop", "_reader", "_writer")

    def __init__(self) -> None:
        self._items: deque[Event] = deque()
        self._loop = asyncio.get_running_loop()
        self._reader: asyncio.Future[None] | None = None  # waits for an item
        self._writer: asyncio.Future[None] | None = None  # waits for room

    def __bool__(self) -> bool:
        return bool(self._items)

    async def put(self, item: Event) -> None:
        """Add an item, once there is room."""
        while len(self._items) >= BUFFERED_MAX:
            self._writer = self._loop.create_future()
            await self._writer
        self._items.append(item)
        if self._reader is not None:
            _resolve(self._reader)

    async def get(self, timeout_s: float | None) -> Event:
        """Return the oldest item, once there is one.

        Raises:
            TimeoutError: nothing came in time.
        """
        if not self._items:
            reader = self._reader = self._loop.create_future()
            # A future that a timer resolves costs less than asyncio.timeout, and this is done for every event.
            timer = None if timeout_s is None else self._loop.call_later(timeout_s, _resolve, reader)
            try:
                await reader
            finally:
                if timer is not None:
                    timer.cancel()
            if not self._items:
                raise TimeoutError
        return self.take()

    def take(self) -> Event:
        """Return the oldest item, which must be there."""
        item = self._items.popleft()
        if self._writer is not None:
            _resolve(self._writer)
        return item


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class Feed(Generic[Event]):
    """A stream of events with a bounded buffer. Leaving the context ends the work behind it and waits for that."""

    def __init__(self, source: AsyncIterator[Event], feeds: "set[Feed[Event]]") -> None:
        """Read from `source`. `feeds` has all open feeds, for a shutdown."""
        self._source = source
        self._feeds = feeds
        self._buffer: _Buffer[Event | Exception | EndOfFeed] = _Buffer()
        self._held: Exception | EndOfFeed | None = None  # taken from the buffer, but not its turn yet
        self._ending: PunaError | None = None
        self._pump: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._feeds.add(self)
        self._pump = asyncio.create_task(self._run(), name="answer")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._feeds.discard(self)
        if self._pump is not None and not self._pump.done():
            self._pump.cancel()
            await asyncio.gather(self._pump, return_exceptions=True)

    @property
    def is_over(self) -> bool:
        """True if END is next, so that the writer can add it to the same write."""
        return isinstance(self._held, EndOfFeed)

    def end_with(self, error: PunaError) -> None:
        """End the answer from outside; the reader gets the error after what is buffered."""
        self._ending = error
        if self._pump is not None:
            self._pump.cancel()

    async def next(self, timeout_s: float | None = None) -> Event | EndOfFeed:
        """Return the next event, or END.

        Raises:
            TimeoutError: nothing came in time; the stream goes on.
            PunaError: the answer failed.
        """
        item: Event | Exception | EndOfFeed
        if self._held is not None:
            item, self._held = self._held, None
        elif self._buffer:  # a reader that lags behind pays for no timer
            item = self._buffer.take()
        else:
            item = await self._buffer.get(timeout_s)
        if isinstance(item, Exception):
            raise item
        return item

    async def next_batch(self, timeout_s: float | None = None) -> list[Event] | EndOfFeed:
        """Return the next event and all that wait behind it, so that a busy gateway writes them at once; or END.

        Raises:
            As `next`.
        """
        first = await self.next(timeout_s)
        if isinstance(first, EndOfFeed):
            return first
        batch = [first]
        if not self._buffer:
            for _ in range(PASSES):  # of the event loop: on a busy one the next events are there afterwards
                await asyncio.sleep(0)
        while self._buffer:
            item = self._buffer.take()
            if isinstance(item, Exception | EndOfFeed):
                self._held = item
                break
            batch.append(item)
        return batch

    async def __aiter__(self) -> AsyncIterator[Event]:
        while not isinstance(item := await self.next(), EndOfFeed):
            yield item

    async def _run(self) -> None:
        last: Exception | EndOfFeed = END
        try:
            async with closing(self._source) as events:
                async for event in events:
                    await self._buffer.put(event)
        except asyncio.CancelledError:
            if self._ending is not None:
                last = self._ending
            elif self._is_cancelled():
                raise
            else:  # something below cancelled itself; the reader must not wait for ever
                last = InternalError("internal error")
        except Exception as error:  # noqa: BLE001  # carried to the reader
            last = error
        await self._buffer.put(last)

    def _is_cancelled(self) -> bool:
        return self._pump is None or self._pump.cancelling() > 0
