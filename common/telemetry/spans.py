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
    """Side of a call that a span is on."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


class Span(Protocol):
    """Some work. As a context it is what calls and spans inside belong to, and ends with it."""

    def set(self, attributes: Mapping[str, Value | None]) -> None:
        """Say more of it; None says nothing."""

    def fail(self, reason: str) -> None:
        """Mark the span as failed."""

    def end(self) -> None:
        """End the span; a second time changes nothing."""

    def part(self, name: str, *, start_unix_ns: int, end_unix_ns: int, attributes: Mapping[str, Value]) -> None:
        """Add a child span whose times were measured elsewhere."""

    def headers(self) -> Headers:
        """Return the headers that carry the trace to another process."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class NoSpan:
    """Nothing is traced."""

    __slots__ = ()

    def set(self, attributes: Mapping[str, Value | None]) -> None:
        """Discard it."""

    def fail(self, reason: str) -> None:
        """Discard it."""

    def end(self) -> None:
        """Discard it."""

    def part(self, name: str, *, start_unix_ns: int, end_unix_ns: int, attributes: Mapping[str, Value]) -> None:
        """Discard it."""

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
    """Return the span that this task works for."""
    return _current.get()


def use(span: Span) -> Span:
    """From here on this task, and those that it starts, work for this span; returns what it was before."""
    before = _current.get()
    if before is not span:
        _current.set(span)
    return before


def reason_of(error: BaseException) -> str | None:
    """Return the error text of a span; None for a cancellation, which is no error."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return None
    return error.reason if isinstance(error, PunaError) else type(error).__name__
