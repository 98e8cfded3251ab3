"""Pauses in the engine's loop, over a simulated context: nothing is lost, and nothing is computed twice."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.clock import NS_PER_S
from common.errors import QueueFull
from common.spec.bands import Band
from runner.core.sequence.preemption import AGE_S
from runner.engine.contract.engine import Freed, Paused, SequenceTimes
from tests.unit.runner.engine.batched.test_loop import following
from tests.unit.runner.simulated_context import Simulation
from tests.unit.runner.state_bytes import state_of

ROOM = 1 << 20


SLICES = pytest.mark.parametrize("slices", [False, True], ids=["at once", "in slices"])


def simulated(*, slots: int = 2, cells: int = 512, slot_tokens: int = 256, **options: Any) -> Simulation:
    return Simulation(slots=slots, cells=cells, slot_tokens=slot_tokens, **{"copies_bytes_max": ROOM, **options})


def turns(simulation: Simulation, count: int) -> None:
    for _ in range(count):
        simulation.turn()


def evaluated(simulation: Simulation) -> int:
    return sum(len(call) for call in simulation.context.calls)


def paused(simulation: Simulation) -> list[int]:
    return [outcome.sequence_id for outcome in simulation.recorder.outcomes if isinstance(outcome, Paused)]


def times_of(simulation: Simulation, sequence_id: int) -> SequenceTimes:
    found = [one.times for one in simulation.recorder.outcomes if isinstance(one, Freed)]
    ids = [one.sequence_id for one in simulation.recorder.outcomes if isinstance(one, Freed)]
    times = found[ids.index(sequence_id)]
    assert times is not None
    return times


@SLICES
@pytest.mark.behaviour("B-155")
def test_a_higher_band_takes_the_slot_of_a_lower_one_which_goes_on_where_it_was(slices: bool) -> None:
    simulation = simulated(slices=slices)
    low = simulation.submit([1] * 20, max_tokens=12, band=Band.LOW)
    normal = simulation.submit([2] * 20, max_tokens=12)
    turns(simulation, 4)
    high = simulation.submit([3] * 20, max_tokens=4, band=Band.HIGH)
    simulation.turn()
    assert paused(simulation) == [low]
    simulation.run()
    for sequence_id, token, count in ((low, 1, 12), (normal, 2, 12), (high, 3, 4)):
        assert simulation.recorder.tokens(sequence_id) == following(token, count)
    # The last token of an answer is never evaluated.
    assert evaluated(simulation) == 60 + 11 + 11 + 3
    ended = [outcome.sequence_id for outcome in simulation.recorder.outcomes if isinstance(outcome, Freed)]
    assert ended.index(high) < ended.index(low)
    assert times_of(simulation, low).evaluated_tokens == 20
    assert times_of(simulation, low).queue_ns > 0


@SLICES
def test_a_prompt_that_is_paused_goes_on_from_what_was_evaluated(slices: bool) -> None:
    simulation = simulated(slots=1, slices=slices)
    low = simulation.submit(list(range(1, 60)) * 2, max_tokens=3, band=Band.LOW)
    turns(simulation, 2)  # 64 of 118 inputs
    simulation.submit([5] * 40, max_tokens=2, band=Band.HIGH)
    simulation.run()
    assert paused(simulation) == [low]
    assert simulation.recorder.tokens(low) == following(59, 3)
    assert evaluated(simulation) == 118 + 40 + 2 + 1
    times = times_of(simulation, low)
    assert (times.cached_tokens, times.evaluated_tokens) == (0, 118)


def test_a_prompt_of_a_higher_band_is_computed_before_a_shorter_one_that_has_a_slot_already() -> None:
    simulation = simulated(slots=2)
    low = simulation.submit([1] * 60, max_tokens=2, band=Band.LOW)
    simulation.turn()  # 32 of 60 inputs
    high = simulation.submit([2] * 90, max_tokens=2, band=Band.HIGH)
    simulation.run()
    assert paused(simulation) == []
    ended = [outcome.sequence_id for outcome in simulation.recorder.outcomes if isinstance(outcome, Freed)]
    assert ended == [high, low]
    assert evaluated(simulation) == 60 + 90 + 1 + 1


def test_a_prompt_that_waits_for_long_counts_as_one_of_a_higher_band() -> None:
    simulation = simulated()
    simulation.submit([1] * 60, band=Band.LOW)
    simulation.turn()
    (sequence,) = simulation.loop._running.values()
    ranks = [sequence.rank(sequence.submitted_ns + round(s * NS_PER_S)) for s in (0, AGE_S, 2 * AGE_S, 900)]
    assert ranks == [Band.LOW, Band.NORMAL, Band.HIGH, Band.HIGH]


def test_bands_that_are_not_lower_keep_their_slots() -> None:
    simulation = simulated(slots=1)
    first = simulation.submit([1] * 5, max_tokens=8, band=Band.HIGH)
    simulation.turn()
    second = simulation.submit([2] * 5, max_tokens=2, band=Band.HIGH)
    simulation.run()
    assert paused(simulation) == []
    ended = [outcome.sequence_id for outcome in simulation.recorder.outcomes if isinstance(outcome, Freed)]
    assert ended == [first, second]


def test_a_state_that_is_too_large_for_host_ram_keeps_its_slot() -> None:
    simulation = simulated(copies_bytes_max=state_of(range(40)).size)
    large = simulation.submit([1] * 50, max_tokens=40, band=Band.LOW)
    small = simulation.submit([2] * 20, max_tokens=10, band=Band.NORMAL)
    turns(simulation, 4)
    simulation.submit([3] * 5, max_tokens=2, band=Band.HIGH)
    second = simulation.submit([4] * 5, max_tokens=2, band=Band.HIGH)
    simulation.turn()
    assert paused(simulation) == [small]
    assert simulation.recorder.reports[-1].open_slots == (0, 0)
    simulation.run()
    assert simulation.recorder.tokens(second) == following(4, 2)
    assert simulation.recorder.tokens(large) == following(1, 40)


@SLICES
def test_a_paused_sequence_may_be_cancelled_or_cut(slices: bool) -> None:
    simulation = simulated(slots=1, slices=slices)
    for end in (simulation.loop.cancel, lambda one: simulation.loop.cut(one, 1)):
        low = simulation.submit([1] * 20, max_tokens=50, band=Band.LOW)
        turns(simulation, 3)
        simulation.submit([3] * 20, max_tokens=3, band=Band.HIGH)
        simulation.turn()
        assert paused(simulation)[-1] == low
        said = len(simulation.recorder.tokens(low))
        end(low)
        simulation.run()
        assert len(simulation.recorder.tokens(low)) == said
        assert times_of(simulation, low).prompt_tokens == 20
    assert simulation.table._parking.views() == []


def test_a_longer_answer_that_begins_as_a_paused_one_does_not_replace_it() -> None:
    simulation = simulated(cells=2048)
    long = simulation.submit([1] * 20, max_tokens=100, band=Band.LOW)
    turns(simulation, 20)
    short = simulation.submit([1] * 20, max_tokens=30, band=Band.LOW, cache_prompt=False)
    turns(simulation, 4)
    for token in (7, 8):
        simulation.submit([token] * 20, max_tokens=2, band=Band.HIGH)
        simulation.turn()
    assert paused(simulation) == [short, long]
    simulation.loop.cancel(long)
    before = evaluated(simulation)
    left = 30 - len(simulation.recorder.tokens(short))
    simulation.run()
    assert simulation.recorder.tokens(short) == following(1, 30)
    assert evaluated(simulation) - before <= left + 2, "only what follows"


def test_an_old_answer_is_no_longer_paused() -> None:
    simulation = simulated(slots=1)
    low = simulation.submit([1] * 5, max_tokens=60, band=Band.LOW)
    simulation.turn()
    sequence = simulation.loop._running[low]
    sequence.waited_ns = round(2 * AGE_S * 1e9)
    high = simulation.submit([2] * 5, max_tokens=2, band=Band.HIGH)
    simulation.run()
    ended = [outcome.sequence_id for outcome in simulation.recorder.outcomes if isinstance(outcome, Freed)]
    assert (paused(simulation), ended) == ([], [low, high])


@SLICES
def test_when_cells_run_out_a_sequence_is_paused_instead_of_refused(slices: bool) -> None:
    simulation = simulated(slots=2, cells=40, slot_tokens=40, slices=slices)
    first = simulation.submit([1] * 10, max_tokens=25)
    second = simulation.submit([2] * 10, max_tokens=25)
    simulation.run()
    assert simulation.recorder.failures() == {}
    assert paused(simulation) == [second]
    assert simulation.recorder.tokens(first) == following(1, 25)
    assert simulation.recorder.tokens(second) == following(2, 25)
    assert evaluated(simulation) == 20 + 24 + 24


def test_a_slot_is_free_at_once_and_its_state_is_copied_between_the_steps_of_others() -> None:
    simulation = simulated(slots=1, slices=True)
    low = simulation.submit([1] * 60, max_tokens=20, band=Band.LOW)
    turns(simulation, 6)
    before = evaluated(simulation)
    simulation.submit([2] * 5, max_tokens=10, band=Band.HIGH)
    simulation.turn()
    assert (paused(simulation), simulation.context.slices) == ([low], 1)
    assert evaluated(simulation) == before + 5, "the prompt does not wait for the copy"
    turns(simulation, 3)
    assert (simulation.context.slices, evaluated(simulation)) == (4, before + 8)
    simulation.run()
    assert simulation.recorder.tokens(low) == following(1, 20)
    assert evaluated(simulation) == 60 + 19 + 5 + 9


def test_a_state_of_an_unknown_format_is_computed_again_and_later_ones_are_copied_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulation = simulated(slots=1, slices=True)
    monkeypatch.setattr(simulation.context, "save_slice", lambda *_: state_of(range(4), ids=2))
    for count in (1, 2):
        before = evaluated(simulation)
        low = simulation.submit([count] * 40, max_tokens=20, band=Band.LOW, cache_prompt=False)
        turns(simulation, 6)
        held = evaluated(simulation) - before
        simulation.submit([3] * 5, max_tokens=2, band=Band.HIGH, cache_prompt=False)
        simulation.run()
        assert simulation.recorder.tokens(low) == following(count, 20)
        assert evaluated(simulation) - before == 40 + 19 + 5 + 1 + (held if count == 1 else 0)
    assert len(paused(simulation)) == 2
    assert not simulation.context._held[simulation.context.spare_ids[0]]


def test_without_room_for_states_cells_that_run_out_end_a_sequence() -> None:
    simulation = simulated(slots=2, cells=40, slot_tokens=40, copies_bytes_max=0)
    simulation.submit([1] * 10, max_tokens=25)
    simulation.submit([2] * 10, max_tokens=25)
    simulation.run()
    assert [type(error) for error in simulation.recorder.failures().values()] == [QueueFull]


@given(
    st.lists(
        st.tuples(st.sampled_from(Band), st.integers(1, 30), st.integers(1, 20), st.integers(0, 6)),
        min_size=1,
        max_size=16,
    ),
    st.integers(1, 3),
    st.sampled_from((64, 512)),
    st.booleans(),
)
def test_no_history_loses_a_token_or_computes_one_twice(
    requests: list[tuple[Band, int, int, int]], slots: int, cells: int, slices: bool
) -> None:
    """Requests of (band, prompt, answer, turns since the last)."""
    simulation = simulated(slots=slots, cells=cells, slot_tokens=64, slices=slices)
    answers = {}
    for number, (band, prompt, answer, after) in enumerate(requests):
        turns(simulation, after)
        # Prompts of one token each, so that no two share a beginning.
        sequence_id = simulation.submit([number % 64] * prompt, max_tokens=answer, band=band, cache_prompt=False)
        answers[sequence_id] = number % 64, answer
    simulation.run()
    assert simulation.recorder.failures() == {}
    for sequence_id, (token, answer) in answers.items():
        assert simulation.recorder.tokens(sequence_id) == following(token, answer)
    assert evaluated(simulation) == sum(prompt + answer - 1 for _, prompt, answer, _ in requests)
    returns = sum(report.returned for report in simulation.recorder.reports)
    assert returns == len(paused(simulation))
    assert all(count == 1 for count in Counter(simulation.recorder.freed).values())
    assert simulation.table._parking.views() == []
    assert not any(simulation.context._held[spare_id] for spare_id in simulation.context.spare_ids)
