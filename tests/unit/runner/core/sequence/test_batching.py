"""Choice of the inputs of the next decode call."""

import pytest

from runner.core.sequence.batching import BatchPlan, BatchRow, plan_batch


def demand(
    key: int, pending: int, *, generating: bool = False, room: int = 10_000, units: tuple[int, ...] = ()
) -> BatchRow:
    return BatchRow(key, pending, room, generating, units)


def taken(plan: BatchPlan) -> dict[int, int]:
    return {row.key: row.tokens for row in plan.rows}


def test_no_demand_is_an_empty_plan() -> None:
    assert plan_batch([], batch_tokens=8, start=3).rows == ()


@pytest.mark.behaviour("B-04")
def test_all_sequences_together_stay_within_the_batch() -> None:
    plan = plan_batch([demand(key, 100) for key in range(16)], batch_tokens=512, start=0)
    assert sum(row.tokens for row in plan.rows) == 512
    assert taken(plan) == {0: 100, 1: 100, 2: 100, 3: 100, 4: 100, 5: 12}


@pytest.mark.behaviour("B-05")
def test_generating_sequences_get_their_token_before_any_prompt() -> None:
    demands = [demand(0, 8000), *(demand(key, 1, generating=True) for key in range(1, 8))]
    plan = plan_batch(demands, batch_tokens=512, start=0)
    assert taken(plan) == {0: 505, **dict.fromkeys(range(1, 8), 1)}
    assert [row.key for row in plan.rows][-1] == 0


@pytest.mark.behaviour("B-05")
def test_the_first_sequence_that_could_add_nothing_starts_the_next_batch() -> None:
    demands = [demand(key, 300) for key in range(4)]
    first = plan_batch(demands, batch_tokens=512, start=0)
    assert taken(first) == {0: 300, 1: 212}
    assert first.next_start == 2


@pytest.mark.behaviour("B-05")
def test_when_all_could_add_something_the_next_batch_starts_after_the_last_visited() -> None:
    plan = plan_batch([demand(0, 10), demand(1, 10), demand(5, 10)], batch_tokens=512, start=1)
    assert [row.key for row in plan.rows] == [1, 5, 0]
    assert plan.next_start == 1


@pytest.mark.behaviour("B-05")
def test_a_later_sequence_still_uses_the_room_that_a_group_left() -> None:
    plan = plan_batch([demand(0, 6, units=(6,)), demand(1, 8, units=(8,)), demand(2, 4)], batch_tokens=12, start=0)
    assert taken(plan) == {0: 6, 2: 4}
    assert plan.next_start == 1


@pytest.mark.behaviour("B-05")
def test_no_sequence_starves_over_many_batches() -> None:
    pending = dict.fromkeys(range(7), 1000)
    start, waited, longest_wait = 0, dict.fromkeys(pending, 0), 0
    for _ in range(200):
        demands = [demand(key, count) for key, count in sorted(pending.items()) if count]
        plan = plan_batch(demands, batch_tokens=64, start=start)
        start = plan.next_start
        for key in pending:
            waited[key] = 0 if key in taken(plan) or not pending[key] else waited[key] + 1
        longest_wait = max(longest_wait, *waited.values())
        for row in plan.rows:
            pending[row.key] -= row.tokens
    assert not any(pending.values())
    assert longest_wait <= 7


@pytest.mark.behaviour("B-04", "B-21")
def test_a_group_is_never_split() -> None:
    plan = plan_batch([demand(0, 30, units=(1, 1, 10, 5))], batch_tokens=9, start=0)
    assert taken(plan) == {0: 2}


@pytest.mark.behaviour("B-04")
def test_a_group_larger_than_the_batch_widens_this_batch_only_and_is_alone_in_it() -> None:
    demands = [demand(0, 20, units=(20,)), demand(1, 5)]
    assert taken(plan_batch(demands, batch_tokens=8, start=0)) == {0: 20}
    assert taken(plan_batch([demand(1, 5)], batch_tokens=8, start=0)) == {1: 5}


@pytest.mark.behaviour("B-04")
def test_a_group_that_does_not_fit_behind_others_waits() -> None:
    plan = plan_batch([demand(0, 5), demand(1, 20, units=(20,))], batch_tokens=8, start=0)
    assert taken(plan) == {0: 5}
    assert plan.next_start == 1


@pytest.mark.behaviour("B-07")
def test_logits_are_wanted_only_where_nothing_stays_pending() -> None:
    demands = [demand(0, 100), demand(1, 1, generating=True), demand(2, 3)]
    plan = plan_batch(demands, batch_tokens=50, start=0)
    assert [(row.key, row.tokens, row.complete) for row in plan.rows] == [(1, 1, True), (0, 49, False)]


@pytest.mark.behaviour("B-08")
def test_a_long_prompt_has_batches_without_outputs() -> None:
    pending, outputs = 5 * 64, []
    while pending:
        (row,) = plan_batch([demand(0, pending)], batch_tokens=64, start=0).rows
        outputs.append(row.complete)
        pending -= row.tokens
    assert outputs == [False, False, False, False, True]


@pytest.mark.behaviour("B-51")
def test_a_full_sequence_is_named_and_adds_nothing_until_it_has_room() -> None:
    plan = plan_batch([demand(0, 1, generating=True, room=0), demand(1, 1, generating=True)], batch_tokens=8, start=0)
    assert plan.full == (0,)
    assert taken(plan) == {1: 1}


@pytest.mark.behaviour("B-51")
def test_pending_inputs_before_the_limit_close_the_batch_there() -> None:
    plan = plan_batch([demand(0, 10, room=4)], batch_tokens=64, start=0)
    assert [(row.key, row.tokens, row.complete) for row in plan.rows] == [(0, 4, False)]
    assert plan.full == ()


def test_a_group_is_not_begun_where_the_context_ends_inside_it() -> None:
    plan = plan_batch([demand(0, 8, room=6, units=(2, 5, 1))], batch_tokens=64, start=0)
    assert taken(plan) == {0: 2}


def test_the_order_of_generating_rows_is_the_same_in_every_step() -> None:
    demands = [demand(key, 1, generating=True) for key in range(16)]
    orders, start = [], 5
    for _ in range(3):
        plan = plan_batch(demands, batch_tokens=512, start=start)
        orders.append([row.key for row in plan.rows])
        start = plan.next_start
    assert orders[0] == orders[1] == orders[2]


@pytest.mark.behaviour("B-04", "B-51")
def test_tokens_behind_a_group_stay_within_the_batch_and_the_context() -> None:
    assert taken(plan_batch([demand(0, 20, units=(4,))], batch_tokens=10, start=0)) == {0: 10}
    assert taken(plan_batch([demand(0, 20, units=(4,), room=7)], batch_tokens=64, start=0)) == {0: 7}
