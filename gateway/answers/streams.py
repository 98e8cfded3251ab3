"""Iterate and always close, so that leaving a stream ends what feeds it at once and not at garbage collection."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

Item = TypeVar("Item")


@asynccontextmanager
async def closing(stream: AsyncIterator[Item]) -> AsyncIterator[AsyncIterator[Item]]:
    """As `contextlib.aclosing`, also for iterators that have nothing to close."""
    try:
        yield aiter(stream)
    finally:
        if close := getattr(stream, "aclose", None):
            await close()
