"""Traces: nothing where nobody asked for them, W3C headers where somebody did."""

import asyncio
import os
import subprocess
import sys
import timeit
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.errors import ModelNotFound
from common.grpc.client import call_metadata
from common.telemetry import tracing
from common.telemetry.tracing import (
    NO_SPAN,
    Span,
    begin,
    current,
    reason_of,
    start_tracing,
    stop_tracing,
    use,
    use_caller,
)
from runner.core.host.environment import child_environment
from tests.waiting import Stopwatch

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_without_a_collector_every_span_is_the_same_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tracing.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    start_tracing("test")
    with begin("anything", {"a": 1}) as span:
        use_caller([("traceparent", TRACEPARENT)])
        assert span is current() is NO_SPAN
        assert call_metadata() == ()


def test_the_check_costs_next_to_nothing() -> None:
    def traced() -> None:
        with begin("attempt"):
            pass

    assert min(timeit.repeat(traced, number=10_000, repeat=5)) / 10_000 < 20e-6  # a tenth of that on an idle machine


def test_no_process_imports_the_exporter_unless_it_traces() -> None:
    code = """
import sys, gateway.app, scheduler.app, discovery.__main__, runner.host.app
names = ("common.telemetry.otlp", "opentelemetry.exporter", "opentelemetry.sdk.trace.export")
print([name for name in names if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("off", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_the_names_that_turn_it_off_are_obeyed(monkeypatch: pytest.MonkeyPatch, off: dict[str, str]) -> None:
    monkeypatch.setenv(tracing.ENDPOINTS[0], "http://127.0.0.1:1")
    for name, value in off.items():
        monkeypatch.setenv(name, value)
    start_tracing("test")
    assert begin("x") is NO_SPAN


def test_a_library_that_is_not_there_is_said_and_no_reason_to_stop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(tracing.ENDPOINTS[0], "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "common.telemetry.otlp", None)
    start_tracing("test")
    assert begin("x") is NO_SPAN
    assert "tracing.not_installed" in "".join(capsys.readouterr())


def test_a_collector_that_is_away_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="the extra `tracing` is not installed")
    monkeypatch.setenv(tracing.ENDPOINTS[0], "http://127.0.0.1:1")
    # A process of its own: the exporter's thread tries on for a while, and shakes dice that other tests have set.
    code = """
import time

from common.telemetry.tracing import NO_SPAN, begin, start_tracing, stop_tracing
start_tracing("test")
with begin("request"):
    pass
begun_s = time.monotonic()
stop_tracing()
print(time.monotonic() - begun_s)
assert begin("x") is NO_SPAN
"""
    watch, root = Stopwatch(), Path(__file__).resolve().parents[4]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, timeout=60, stdout=subprocess.PIPE)
    watch.assert_within(5, "the end of tracing", took_s=float(done.stdout.split()[-1]))


def test_errors_are_named_and_leaving_is_none() -> None:
    assert reason_of(ModelNotFound("model 'secret' not found")) == "model_not_found"
    assert reason_of(ValueError("a prompt")) == "ValueError"
    assert reason_of(asyncio.CancelledError()) is None
    assert reason_of(GeneratorExit()) is None


def test_runners_get_the_collector_but_no_credentials() -> None:
    environment = child_environment(
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317",
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=secret",
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "authorization=secret",
            "OTEL_EXPORTER_OTLP_CLIENT_KEY": "/key",
        }
    )
    assert environment["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4317"
    assert [name for name in environment if "HEADERS" in name or "KEY" in name] == []


class Kept:
    """Exported spans, by name."""

    def __init__(self) -> None:
        self.spans: dict[str, Any] = {}

    def export(self, spans: Any) -> Any:
        self.spans |= {span.name: span for span in spans}

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 0) -> bool:
        return True


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    """Spans of the real SDK, kept in memory."""
    pytest.importorskip("opentelemetry.sdk", reason="the extra `tracing` is not installed")
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    from common.telemetry.otlp import OtlpBackend

    exporter: Any = Kept()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_backend", OtlpBackend(provider))
    before = use(NO_SPAN)
    yield exporter
    stop_tracing()
    use(before)


def test_a_callers_headers_make_the_parent_and_go_on(kept: Kept) -> None:
    use_caller([("TraceParent", TRACEPARENT), ("tracestate", "vendor=1")])
    with begin("request"):
        headers = dict(call_metadata())
    assert headers["traceparent"].startswith("00-0af7651916cd43dd8448eb211c80319c-")
    assert headers["tracestate"] == "vendor=1"
    assert f"{kept.spans['request'].parent.span_id:016x}" == "b7ad6b7169203331"


@pytest.mark.parametrize("headers", [[], [("traceparent", "nonsense")], [("traceparent", "00-" + "0" * 32 + "-1-01")]])
def test_without_usable_headers_a_trace_begins_here(kept: Kept, headers: list[tuple[str, str]]) -> None:
    use_caller(headers)
    with begin("request"):
        pass
    assert kept.spans["request"].parent is None


def test_spans_nest_and_errors_keep_their_text_to_themselves(kept: Kept) -> None:
    with pytest.raises(ModelNotFound), begin("outer"), begin("inner"):
        raise ModelNotFound("model 'secret' not found")
    inner, outer = kept.spans["inner"], kept.spans["outer"]
    assert inner.parent.span_id == outer.context.span_id
    assert inner.status.description == "model_not_found"
    assert "secret" not in inner.to_json()
    assert not inner.events


async def test_a_generator_that_is_left_early_ends_its_span_without_an_error(kept: Kept) -> None:
    async def events() -> AsyncIterator[int]:
        with begin("stream"):
            yield 1
            yield 2

    stream = events()
    assert await anext(stream) == 1
    await asyncio.create_task(stream.aclose())  # type: ignore[attr-defined]  # of the generator that it is
    assert kept.spans["stream"].status.is_unset


async def test_tasks_work_for_the_span_that_they_were_started_in(kept: Kept) -> None:
    async def child() -> Span:
        return current()

    with begin("request") as span:
        task = asyncio.create_task(child())
    assert await task is span
    assert current() is not span


def test_parts_that_were_timed_elsewhere_keep_their_times(kept: Kept) -> None:
    with begin("generate") as span:
        span.part("prompt", start_unix_ns=1000, end_unix_ns=3000, attributes={"puna.tokens": 7})
    prompt = kept.spans["prompt"]
    assert (prompt.start_time, prompt.end_time) == (1000, 3000)
    assert prompt.parent.span_id == kept.spans["generate"].context.span_id
    assert os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") is None
