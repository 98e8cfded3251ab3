"""Choice of the sequences that are paused and return: single decisions, and histories with random arrivals."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from common.spec.bands import Band
from runner.core.sequence.preemption import (
    AGE_S,
    EXPECTED_S,
    PAUSE_AGE_S,
    BandsSeen,
    Contender,
    in_order,
    open_to_bands,
    victims,
)

SLOTS = 2


def ids(contenders: list[Contender]) -> list[int]:
    return [one.sequence_id for one in contenders]


def test_a_band_is_expected_for_a_while_after_its_last_request() -> None:
    seen = BandsSeen()
    assert seen.expected([], 1.0) == Band.LOW
    assert seen.expected([Band.LOW, Band.NORMAL], 2.0) == Band.NORMAL
    assert seen.expected([Band.LOW, Band.HIGH], 3.0) == Band.HIGH
    assert seen.expected([Band.NORMAL], 3.0 + EXPECTED_S) == Band.HIGH
    assert seen.expected([Band.NORMAL], 3.1 + EXPECTED_S) == Band.NORMAL
    assert seen.expected([], 3.2 + 2 * EXPECTED_S) == Band.LOW


def test_the_newest_sequence_of_the_lowest_band_is_paused_first() -> None:
    running = [Contender(1, Band.LOW), Contender(2, Band.LOW), Contender(3, Band.NORMAL), Contender(4, Band.HIGH)]
    assert ids(victims(running, band=Band.HIGH)) == [2, 1, 3]
    assert ids(victims(running, band=Band.NORMAL)) == [2, 1]
    assert victims(running, band=Band.LOW) == []


def test_when_cells_run_out_any_sequence_may_be_paused() -> None:
    running = [Contender(1, Band.HIGH), Contender(2, Band.NORMAL), Contender(3, Band.NORMAL)]
    assert ids(victims(running, band=None)) == [3, 2, 1]


def test_a_paused_sequence_precedes_later_ones_of_its_band() -> None:
    waiting = [Contender(3, Band.LOW, 1.0, 1), Contender(5, Band.LOW), Contender(9, Band.HIGH)]
    assert ids(in_order(waiting)) == [9, 3, 5]


def test_age_and_pauses_raise_a_sequence_up_to_the_highest_band() -> None:
    assert Contender(1, Band.LOW, AGE_S - 1).rank == Band.LOW
    assert Contender(1, Band.LOW, AGE_S).rank == Band.NORMAL
    assert Contender(1, Band.LOW, 0.0, int(2 * AGE_S / PAUSE_AGE_S)).rank == Band.HIGH
    assert Contender(1, Band.LOW, 100 * AGE_S).rank == Band.HIGH
    aged = Contender(1, Band.LOW, 2 * AGE_S)
    assert victims([aged], band=Band.HIGH) == []
    assert ids(in_order([Contender(2, Band.HIGH), aged])) == [1, 2]


def test_a_request_counts_the_slots_that_waiting_ones_leave_it() -> None:
    running = [Contender(1, Band.LOW), Contender(2, Band.NORMAL), Contender(3, Band.HIGH)]
    assert open_to_bands(running, []) == (2, 1)
    assert open_to_bands(running, [Contender(4, Band.HIGH)]) == (1, 0)
    assert open_to_bands(running, [Contender(4, Band.LOW, 1.0, 1)]) == (2, 1)


@dataclass
class Job:
    """A sequence of a history."""

    id: int
    band: Band
    work: int  # seconds
    waited_s: float = 0.0
    pauses: int = 0
    gaps: list[float] = field(default_factory=list)  # lengths of its pauses

    @property
    def contender(self) -> Contender:
        return Contender(self.id, self.band, self.waited_s, self.pauses)


@given(st.lists(st.tuples(st.sampled_from(Band), st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=60))
def test_every_sequence_ends_and_its_pauses_are_bounded(arrivals: list[tuple[Band, int, int]]) -> None:
    """Play arrivals of (band, seconds of work, seconds since the last) over two slots, second by second."""
    due, at_s = [], 0
    for number, (band, work, after) in enumerate(arrivals):
        at_s += after
        due.append((at_s, Job(number, band, work)))
    running: list[Job] = []
    waiting: list[Job] = []
    ended: list[Job] = []
    for now_s in range(at_s + 1 + sum(work for _, work, _ in arrivals)):
        waiting += [job for when, job in due if when == now_s]
        by_id = {job.id: job for job in (*waiting, *running)}
        for contender in in_order(job.contender for job in waiting):
            job = by_id[contender.sequence_id]
            if len(running) >= SLOTS:
                found = victims([one.contender for one in running], band=job.band)
                if not found:
                    continue
                victim = by_id[found[0].sequence_id]
                assert victim.contender.rank > job.band, "only a lower one is paused"
                victim.pauses += 1
                running.remove(victim)
                waiting.append(victim)
            waiting.remove(job)
            running.append(job)
        assert len(running) == SLOTS or not waiting, "no slot is idle while a sequence waits"
        worst = max((job.contender.rank for job in running), default=Band.HIGH)
        assert all(job.band >= worst for job in waiting), "no higher band waits for a lower one"
        for job in waiting:
            job.waited_s += 1
        for job in list(running):
            job.work -= 1
            if not job.work:
                running.remove(job)
                ended.append(job)
    assert len(ended) == len(arrivals)
    for job in ended:
        assert job.pauses <= job.band * AGE_S / PAUSE_AGE_S, "each pause ages it"
