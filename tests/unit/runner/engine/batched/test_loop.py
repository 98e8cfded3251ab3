"""The engine's loop over a simulated context: what it does when cells, slots or sequences run out."""

import pytest

from common.errors import QueueFull
from runner.core.sequence.slots import MemoryRules
from runner.engine.batched import slot_table
from runner.engine.contract.engine import Sampled
from runner.engine.llama.batch import Batch
from tests.unit.runner.simulated_context import VOCABULARY, Simulation


def following(token: int, count: int) -> list[int]:
    """Return the tokens of the simulated model after a token."""
    return [(token + 1 + index) % VOCABULARY for index in range(count)]


def test_every_sequence_gets_its_own_tokens() -> None:
    simulation = Simulation()
    ids = [simulation.submit([number, number + 1], max_tokens=5) for number in range(0, 40, 5)]
    simulation.run()
    for sequence_id, number in zip(ids, range(0, 40, 5), strict=True):
        assert simulation.recorder.tokens(sequence_id) == following(number + 1, 5)
    assert simulation.recorder.freed == set(ids)


@pytest.mark.behaviour("B-07")
def test_positions_go_on_where_the_slot_ends_and_outputs_are_where_sampling_is() -> None:
    simulation = Simulation(slots=2, batch_tokens=4)
    simulation.submit([1, 2, 3, 4, 5, 6], max_tokens=2)
    simulation.submit([9], max_tokens=3)
    simulation.run()
    positions = [
        {slot: [at for where, at, _ in call if where == slot] for slot in (0, 1)} for call in simulation.context.calls
    ]
    assert positions == [{0: [0, 1, 2], 1: [0]}, {0: [3, 4, 5], 1: [1]}, {0: [6], 1: [2]}]


@pytest.mark.behaviour("B-09")
def test_when_cells_run_out_the_newest_prompt_waits_and_the_others_go_on() -> None:
    simulation = Simulation(cells=40, slots=3, slot_tokens=40)
    first = simulation.submit([1] * 10, max_tokens=8)
    second = simulation.submit([2] * 10, max_tokens=8)
    third = simulation.submit([3] * 12, max_tokens=2)
    simulation.run()
    assert simulation.context.refused > 0
    assert simulation.recorder.failures() == {}
    assert simulation.recorder.tokens(first) == following(1, 8)
    assert simulation.recorder.tokens(second) == following(2, 8)
    assert simulation.recorder.tokens(third) == following(3, 2)


@pytest.mark.behaviour("B-09")
def test_a_sequence_that_cannot_go_on_alone_is_refused_and_frees_its_slot() -> None:
    simulation = Simulation(cells=20, slots=2, slot_tokens=64)
    alone = simulation.submit([1] * 10, max_tokens=30)
    simulation.run()
    failures = simulation.recorder.failures()
    assert isinstance(failures[alone], QueueFull)
    assert simulation.recorder.freed == {alone}
    after = simulation.submit([2] * 5, max_tokens=3)
    simulation.run()
    assert simulation.recorder.tokens(after) == following(2, 3)


@pytest.mark.behaviour("B-09")
def test_when_cells_run_out_idle_slots_give_theirs_first() -> None:
    simulation = Simulation(cells=40, slots=3, slot_tokens=40)
    simulation.submit([1] * 18, max_tokens=2)
    simulation.run()
    served = simulation.submit([2] * 25, max_tokens=3)
    simulation.run()
    assert simulation.recorder.failures() == {}
    assert simulation.recorder.tokens(served) == following(2, 3)


@pytest.mark.behaviour("B-11")
def test_a_row_that_does_not_fit_its_batch_is_a_bug() -> None:
    batch = Batch(capacity=4, slots=1)
    with pytest.raises(AssertionError, match="over capacity"):
        batch.add(0, 0, [1, 2, 3, 4, 5], wants_logits=True)
    with pytest.raises(AssertionError, match="empty row"):
        batch.add(0, 0, [], wants_logits=True)


@pytest.mark.behaviour("B-02")
def test_a_new_sequence_in_the_same_slot_gets_none_of_the_old_one_s_results() -> None:
    """Commands are obeyed between steps alone, so that nobody is replaced between a plan and its result."""
    simulation = Simulation(slots=1)
    old = simulation.submit([5], max_tokens=50)
    for _ in range(3):
        assert simulation.turn()
    simulation.loop.cancel(old)
    new = simulation.submit([40], max_tokens=3)
    simulation.run()
    assert simulation.recorder.tokens(new) == following(40, 3)
    assert len(simulation.recorder.tokens(old)) == 3


@pytest.mark.behaviour("B-02", "B-115")
def test_tokens_computed_past_a_stop_string_leave_the_cache() -> None:
    simulation = Simulation(slots=1)
    stopped = simulation.submit([5], max_tokens=50)
    for _ in range(6):
        assert simulation.turn()
    simulation.loop.cut(stopped, 2)
    assert not simulation.turn()
    assert simulation.table.slots[0].held == [5, 6, 7]
    assert simulation.recorder.freed == {stopped}


@pytest.mark.behaviour("B-115")
def test_a_stop_string_found_after_the_limit_still_cuts_the_cache() -> None:
    simulation = Simulation(slots=1)
    stopped = simulation.submit([5], max_tokens=4)
    simulation.run()
    assert simulation.table.slots[0].held == [5, 6, 7, 8]
    simulation.loop.cut(stopped, 1)
    simulation.run()
    assert simulation.table.slots[0].held == [5, 6]


@pytest.mark.behaviour("B-115")
def test_a_late_cut_does_not_touch_the_next_sequence() -> None:
    simulation = Simulation(slots=1)
    stopped = simulation.submit([5], max_tokens=4)
    simulation.run()
    following_one = simulation.submit([5, 6, 7, 8, 30], max_tokens=4)
    assert simulation.turn()
    simulation.loop.cut(stopped, 1)
    simulation.run()
    assert simulation.recorder.tokens(following_one) == following(30, 4)


@pytest.mark.behaviour("B-12", "B-46")
@pytest.mark.parametrize("turns", range(6))
def test_a_cancel_at_any_moment_frees_the_slot_before_the_next_call(turns: int) -> None:
    simulation = Simulation(slots=1, batch_tokens=8)
    doomed = simulation.submit([3] * 30, max_tokens=50)
    for _ in range(turns):
        assert simulation.turn()
    calls = len(simulation.context.calls)
    simulation.loop.cancel(doomed)
    assert not simulation.turn()
    assert len(simulation.context.calls) == calls
    assert simulation.recorder.freed == {doomed}
    assert simulation.table.busy == 0


def test_a_paused_sequence_leaves_the_batches_until_it_is_taken_in_again() -> None:
    simulation = Simulation(slots=2)
    slow = simulation.submit([5], max_tokens=4)
    assert simulation.turn()
    simulation.loop.pause(slow, True)
    assert not simulation.turn()
    simulation.loop.pause(slow, False)
    simulation.run()
    assert simulation.recorder.tokens(slow) == following(5, 4)


class Noted:
    """A log that is read."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, int]]] = []

    def info(self, event: str, **fields: int) -> None:
        self.events.append((event, fields))


@pytest.mark.behaviour("B-33")
def test_forks_and_evictions_are_told_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Noted()
    monkeypatch.setattr(slot_table, "log", log)
    simulation = Simulation(slots=2)
    head = list(range(20))
    for prompt in ([*head, 30], [*head, 40], [50] * 10):
        simulation.submit(prompt, max_tokens=2)
        simulation.run()
    # The third takes the slot used longest ago: 21 inputs and the first of two generated tokens.
    assert log.events == [
        ("slot.forked", {"source": 0, "slot": 1, "tokens": 20}),
        ("slot.evicted", {"slot": 0, "tokens": 22}),
    ]


@pytest.mark.behaviour("B-42", "B-52")
def test_a_fork_that_shifts_computes_again_instead_of_moving_shared_cells() -> None:
    simulation = Simulation(cells=200, slots=2, slot_tokens=40)
    head = list(range(30))
    first = simulation.submit([*head, 50], max_tokens=60, keep_tokens=2)
    for _ in range(3):
        assert simulation.turn()
    second = simulation.submit([*head, 55], max_tokens=60, keep_tokens=2)
    simulation.run()
    # The simulated context fails where shared cells are moved.
    assert simulation.recorder.tokens(first) == following(50, 60)
    assert simulation.recorder.tokens(second) == following(55, 60)


@pytest.mark.behaviour("B-53")
def test_a_memory_that_cannot_move_computes_again_while_others_go_on() -> None:
    rules = MemoryRules(can_move=False)
    simulation = Simulation(cells=200, slots=2, slot_tokens=40, batch_tokens=8, rules=rules)
    long = simulation.submit(list(range(30)), max_tokens=60)
    other = simulation.submit([50], max_tokens=100)
    simulation.run()
    assert simulation.recorder.tokens(long) == following(29, 60)
    assert simulation.recorder.tokens(other) == following(50, 100)
    # While 18 inputs were computed again in chunks, the other sequence was in every call.
    assert all(any(slot == 1 for slot, _, _ in call) for call in simulation.context.calls[5:70])


def test_stopping_drops_every_sequence() -> None:
    simulation = Simulation(slots=2)
    ids = {simulation.submit([number], max_tokens=50) for number in range(5)}
    for _ in range(3):
        simulation.turn()
    simulation.stop()
    assert simulation.recorder.freed == ids
    assert simulation.table.busy == 0


@pytest.mark.behaviour("B-05")
def test_over_many_requests_no_sequence_starves() -> None:
    simulation = Simulation(cells=4096, slots=8, batch_tokens=16)
    ids = [simulation.submit([number % VOCABULARY] * (5 + 40 * (number % 7)), max_tokens=12) for number in range(60)]
    simulation.run()
    assert simulation.recorder.freed == set(ids)
    for number, sequence_id in enumerate(ids):
        assert simulation.recorder.tokens(sequence_id) == following(number % VOCABULARY, 12)
    assert max(len(call) for call in simulation.context.calls) <= 16


@pytest.mark.behaviour("B-05")
def test_many_prompts_of_one_tenant_do_not_delay_another() -> None:
    simulation = Simulation(cells=4096, slots=8, batch_tokens=16)
    for number in range(7):
        simulation.submit([number] * 64, max_tokens=1, cache_salt="many")
    single = simulation.submit([9] * 64, max_tokens=1, cache_salt="single")
    turns = 0
    while single not in simulation.recorder.freed:
        assert simulation.turn()
        turns += 1
    assert turns <= 2 * 64 // 16 + 1
    assert len(simulation.recorder.freed) <= 2
    simulation.run()


@pytest.mark.behaviour("B-05")
def test_equal_prompts_that_wait_together_end_in_their_order() -> None:
    simulation = Simulation(slots=4, batch_tokens=32)
    ids = [simulation.submit([1 + number] * 40, max_tokens=1) for number in range(4)]
    simulation.run()
    assert [outcome.sequence_id for outcome in simulation.recorder.outcomes if isinstance(outcome, Sampled)] == ids


@pytest.mark.behaviour("B-05")
def test_streams_and_prompts_take_turns_where_calls_with_both_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(slots=4, batch_tokens=32)
    monkeypatch.setattr(simulation.loop._times, "take_turns", lambda: True)
    stream = simulation.submit([1, 2, 3], max_tokens=20)
    simulation.turn()
    simulation.turn()
    before = len(simulation.context.calls)
    simulation.submit([5] * 100, max_tokens=1)
    simulation.run()
    sizes = [len(call) for call in simulation.context.calls[before:]]
    assert sizes[:8] == [32, 1, 32, 1, 32, 1, 4, 1]
    assert len(simulation.recorder.tokens(stream)) == 20
