"""Spans by OpenTelemetry's SDK, sent by OTLP over gRPC. Imported only where `tracing.py` has to trace."""

import os
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from common.telemetry.tracing import Headers, Span, SpanKind, Value, reason_of, use
from common.version import puna_version

# A collector that is away must not hold up the end of a process.
FLUSH_S = 2.0
_PROPAGATOR = TraceContextTextMapPropagator()


class OtlpSpan(Span):
    """A span of ours, or the caller's as it came with a call."""

    __slots__ = ("_before", "_ended", "_span", "_tracer")

    def __init__(self, span: trace.Span, tracer: trace.Tracer) -> None:
        self._span = span
        self._tracer = tracer
        self._before: Span | None = None
        self._ended = False

    @property
    def context(self) -> Context:
        """As parents are named."""
        return trace.set_span_in_context(self._span, Context())

    def set(self, attributes: Mapping[str, Value | None]) -> None:
        """Say more of it."""
        for name, value in attributes.items():
            if value is not None:
                self._span.set_attribute(name, value)

    def fail(self, reason: str) -> None:
        """Mark the span as failed."""
        self._span.set_status(Status(StatusCode.ERROR, reason))
        self._span.set_attribute("error.type", reason)

    def end(self) -> None:
        """End the span."""
        if not self._ended:
            self._ended = True
            self._span.end()

    def part(self, name: str, *, start_unix_ns: int, end_unix_ns: int, attributes: Mapping[str, Value]) -> None:
        """Add a child span whose times were measured elsewhere."""
        span = self._tracer.start_span(name, context=self.context, start_time=start_unix_ns, attributes=attributes)
        span.end(end_time=end_unix_ns)

    def headers(self) -> Headers:
        """traceparent, and tracestate if there is one."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, context=self.context)
        return tuple(carrier.items())

    def __enter__(self) -> Self:
        self._before = use(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Set, not reset: a generator may be closed in another context than it was begun in.
        if self._before is not None:
            use(self._before)
        if error is not None and (reason := reason_of(error)) is not None:
            self.fail(reason)
        self.end()


class OtlpBackend:
    """The tracer of this process."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("puna", puna_version())

    def begin(self, name: str, *, parent: Span, kind: SpanKind, attributes: Mapping[str, Value]) -> Span:
        """Begin a span."""
        context = parent.context if isinstance(parent, OtlpSpan) else Context()
        our_kind = trace.SpanKind[kind.name]
        span = self._tracer.start_span(name, context=context, kind=our_kind, attributes=attributes)
        return OtlpSpan(span, self._tracer)

    def remote(self, headers: Iterable[tuple[str, str]]) -> Span:
        """Return the caller's span; one without effect if the headers name none."""
        carrier = {name.lower(): value for name, value in headers if isinstance(value, str)}
        return OtlpSpan(trace.get_current_span(_PROPAGATOR.extract(carrier, context=Context())), self._tracer)

    def close(self) -> None:
        """Send what is left, for as long as that may take; the SDK itself would wait for half a minute."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(FLUSH_S)


def make_backend(service: str) -> OtlpBackend:
    """As the OTEL_ names of the environment say; the service is `puna-…` unless they name it."""
    named = os.environ.get("OTEL_SERVICE_NAME") or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    attributes: dict[str, Value] = {"service.version": puna_version(), "process.pid": os.getpid()}
    if not named:
        attributes["service.name"] = f"puna-{service}"
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return OtlpBackend(provider)
