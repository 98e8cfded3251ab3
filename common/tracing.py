"""Spans of a request over all processes. Without a collector nothing is imported, and every span is the same no-op.

A span belongs to the task that begins it and to the tasks that this one starts; it is handed on in the metadata of
every call (`common.grpc_client.call_metadata`), as W3C Trace Context. What it may carry: names, ids, counts, durations.
Never a prompt, an answer, or a text of a caller; of errors the reason, not the message.
"""

import asyncio
import importlib
import os
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self

from common.errors import PunaError
from common.logs import get_logger

log = get_logger()

Value = str | int | float | bool
Headers = tuple[tuple[str, str], ...]
# OpenTelemetry's own names: either turns traces on.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


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


class Backend(Protocol):
    """What makes spans (`common.otlp`)."""

    def begin(self, name: str, *, parent: Span, kind: SpanKind, attributes: Mapping[str, Value]) -> Span:
        """A span that has begun; a root where the parent is none."""

    def remote(self, headers: Iterable[tuple[str, str]]) -> Span:
        """The caller's span, to be a parent."""

    def close(self) -> None:
        """Send what is left, for a moment."""


NO_SPAN: Span = NoSpan()
_current: ContextVar[Span] = ContextVar("span", default=NO_SPAN)
_backend: Backend | None = None


def start_tracing(service: str) -> None:
    """Trace this process, if its environment names a collector."""
    global _backend  # noqa: PLW0603  # one for each process, as logs and metrics
    environment = os.environ
    if not any(environment.get(name) for name in ENDPOINTS) or _is_off(environment):
        return
    try:
        module = importlib.import_module("common.otlp")
    except ImportError as error:
        log.warning("tracing.not_installed", text=str(error), install='pip install "puna[tracing]"')
        return
    _backend = module.make_backend(service)
    log.info("tracing.started", service=service)


def stop_tracing() -> None:
    """Send what is left, and trace no more."""
    global _backend  # as above
    backend, _backend = _backend, None
    if backend is not None:
        backend.close()


def begin(
    name: str,
    attributes: Mapping[str, Value] | None = None,
    *,
    parent: Span | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
) -> Span:
    """A span within the current one, or within `parent`."""
    if _backend is None:
        return NO_SPAN
    return _backend.begin(name, parent=current() if parent is None else parent, kind=kind, attributes=attributes or {})


def current() -> Span:
    """What this task works for."""
    return _current.get()


def use(span: Span) -> Span:
    """From here on this task, and those that it starts, work for this span; returns what it was before."""
    before = _current.get()
    if before is not span:
        _current.set(span)
    return before


def use_caller(headers: Iterable[tuple[str, str]] | None) -> None:
    """What this task does, it does for whoever sent these headers."""
    if _backend is not None:
        use(_backend.remote(headers or ()))


def reason_of(error: BaseException) -> str | None:
    """What a span says of an error; None for what is none: who stops listening."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return None
    return error.reason if isinstance(error, PunaError) else type(error).__name__


def _is_off(environment: Mapping[str, str]) -> bool:
    disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return disabled or environment.get("OTEL_TRACES_EXPORTER", "otlp") == "none"
