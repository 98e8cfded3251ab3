"""A span: some work of a request, wherever it is traced to. Who makes them: `common.telemetry.tracing`.

A span belongs to the task that begins it and to the tasks that this one starts. What it may carry: names, ids, counts,
durations. Never a prompt, an answer, or a text of a caller; of errors the reason, not the message.
"""

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self

from common.errors import PunaError

Value = str | int | float | bool
Headers = tuple[tuple[str, str], ...]


class SpanKind(StrEnum):
    """Which side of a call a span is on."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


class Span(Protocol):
    """Some work. As a context it is what calls and spans inside belong to, and ends with it."""

    def set(self, attributes: Mapping[str, Value | None]) -> None:
        """Say more of it; None says nothing."""

    def fail(self, reason: str) -> None:
        """It did not work out."""

    def end(self) -> None:
        """It is over; a second time changes nothing."""

    def part(self, name: str, *, start_unix_ns: int, end_unix_ns: int, attributes: Mapping[str, Value]) -> None:
        """Some of it that was timed elsewhere."""

    def headers(self) -> Headers:
        """How another process learns of it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class NoSpan:
    """Nothing is traced."""

    __slots__ = ()

    def set(self, attributes: Mapping[str, Value | None]) -> None:
        """Nobody listens."""

    def fail(self, reason: str) -> None:
        """Nobody listens."""

    def end(self) -> None:
        """Nobody listens."""

    def part(self, name: str, *, start_unix_ns: int, end_unix_ns: int, attributes: Mapping[str, Value]) -> None:
        """Nobody listens."""

    def headers(self) -> Headers:
        """None."""
        return ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


NO_SPAN: Span = NoSpan()
_current: ContextVar[Span] = ContextVar("span", default=NO_SPAN)


def current() -> Span:
    """What this task works for."""
    return _current.get()


def use(span: Span) -> Span:
    """From here on this task, and those that it starts, work for this span; returns what it was before."""
    before = _current.get()
    if before is not span:
        _current.set(span)
    return before


def reason_of(error: BaseException) -> str | None:
    """What a span says of an error; None for what is none: who stops listening."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return None
    return error.reason if isinstance(error, PunaError) else type(error).__name__
