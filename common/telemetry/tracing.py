"""Spans of a request over all processes. Without a collector nothing is imported, and every span is the same no-op.

A span belongs to the task that begins it and to the tasks that this one starts. What it may carry: names, ids, counts,
durations. Never a prompt, an answer, or a text of a caller; of errors the reason, not the message.

A task's span is handed on in the metadata of every call (`common.grpc.client.call_metadata`), as W3C Trace Context.
"""

import asyncio
import importlib
import os
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Self

from common.errors import PunaError
from common.telemetry.logs import get_logger

if TYPE_CHECKING:  # imported only where there is a collector
    from common.telemetry.otlp import OtlpBackend

log = get_logger()

# OpenTelemetry's own names: either turns traces on.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

Value = str | int | float | bool
Headers = tuple[tuple[str, str], ...]


class SpanKind(StrEnum):
    """Side of a call that a span is on."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


class Span:
    """Some work. As a context it is what calls and spans inside belong to, and ends with it.

    This one is traced nowhere: its methods discard what they get. `common.telemetry.otlp` overrides them.
    """

    __slots__ = ()

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
        return ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


NO_SPAN = Span()
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


_backend: "OtlpBackend | None" = None


def start_tracing(service: str) -> None:
    """Trace this process, if its environment names a collector."""
    global _backend  # noqa: PLW0603  # one for each process, as logs and metrics
    environment = os.environ
    if not any(environment.get(name) for name in ENDPOINTS) or _is_off(environment):
        return
    try:
        module = importlib.import_module("common.telemetry.otlp")
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
    """Begin a span within the current one, or within `parent`."""
    if _backend is None:
        return NO_SPAN
    return _backend.begin(name, parent=current() if parent is None else parent, kind=kind, attributes=attributes or {})


def use_caller(headers: Iterable[tuple[str, str]] | None) -> None:
    """Attribute the work of this task to the caller that sent these headers."""
    if _backend is not None:
        use(_backend.remote(headers or ()))


def _is_off(environment: Mapping[str, str]) -> bool:
    disabled = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return disabled or environment.get("OTEL_TRACES_EXPORTER", "otlp") == "none"
