"""Reasons for the end of a runner, in words."""

from pathlib import Path

import pytest

from common.errors import ERROR_TABLE
from protos import cluster_pb2
from runner.core.host.exits import MESSAGE_LENGTH_MAX, blamed_devices, explain_exit, last_error_line, refused_bytes
from runner.host.processes.process import LOG_TAIL_BYTES, read_log_tail
from runner.host.runners.load_progress import show_last_error


def test_a_signal_is_named() -> None:
    cause = explain_exit(-9, "", was_ready=True)
    assert cause.reason == "runner_lost"
    assert cause.message == "the runner was ended by signal 9 (SIGKILL)"


def test_an_exit_while_loading_says_so_with_the_telling_lines_of_the_log() -> None:
    cause = explain_exit(1, "starting\nerror: no such thing\nbye\n", was_ready=False)
    assert cause.message == "the runner exited with status 1 while loading: error: no such thing"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ggml_backend_cuda_buffer_type_alloc_buffer: allocating 99 MiB: out of memory", "device_memory_exhausted"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "device_memory_exhausted"),
        ("gguf_init_from_file_impl: invalid magic characters", "bad_model_file"),
        ("GGML_ASSERT(n > 0) failed", "runner_lost"),
        ("CUDA error: an illegal memory access was encountered", "device_lost"),
        ("CUDA error: out of memory", "device_memory_exhausted"),
        ("vk::DeviceLostError: vk::Queue::submit: ErrorDeviceLost", "device_lost"),
    ],
)
def test_known_last_words_decide_the_reason(line: str, reason: str) -> None:
    cause = explain_exit(-6, line, was_ready=False)
    assert cause.reason == reason
    assert line in cause.message


EVENT = '{"service": "runner", "event": "request.done", "errors": 0, "level": "info", "timestamp": "2026-01-01T0:0:0Z"}'
DIED = '{"service": "runner", "event": "engine.died", "kind": "RuntimeError", "text": "decode failed", "level": "critical", "timestamp": "2026-01-01T0:0:0Z"}'  # noqa: E501  # one line of a log


@pytest.mark.parametrize(
    ("words", "quoted"),
    [
        ("ggml.c:1234: GGML_ASSERT(n_tokens > 0) failed", "ggml.c:1234: GGML_ASSERT(n_tokens > 0) failed"),
        ("ggml-cpu.cpp:88: fatal error", "ggml-cpu.cpp:88: fatal error"),
        ("error: no such tensor", "error: no such tensor"),
        (
            "terminate called after throwing an instance of 'std::runtime_error'",
            "terminate called after throwing an instance of 'std::runtime_error'",
        ),
        ('Traceback (most recent call last):\n  File "x.py", line 1\nValueError: no', "ValueError: no"),
    ],
)
def test_an_ended_runner_quotes_the_engine_and_not_an_event_of_ours(words: str, quoted: str) -> None:
    log = f"{EVENT}\n{words}\n{DIED}\n{EVENT}\n"
    assert explain_exit(-6, log, was_ready=True).message == f"the runner was ended by signal 6 (SIGABRT): {quoted}"
    assert last_error_line(log) == quoted


def test_an_event_of_ours_is_quoted_in_words_where_the_engine_said_nothing() -> None:
    cause = explain_exit(-6, f"{EVENT}\n{DIED}\n{EVENT}\n", was_ready=True)
    assert cause.message == "the runner was ended by signal 6 (SIGABRT): engine.died: decode failed"
    assert last_error_line(f"{DIED}\n{EVENT}\n") == "engine.died: decode failed"


def test_events_that_report_no_error_are_not_quoted() -> None:
    log = f"{EVENT}\n{EVENT[:60]}"  # it ended while it wrote
    assert explain_exit(-9, log, was_ready=True).message == "the runner was ended by signal 9 (SIGKILL)"
    assert last_error_line(log) == ""


def test_the_tail_of_a_log_begins_with_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "runner.log"
    path.write_text(f"{DIED}\n" * (LOG_TAIL_BYTES // len(DIED) + 2))
    tail = read_log_tail(path)
    assert set(tail.splitlines()) == {DIED}
    assert len(tail) > LOG_TAIL_BYTES // 2
    path.write_text(DIED)
    assert read_log_tail(path) == DIED


def test_every_reason_is_one_of_the_error_table() -> None:
    for tail in ("", "out of memory", "invalid magic"):
        assert explain_exit(None, tail, was_ready=False).reason in ERROR_TABLE


def test_a_flood_of_errors_is_cut() -> None:
    assert len(explain_exit(1, "error " * 10_000, was_ready=True).message) == MESSAGE_LENGTH_MAX


@pytest.mark.behaviour("B-130")
def test_an_error_of_a_device_blames_the_one_that_it_names_else_all_of_the_layout() -> None:
    said = "CUDA error: unspecified launch failure |   current device: 1, in function ggml_backend_cuda_synchronize"
    assert blamed_devices(said, ["GPU-a", "GPU-b"]) == ["GPU-b"]
    assert blamed_devices(said, ["GPU-a"]) == ["GPU-a"]
    assert blamed_devices(said, ["RPC:127.0.0.1:5001/0", "GPU-a", "GPU-b"]) == ["GPU-b"]  # CUDA counts its own cards
    assert blamed_devices("ErrorDeviceLost", ["GPU-a", "GPU-b"]) == ["GPU-a", "GPU-b"]


def test_the_size_of_a_refused_allocation_is_read_with_its_device() -> None:
    said = "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 99.50 MiB on device 1: cudaMalloc failed"
    assert refused_bytes(said) == 199 * 1024 * 1024 // 2
    assert blamed_devices(said, ["GPU-a", "GPU-b"]) == ["GPU-b"]
    assert refused_bytes("CUDA error: out of memory") == 0


def test_only_the_last_errors_decide_the_reason() -> None:
    survived = "failed to allocate a pipeline's buffers\n" + "error: something else\n" * 5
    assert explain_exit(-6, survived + "CUDA error: an illegal memory access", was_ready=True).reason == "device_lost"


@pytest.mark.parametrize(
    ("log", "line"),
    [("", ""), ("loading\n", ""), ("read error: a\nloading\nopen failed: b \nstill loading\n", "open failed: b")],
)
def test_the_last_error_of_a_log_is_told_of_a_runner_that_loads_and_of_no_other(
    log: str, line: str, tmp_path: Path
) -> None:
    assert last_error_line(log) == line
    path = tmp_path / "runner.log"
    path.write_text(log)
    for state, told in ((cluster_pb2.RUNNER_STATE_LOADING, line), (cluster_pb2.RUNNER_STATE_READY, "")):
        status = cluster_pb2.RunnerStatus(state=state)
        show_last_error(status, path)
        assert status.last_error_line == told
