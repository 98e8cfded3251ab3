"""An OTLP receiver of our own: a gRPC server that keeps the spans that processes send."""

import threading
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


@dataclass(frozen=True, kw_only=True)
class Received:
    """One span."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    failed: str  # empty: it did not
    attributes: dict[str, Any] = field(default_factory=dict)


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Use as a context; `endpoint` is what OTEL_EXPORTER_OTLP_ENDPOINT is set to."""

    def __init__(self) -> None:
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        register: Any = trace_service_pb2_grpc.add_TraceServiceServicer_to_server  # generated, without types
        register(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._lock = threading.Lock()
        self._spans: list[Received] = []
        self.raw: list[bytes] = []

    def __enter__(self) -> "Receiver":
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC names it
        found = [
            _received(resource, span)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self._spans += found
            self.raw.append(request.SerializeToString())
        return trace_service_pb2.ExportTraceServiceResponse()

    def spans(self, trace_id: str = "") -> list[Received]:
        """Those of one trace, or all, by their start."""
        with self._lock:
            found = [span for span in self._spans if trace_id in ("", span.trace_id)]
        return sorted(found, key=lambda span: span.start_ns)


def _received(resource: Any, span: Any) -> Received:
    return Received(
        service=_attributes(resource.resource)["service.name"],
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        failed=span.status.message if span.status.code == span.status.STATUS_CODE_ERROR else "",
        attributes=_attributes(span),
    )


def _attributes(holder: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in holder.attributes}
