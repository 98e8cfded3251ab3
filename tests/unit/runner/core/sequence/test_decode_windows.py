"""Decode windows: steps that show the speed of weights, the bytes that they read, and the sums of several."""

import pytest

from runner.core.layout.layer_places import LayerPlaces
from runner.core.sequence.decode_windows import STEPS_OF_A_WINDOW, DecodeWindows, LoneStep, StepReads, weights_read
from tests.unit.runner.simulated_context import Simulation

MS = 1_000_000
TENSORS = {
    "token_embd.weight": 1000,
    "blk.0.attn_q.weight": 10,
    "blk.0.ffn_up_exps.weight": 800,
    "blk.0.ffn_up_shexp.weight": 4,
    "blk.1.attn_q.weight": 20,
    "blk.1.ffn_up_exps.weight": 1600,
    "blk.2.attn_q.weight": 40,  # of a draft layer, which is not loaded
    "rope_freqs.weight": 1,
    "output_norm.weight": 2,
    "output.weight": 100,
}


def windows_of(weights_bytes: int, *, cell_bytes: float = 0.0) -> DecodeWindows:
    windows = DecodeWindows()
    windows.reads = StepReads(weights=((None, weights_bytes),), cell_bytes=cell_bytes)
    return windows


def steps(*durations_ms: float, cells: int = 1, first_ms: int = 0, apart_ms: int = 1000) -> list[LoneStep]:
    begins = [(first_ms + number * apart_ms) * MS for number in range(len(durations_ms))]
    return [
        LoneStep(began, began + round(duration * MS), cells)
        for began, duration in zip(begins, durations_ms, strict=True)
    ]


def lone_steps(simulation: Simulation) -> list[LoneStep]:
    return [step for report in simulation.recorder.reports for step in report.lone_steps]


def test_a_token_reads_every_matrix_once_and_of_the_experts_those_it_uses() -> None:
    places = LayerPlaces(devices=(None, 0, 0))
    assert dict(weights_read(TENSORS, places, experts=8, experts_used=2)) == {
        None: 10 + 200 + 4,
        0: 20 + 400 + 2 + 100,
    }


def test_experts_count_where_they_lie_and_a_tied_output_reads_the_table() -> None:
    tied = {name: size for name, size in TENSORS.items() if name != "output.weight"}
    places = LayerPlaces(devices=(0, 0, 0), experts_on_host=1)
    assert dict(weights_read(tied, places, experts=8, experts_used=2)) == {
        None: 200,
        0: 10 + 4 + 20 + 400 + 2 + 1000,
    }


def test_without_experts_everything_is_read() -> None:
    places = LayerPlaces(devices=(None, None, None))
    assert dict(weights_read(TENSORS, places, experts=0, experts_used=0)) == {None: sum(TENSORS.values()) - 1041}


def test_a_window_says_what_a_quarter_of_its_steps_reached() -> None:
    windows = windows_of(1_000_000)
    slow, fast = [10.0] * (STEPS_OF_A_WINDOW - 8), [2.0] * 7 + [4.0]
    assert not windows.take(steps(*slow))
    assert windows.take(steps(*fast, first_ms=30_000))
    newest = windows.newest
    assert newest is not None
    assert newest.bytes_s == pytest.approx(1_000_000 / 0.004)
    assert (newest.number, newest.steps) == (1, STEPS_OF_A_WINDOW)
    assert newest.span_s == pytest.approx(37.004)


def test_cells_count_and_steps_that_read_more_cache_than_weights_tell_nothing() -> None:
    windows = windows_of(1_000_000, cell_bytes=1000.0)
    assert not windows.take(steps(*[1.0] * 40, cells=251))
    assert windows.take(steps(*[1.0] * 40, cells=250))
    assert windows.newest is not None
    assert windows.newest.bytes_s == pytest.approx(1_250_000 / 0.001)


def test_steps_far_apart_are_of_different_windows() -> None:
    windows = windows_of(1_000_000)
    assert not windows.take(steps(*[1.0] * (STEPS_OF_A_WINDOW - 1)))
    assert not windows.take(steps(1.0, first_ms=70_000))
    assert windows.take(steps(*[1.0] * (STEPS_OF_A_WINDOW - 1), first_ms=71_000))
    assert windows.newest is not None
    assert windows.newest.span_s == pytest.approx(31.001)


def test_without_reads_nothing_is_kept() -> None:
    windows = DecodeWindows()
    assert not windows.take(steps(*[1.0] * 100))
    assert windows.newest is None


def test_the_loop_tells_steps_of_one_token_of_one_sequence_and_no_others() -> None:
    simulation = Simulation(slots=2, batch_tokens=32)
    simulation.submit([1, 2, 3], max_tokens=5)
    simulation.run()
    # The prompt's call gives the first token, the last token is never evaluated.
    assert [step.cells for step in lone_steps(simulation)] == [4, 5, 6, 7]
    assert all(step.ended_ns >= step.began_ns for step in lone_steps(simulation))
    simulation.recorder.reports.clear()
    simulation.submit([9], max_tokens=4)  # a prompt of one token is a prompt
    simulation.submit([5, 6], max_tokens=6)
    simulation.run()
    calls = simulation.context.calls[5:]
    assert [len(call) for call in calls] == [3, 2, 2, 2, 1, 1]
    assert len(lone_steps(simulation)) == 2


def test_where_slots_share_cells_a_step_goes_over_those_of_all() -> None:
    simulation = Simulation(cells=64, slots=2)
    simulation.submit([1] * 10, max_tokens=1)
    simulation.run()
    simulation.submit([2, 3], max_tokens=3)
    simulation.run()
    assert [step.cells for step in lone_steps(simulation)] == [13, 14]
    simulation.recorder.reports.clear()
    simulation.context.shares_cells = False
    simulation.submit([4, 5], max_tokens=2)
    simulation.run()
    assert [step.cells for step in lone_steps(simulation)] == [3]
