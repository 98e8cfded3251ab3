"""Status of a runner as it reports it."""

from typing import cast

import pytest

from common.clock import SystemClock
from common.errors import BadModelFile, ModelLoading, ShuttingDown
from protos import cluster_pb2
from runner.engine.contract.engine import Engine, StepReport, weights_progress
from runner.serve.compute_threads import ThreadSetting
from runner.serve.status import StatusBoard
from runner.serve.streams import RequestTable


class Requests(RequestTable):
    """State of the requests that the board reads."""

    inside = 0

    def __init__(self) -> None:
        super().__init__()
        self.slots = 2

    def apply(self, report: StepReport) -> None: ...


def board() -> tuple[StatusBoard, Requests]:
    requests, engine = Requests(), object()
    return StatusBoard(SystemClock(), requests, ThreadSetting(cast(Engine, engine), asked=0)), requests


def state(of: StatusBoard) -> str:
    return cluster_pb2.RunnerState.Name(of.snapshot().state).removeprefix("RUNNER_STATE_")


@pytest.mark.behaviour("B-81")
def test_states_are_exactly_these() -> None:
    """One more than was asked for: a runner that was told to leave still finishes what it has."""
    assert [value.name.removeprefix("RUNNER_STATE_") for value in cluster_pb2.RunnerState.DESCRIPTOR.values] == [
        "UNSPECIFIED",
        "LAUNCHED",
        "LOADING",
        "READY",
        "NO_SLOTS",
        "NOT_RESPONDING",
        "ERROR",
        "DRAINING",
    ]


@pytest.mark.behaviour("B-81")
def test_the_state_follows_load_slots_and_drain() -> None:
    one, requests = board()
    assert state(one) == "LOADING"
    with pytest.raises(ModelLoading):
        one.check_accepting()
    one.ready()
    assert state(one) == "READY"
    one.check_accepting()
    requests.slots_busy = 2
    assert state(one) == "NO_SLOTS"
    requests.slots_busy = 1
    assert state(one) == "READY"
    one.drain()
    assert state(one) == "DRAINING"
    with pytest.raises(ShuttingDown):
        one.check_accepting()


@pytest.mark.behaviour("B-80", "B-81")
def test_progress_never_falls_and_a_failure_is_the_last_word() -> None:
    one, _ = board()
    seen = []
    for fraction in (0.0, 0.4, 0.3, 0.9):
        one.progressed(weights_progress(fraction, 1000))
        status = one.snapshot()
        seen.append((round(status.load_fraction, 3), status.load_bytes_done, status.load_bytes_total))
    assert seen == [(0.0, 0, 1000), (0.4, 400, 1000), (0.4, 400, 1000), (0.9, 900, 1000)]
    one.failed(BadModelFile("model.gguf: truncated"))
    assert state(one) == "ERROR"
    assert one.snapshot().error.reason == "bad_model_file"
    with pytest.raises(ModelLoading):
        one.check_accepting()


def test_every_keep_alive_counts_also_the_same_one_again() -> None:
    one, _ = board()
    assert not one.snapshot().HasField("keep_alive_ms")
    told = []
    for keep_alive_ms in (300_000, 300_000, -1):
        one.note_keep_alive(keep_alive_ms)
        status = one.snapshot()
        told.append((status.keep_alive_ms, status.keep_alive_wishes))
    assert told == [(300_000, 1), (300_000, 2), (-1, 3)]
