"""Spans of a request over all processes. Without a collector nothing is imported, and every span is the same no-op.

A task's span is handed on in the metadata of every call (`common.grpc.client.call_metadata`), as W3C Trace Context.
"""

import importlib
import os
from collections.abc import Iterable, Mapping
from typing import Protocol

from common.telemetry.logs import get_logger
from common.telemetry.spans import NO_SPAN, Headers, NoSpan, Span, SpanKind, Value, current, reason_of, use

__all__ = [
    "NO_SPAN",
    "Headers",
    "NoSpan",
    "Span",
    "SpanKind",
    "Value",
    "begin",
    "current",
    "reason_of",
    "start_tracing",
    "stop_tracing",
    "use",
    "use_caller",
]

log = get_logger()

# OpenTelemetry's own names: either turns traces on.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


class Backend(Protocol):
    """Maker of spans (`common.telemetry.otlp`)."""

    def begin(self, name: str, *, parent: Span, kind: SpanKind, attributes: Mapping[str, Value]) -> Span:
        """Begin a span; a root if the parent is none."""

    def remote(self, headers: Iterable[tuple[str, str]]) -> Span:
        """Return the caller's span, as a parent."""

    def close(self) -> None:
        """Send what is left, for a moment."""


_backend: Backend | None = None


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
