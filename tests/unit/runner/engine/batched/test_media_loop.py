"""Images in the engine's loop, without an engine: whose turn it is, who waits, what is freed."""

from itertools import pairwise

import pytest

from common.errors import InvalidRequest
from runner.core.sequence.media import PreparedImage
from runner.core.sequence.slots import MemoryRules
from runner.engine.media.media_encoder import EncodingDone
from tests.unit.runner.fake_images import BEGIN, END, ROW_VALUE, encoded, image
from tests.unit.runner.simulated_context import Simulation


def deliver(simulation: Simulation) -> None:
    """The encoder answers every job that was not cancelled."""
    jobs, simulation.jobs[:] = list(simulation.jobs), []
    for job in jobs:
        result = None if job.cancelled else encoded(job.image)
        simulation.loop.take_encoded(EncodingDone(job, result, None))


def ask(simulation: Simulation, *parts: int | PreparedImage, **fields: int | bool) -> int:
    inputs: list[int] = []
    for part in parts:
        inputs += part.inputs if isinstance(part, PreparedImage) else [part]
    images = tuple(part for part in parts if isinstance(part, PreparedImage))
    return simulation.submit(inputs, images=images, **fields)


def entries(simulation: Simulation, slot: int = 0) -> list[tuple[int, int]]:
    return [(position, token) for call in simulation.context.calls for where, position, token in call if where == slot]


@pytest.mark.behaviour("B-21")
def test_text_image_and_text_are_calls_of_one_kind_at_consecutive_positions() -> None:
    simulation = Simulation(slots=1)
    asked = ask(simulation, 1, 2, image("one"), 3, max_tokens=2)
    simulation.run()
    deliver(simulation)
    simulation.run()
    assert entries(simulation)[:10] == list(enumerate([1, 2, BEGIN, *[ROW_VALUE] * 5, END, 3]))
    assert simulation.context.row_calls == [1]
    assert simulation.recorder.tokens(asked) == [4, 5]


@pytest.mark.behaviour("B-100")
def test_a_sequence_that_waits_for_its_image_blocks_nobody() -> None:
    simulation = Simulation(slots=2)
    waiting = ask(simulation, 1, image("one"), 3, max_tokens=2)
    other = ask(simulation, 20, max_tokens=6)
    simulation.run()
    assert len(simulation.recorder.tokens(other)) == 6
    assert simulation.recorder.tokens(waiting) == []
    deliver(simulation)
    simulation.run()
    assert len(simulation.recorder.tokens(waiting)) == 2


@pytest.mark.behaviour("B-100", "B-05")
def test_rows_are_split_over_calls_and_take_turns_with_tokens() -> None:
    simulation = Simulation(slots=2, batch_tokens=4)
    big = ask(simulation, 1, image("big", rows=12), 3, max_tokens=1)
    simulation.turn()
    deliver(simulation)
    ask(simulation, 20, max_tokens=10)
    simulation.run()
    calls = simulation.context.row_calls
    assert [len(simulation.context.calls[index]) for index in calls] == [4, 4, 4]
    assert all(later - earlier == 2 for earlier, later in pairwise(calls))
    assert len(simulation.recorder.tokens(big)) == 1
    assert simulation.store.live == 0


@pytest.mark.behaviour("B-102")
def test_an_image_that_is_seen_as_a_whole_is_one_call_without_causality() -> None:
    simulation = Simulation(slots=2, batch_tokens=8, whole_images=True)
    pictures = [image(name, rows=6, whole=True) for name in ("one", "two")]
    asked = [ask(simulation, number, picture, 3, max_tokens=1) for number, picture in enumerate(pictures, 1)]
    simulation.run()
    deliver(simulation)
    simulation.run()
    assert [len(simulation.context.calls[index]) for index in simulation.context.row_calls] == [6, 6]
    assert simulation.context.whole_calls == simulation.context.row_calls
    assert simulation.context.causal
    assert [len(simulation.recorder.tokens(sequence_id)) for sequence_id in asked] == [1, 1]


@pytest.mark.behaviour("B-36", "B-100")
def test_equal_images_are_encoded_once_and_a_held_one_not_at_all() -> None:
    simulation = Simulation(slots=2)
    ask(simulation, 1, image("one"), 3, max_tokens=1)
    ask(simulation, 2, image("one"), 4, max_tokens=1)
    simulation.turn()
    assert len(simulation.jobs) == 1
    deliver(simulation)
    simulation.run()
    again = ask(simulation, 1, image("one"), 5, max_tokens=1)
    simulation.run()
    assert simulation.jobs == []
    assert len(simulation.recorder.tokens(again)) == 1
    other = ask(simulation, 1, image("two"), 3, max_tokens=1)
    simulation.run()
    assert len(simulation.jobs) == 1
    assert simulation.recorder.tokens(other) == []
    deliver(simulation)
    simulation.run()
    assert len(simulation.recorder.tokens(other)) == 1


@pytest.mark.behaviour("B-12", "B-105")
def test_a_cancel_while_an_image_is_encoded_leaves_nothing_behind() -> None:
    simulation = Simulation(slots=1)
    gone = ask(simulation, 1, image("one"), 3, max_tokens=4)
    simulation.turn()
    (job,) = simulation.jobs
    simulation.loop.cancel(gone)
    simulation.run()
    assert job.cancelled
    assert simulation.recorder.freed == {gone}
    # It was too late to stop: the rows arrive and nobody keeps them.
    simulation.loop.take_encoded(EncodingDone(job, encoded(job.image), None))
    simulation.run()
    assert (simulation.store.live, simulation.store.kept) == (0, 0)
    again = ask(simulation, 1, image("one"), 3, max_tokens=1)
    simulation.run()
    deliver(simulation)
    simulation.run()
    assert len(simulation.recorder.tokens(again)) == 1


@pytest.mark.behaviour("B-12")
def test_a_cancel_inside_an_image_leaves_a_slot_that_can_be_used() -> None:
    simulation = Simulation(slots=1, batch_tokens=4)
    gone = ask(simulation, 1, image("big", rows=12), 3, max_tokens=4)
    simulation.turn()
    deliver(simulation)
    simulation.turn()
    simulation.turn()
    assert simulation.context.row_calls
    simulation.loop.cancel(gone)
    again = ask(simulation, 1, image("big", rows=12), 9, max_tokens=1)
    simulation.run()
    deliver(simulation)
    simulation.run()
    assert simulation.recorder.tokens(again) == [10]
    assert simulation.store.live == 0


def test_an_image_that_cannot_be_had_fails_its_sequences_and_no_other() -> None:
    simulation = Simulation(slots=2)
    bad = ask(simulation, 1, image("bad"), 3, max_tokens=2)
    good = ask(simulation, 20, max_tokens=3)
    simulation.run()
    (job,) = simulation.jobs
    simulation.loop.take_encoded(EncodingDone(job, None, InvalidRequest("an image is damaged", param="images")))
    simulation.run()
    assert [error.args for error in simulation.recorder.failures().values()] == [("an image is damaged",)]
    assert simulation.recorder.freed == {bad, good}
    assert simulation.store.live == 0


@pytest.mark.behaviour("B-53")
def test_a_cache_that_cannot_shift_needs_the_image_again_and_gets_it() -> None:
    simulation = Simulation(slots=1, slot_tokens=24, cells=24, rules=MemoryRules(can_move=False))
    asked = ask(simulation, 1, image("one"), *range(2, 12), max_tokens=30, keep_tokens=8)
    simulation.run()
    deliver(simulation)
    simulation.run()
    assert len(simulation.recorder.tokens(asked)) == 30
    assert simulation.jobs == []  # the head was kept, with the image in it


@pytest.mark.behaviour("B-53", "B-45")
def test_an_image_behind_the_kept_head_goes_with_the_first_shift_that_reaches_it() -> None:
    simulation = Simulation(slots=1, slot_tokens=32, cells=32)
    asked = ask(simulation, 1, 2, image("one"), *range(3, 13), max_tokens=20, keep_tokens=1)
    simulation.run()
    deliver(simulation)
    simulation.run()
    assert len(simulation.recorder.tokens(asked)) == 20
    held = simulation.table.slots[0].held
    assert min(held) >= 0
    assert BEGIN not in held
    assert END not in held


@pytest.mark.behaviour("B-53")
def test_an_image_that_moves_is_computed_again_where_cells_cannot_move() -> None:
    simulation = Simulation(slots=1, slot_tokens=32, cells=32, rules=MemoryRules(can_move=False))
    asked = ask(simulation, *range(1, 20), image("one"), 30, max_tokens=10, keep_tokens=1)
    simulation.run()
    deliver(simulation)
    simulation.run()
    deliver(simulation)  # what was asked for again, if it was no longer there
    simulation.run()
    assert len(simulation.recorder.tokens(asked)) == 10
    rows = [token for _, token in entries(simulation) if token == ROW_VALUE]
    assert len(rows) == 10  # five before the shift, five after it


@pytest.mark.behaviour("B-21")
def test_an_image_at_the_end_of_a_prompt_gives_the_logits() -> None:
    simulation = Simulation(slots=1)
    asked = ask(simulation, 1, image("one", markers=False), max_tokens=2)
    simulation.run()
    deliver(simulation)
    simulation.run()
    assert len(simulation.recorder.tokens(asked)) == 2
