"""Iterate and always close, so that leaving a stream ends what feeds it at once and not at garbage collection."""

from collections.abc import AsyncIterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class _Closing(Generic[Item]):
    """Not `asynccontextmanager`, whose generator costs as much as the stream; a request enters a dozen of these."""

    __slots__ = ("_stream",)

    def __init__(self, stream: AsyncIterator[Item]) -> None:
        self._stream = stream

    async def __aenter__(self) -> AsyncIterator[Item]:
        return aiter(self._stream)

    async def __aexit__(self, *_: object) -> None:
        if (close := getattr(self._stream, "aclose", None)) is not None:
            await close()


def closing(stream: AsyncIterator[Item]) -> _Closing[Item]:
    """As `contextlib.aclosing`, also for iterators that have nothing to close."""
    return _Closing(stream)
