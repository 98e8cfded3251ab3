"""Streams of events that a shutdown waits for, and can end."""

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, Self, TypeVar

from common.errors import InternalError, PunaError

Event = TypeVar("Event")


class Feed(Generic[Event]):
    """A stream of events for one reader. Leaving the context closes the source and waits for that."""

    __slots__ = ("_ending", "_feeds", "_reader", "_source")

    def __init__(self, source: AsyncIterator[Event], feeds: "set[Feed[Event]]") -> None:
        """Read from `source`. `feeds` has all open feeds, for a shutdown."""
        self._source = source
        self._feeds = feeds
        self._ending: PunaError | None = None
        self._reader: asyncio.Task[object] | None = None  # while it waits for an event

    async def __aenter__(self) -> Self:
        self._feeds.add(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._feeds.discard(self)
        if (close := getattr(self._source, "aclose", None)) is not None:
            await close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event.

        Raises:
            PunaError: the answer failed, or what `end_with` was given.
        """
        if (given := self._given_error()) is not None:
            raise given
        task = self._reader = asyncio.current_task()
        assert task is not None
        try:
            return await self._source.__anext__()
        except asyncio.CancelledError:
            # As asyncio.timeout does it: our own cancellation is taken back, any other is passed on.
            if (error := self._given_error()) is not None and task.uncancel() <= 0:
                raise error from None
            if task.cancelling() > 0:
                raise
            raise InternalError("internal error") from None  # something below cancelled itself
        finally:
            self._reader = None

    def _given_error(self) -> PunaError | None:
        return self._ending

    def end_with(self, error: PunaError) -> None:
        """End the answer from outside; the reader gets the error now or with its next event."""
        if self._ending is None:
            self._ending = error
            if self._reader is not None:
                self._reader.cancel()
