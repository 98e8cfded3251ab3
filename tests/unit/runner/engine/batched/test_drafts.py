"""Drafted tokens in the engine's loop over a simulated context: right, wrong, failing, and where cells run out."""

import random
import time
from typing import Any

import pytest

from common.spec.speculation import Speculation
from runner.core.sequence.slots import MemoryRules
from runner.core.speculation.drafters import Drafter
from runner.engine.batched.drafts import DRAFT_NS_MAX
from runner.engine.batched.sequence import Sequence
from runner.engine.batched.speculation import NO_WAY_BACK
from tests.unit.runner.engine.batched.test_loop import following
from tests.unit.runner.simulated_context import VOCABULARY, Simulation


class Guesser:
    """Knows the simulated model, and is wrong at some places."""

    trust = 2

    def __init__(self, sequence: Sequence, share: float) -> None:
        self._sequence = sequence
        self._share = share
        self._chance = random.Random(sequence.id)

    def draft(self, limit: int) -> list[int]:
        (newest,) = self._sequence.pending
        return [
            (newest + 1 + place) % VOCABULARY if self._chance.random() < self._share else 0
            for place in range(max(0, limit))
        ]


def guessing(share: float, drafted: int, **fields: Any) -> Simulation:
    def drafters(sequence: Sequence) -> list[Drafter]:
        return [Guesser(sequence, share)]

    return Simulation(drafters=drafters, drafted_tokens=drafted, **fields)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_answers_are_those_of_the_model_however_much_is_guessed(share: float) -> None:
    simulation = guessing(share, 7)
    ids = [simulation.submit([number, number + 1], max_tokens=30, speculates=True) for number in range(3)]
    simulation.run()
    for sequence_id, number in zip(ids, range(3), strict=True):
        assert simulation.recorder.tokens(sequence_id) == following(number + 1, 30)
    drafted = sum(report.drafted_tokens for report in simulation.recorder.reports)
    accepted = sum(report.accepted_tokens for report in simulation.recorder.reports)
    assert drafted > 0
    assert accepted == drafted if share == 1.0 else accepted < drafted
    assert len(simulation.context.calls) < 20 or share < 1.0


def test_a_request_that_wants_no_drafts_has_none() -> None:
    simulation = guessing(1.0, 7)
    simulation.submit([1, 2], max_tokens=10)
    simulation.run()
    assert len(simulation.context.calls) == 10


def test_a_request_limits_the_drafts_of_a_call() -> None:
    simulation = guessing(1.0, 7)
    simulation.submit([1, 2], max_tokens=12, speculates=True, speculative_tokens=2)
    simulation.run()
    assert max(report.drafted_tokens for report in simulation.recorder.reports) == 2


def guessing_with(rules: MemoryRules) -> Simulation:
    def drafters(sequence: Sequence) -> list[Drafter]:
        return [Guesser(sequence, 1.0)]

    simulation = Simulation(rules=rules, drafters=drafters, drafted_tokens=3)
    simulation.submit([1, 2], max_tokens=10, speculates=True)
    simulation.run()
    return simulation


def test_memory_that_cannot_go_back_has_no_drafts() -> None:
    simulation = guessing_with(MemoryRules(erases_tail=False))
    assert len(simulation.context.calls) == 10
    assert simulation.loop.speculation.off_reason == NO_WAY_BACK
    assert simulation.recorder.reports[-1].speculation == Speculation(off_reason=NO_WAY_BACK)


def test_memory_that_goes_back_a_few_inputs_has_no_more_drafts() -> None:
    simulation = guessing_with(MemoryRules(erases_tail=False, rollback_tokens=2))
    assert not simulation.loop.speculation.off_reason
    assert max(report.drafted_tokens for report in simulation.recorder.reports) == 2


def test_every_end_of_a_sequence_reports_the_counts_since_the_start() -> None:
    simulation = guessing(0.5, 7)
    for number in range(3):
        simulation.submit([number, number + 1], max_tokens=20, speculates=True)
        simulation.run()
        reports = simulation.recorder.reports
        (*_, newest) = (report.speculation for report in reports if report.speculation is not None)
        assert newest.drafted_tokens == sum(report.drafted_tokens for report in reports) > 0
        assert newest.accepted_tokens == sum(report.accepted_tokens for report in reports)
    assert sum(report.speculation is not None for report in reports) == 3


def test_where_cells_run_out_drafts_are_left_out_before_anything_is_evicted() -> None:
    simulation = guessing(1.0, 15, cells=32, slots=2, slot_tokens=40)
    simulation.submit([50, 51, 52, 53], max_tokens=2)
    simulation.run()
    running = simulation.submit([1, 2], max_tokens=30, speculates=True)
    held = []
    while simulation.turn():
        held.append((simulation.context.refused, len(simulation.table.slots[0].held)))
    assert simulation.recorder.tokens(running) == following(2, 30)
    first = min(idle for refused, idle in held if refused == 1)
    assert first > 0, "the call was repeated without drafts, and the idle slot kept what it held"
    assert not simulation.recorder.failures()


class Slow:
    trust = 0

    def draft(self, limit: int) -> list[int]:
        clock = time.thread_time_ns
        began_ns = clock()
        while clock() - began_ns <= DRAFT_NS_MAX:
            pass
        return []


class Broken:
    trust = 0

    def draft(self, limit: int) -> list[int]:
        raise ValueError("broken")


@pytest.mark.parametrize("kind", [Slow, Broken])
def test_a_drafter_that_stalls_or_fails_is_switched_off_for_its_sequence(kind: type[Slow] | type[Broken]) -> None:
    simulation = Simulation(drafters=lambda _: [kind()])
    ids = [simulation.submit([number, number + 1], max_tokens=8, speculates=True) for number in (1, 9)]
    simulation.run()
    for sequence_id, number in zip(ids, (2, 10), strict=True):
        assert simulation.recorder.tokens(sequence_id) == following(number, 8)
    assert sum(report.drafters_off for report in simulation.recorder.reports) == 2


class Busy:
    """Takes as long as many calls of the simulated context."""

    trust = 0

    def __init__(self) -> None:
        self.asked = 0

    def draft(self, limit: int) -> list[int]:
        self.asked += 1
        stop_ns = time.thread_time_ns() + DRAFT_NS_MAX // 10
        while time.thread_time_ns() < stop_ns:
            pass
        return []


def test_drafters_are_asked_only_as_long_as_the_time_for_it_is_earned() -> None:
    drafter = Busy()
    simulation = Simulation(drafters=lambda _: [drafter])
    simulation.submit([1, 2], max_tokens=30, speculates=True)
    simulation.run()
    assert 0 < drafter.asked < 10


def test_drafts_survive_a_storm_of_requests_that_come_and_go() -> None:
    chance = random.Random(1)
    simulation = guessing(0.7, 7, cells=160, slots=4, slot_tokens=48)
    wanted: dict[int, list[int]] = {}
    for _ in range(400):
        if chance.random() < 0.2:
            first, count = chance.randrange(50), chance.randrange(1, 60)
            shifts = count > 40
            sequence_id = simulation.submit([first], max_tokens=count, speculates=True, shift=True)
            if not shifts:
                wanted[sequence_id] = following(first, count)
        if wanted and chance.random() < 0.03:
            simulation.loop.cancel(cancelled := chance.choice(list(wanted)))
            del wanted[cancelled]
        simulation.turn()
    simulation.run()
    assert not simulation.recorder.failures()
    for sequence_id, tokens in wanted.items():
        assert simulation.recorder.tokens(sequence_id) == tokens
