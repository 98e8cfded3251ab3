"""Inputs that share a call."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.pooled.embedding_batches import InputDemand, InputPlan, InputRow, plan_inputs

BATCH = 100


def plan(*demands: InputDemand, batch_tokens: int = BATCH, inputs_max: int = 8, start: int = 0) -> InputPlan:
    return plan_inputs(demands, batch_tokens=batch_tokens, inputs_max=inputs_max, start=start)


@pytest.mark.behaviour("B-92")
@pytest.mark.parametrize(
    ("demands", "rows"),
    [
        ([], ()),
        ([InputDemand(1, [10] * 3)], (InputRow(1, 3),)),
        # The number of inputs is bounded …
        ([InputDemand(1, [1] * 20)], (InputRow(1, 8),)),
        # … and so are their tokens.
        ([InputDemand(1, [60, 40, 1])], (InputRow(1, 2),)),
        ([InputDemand(1, [60, 41])], (InputRow(1, 1),)),
        ([InputDemand(1, [BATCH])], (InputRow(1, 1),)),
        # Only what is pending counts.
        ([InputDemand(1, [90, 90, 5, 5], first=2)], (InputRow(1, 2),)),
        # Several requests share a call, one input each in turn.
        ([InputDemand(1, [1] * 20), InputDemand(2, [1]), InputDemand(3, [1] * 20)], ((1, 4), (2, 1), (3, 3))),
        # A large input does not keep smaller ones of others out.
        ([InputDemand(1, [30]), InputDemand(2, [90]), InputDemand(3, [30])], (InputRow(1, 1), InputRow(3, 1))),
    ],
)
def test_a_call_takes_what_fits_from_each_in_turn(
    demands: list[InputDemand], rows: tuple[tuple[int, int], ...]
) -> None:
    assert plan(*demands).rows == rows


def test_who_gave_nothing_begins_the_next_call() -> None:
    demands = [InputDemand(1, [60, 60]), InputDemand(2, [90]), InputDemand(3, [10])]
    first = plan(*demands)
    assert first.rows == (InputRow(1, 1), InputRow(3, 1))
    assert plan(InputDemand(1, [60, 60], first=1), InputDemand(2, [90]), start=first.next_start).rows[0].key == 2


def test_requests_take_turns_to_be_first() -> None:
    demands = [InputDemand(1, [50] * 9), InputDemand(2, [50] * 9)]
    assert plan(*demands, start=0).next_start == 2
    assert plan(*demands, start=2).rows == (InputRow(2, 1), InputRow(1, 1))


def test_an_input_that_must_be_alone_shares_its_call_with_nobody() -> None:
    alone = InputDemand(2, [5, 5], first=1, alone=True)
    other = InputDemand(1, [5])
    first = plan(other, alone)
    assert first.rows == (InputRow(1, 1),)
    assert plan(alone, start=first.next_start).rows == (InputRow(2, 1),)
    assert plan(other, alone, start=2).rows == (InputRow(2, 1),)


@dataclass
class Work:
    """A request of the simulation."""

    sizes: list[int]
    done: int = 0


REQUESTS = st.lists(st.lists(st.integers(1, BATCH), min_size=1, max_size=12), min_size=1, max_size=6)


@given(REQUESTS, st.integers(1, 8))
def test_every_input_is_computed_once_within_bounds_and_nobody_waits_for_ever(
    requests: list[list[int]], inputs_max: int
) -> None:
    works = {key: Work(sizes) for key, sizes in enumerate(requests)}
    start, waited = 0, dict.fromkeys(works, 0)
    for _ in range(sum(len(sizes) for sizes in requests)):
        demands = [
            InputDemand(key, work.sizes, work.done) for key, work in works.items() if work.done < len(work.sizes)
        ]
        if not demands:
            break
        call = plan_inputs(demands, batch_tokens=BATCH, inputs_max=inputs_max, start=start)
        start = call.next_start
        assert call.rows
        assert sum(row.inputs for row in call.rows) <= inputs_max
        tokens = 0
        for key, inputs in call.rows:
            work = works[key]
            tokens += sum(work.sizes[work.done : work.done + inputs])
            work.done += inputs
        assert tokens <= BATCH
        served = {row.key for row in call.rows}
        for demand in demands:
            waited[demand.key] = 0 if demand.key in served else waited[demand.key] + 1
            assert waited[demand.key] < len(works)
    assert all(work.done == len(work.sizes) for work in works.values())
