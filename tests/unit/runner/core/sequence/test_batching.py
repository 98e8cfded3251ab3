"""Choice of the inputs of the next decode call."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.spec.bands import Band
from runner.core.sequence.batching import (
    EXPECTED_WAITS_S,
    STREAMS_WAIT_S_MAX,
    BatchPlan,
    BatchRow,
    CallCost,
    TenantClocks,
    hold_streams,
    plan_batch,
)


def demand(
    key: int,
    pending: int,
    *,
    generating: bool = False,
    room: int = 10_000,
    units: tuple[int, ...] = (),
    passed: int = 0,
    tenant: str = "",
    rank: int = 0,
    waited_s: float = 0.0,
) -> BatchRow:
    return BatchRow(key, pending, room, generating, units, passed, tenant, rank, waited_s)


def taken(plan: BatchPlan) -> dict[int, int]:
    return {row.key: row.tokens for row in plan.rows}


def test_no_demand_is_an_empty_plan() -> None:
    assert plan_batch([], batch_tokens=8).rows == ()


@pytest.mark.behaviour("B-04")
def test_all_sequences_together_stay_within_the_batch() -> None:
    plan = plan_batch([demand(key, 100) for key in range(16)], batch_tokens=512)
    assert sum(row.tokens for row in plan.rows) == 512
    assert taken(plan) == {0: 100, 1: 100, 2: 100, 3: 100, 4: 100, 5: 12}


@pytest.mark.behaviour("B-05")
def test_generating_sequences_get_their_token_before_any_prompt() -> None:
    demands = [demand(0, 8000), *(demand(key, 1, generating=True) for key in range(1, 8))]
    plan = plan_batch(demands, batch_tokens=512)
    assert taken(plan) == {0: 505, **dict.fromkeys(range(1, 8), 1)}
    assert [row.key for row in plan.rows][-1] == 0


@pytest.mark.behaviour("B-05")
def test_the_prompt_that_is_done_first_gets_the_rest() -> None:
    plan = plan_batch([demand(0, 300), demand(1, 100), demand(2, 500), demand(3, 200)], batch_tokens=512)
    assert taken(plan) == {1: 100, 3: 200, 0: 212}
    assert plan.left_out == (2,)


@pytest.mark.behaviour("B-05")
def test_prompts_that_arrive_together_end_one_after_the_other_where_inputs_take_the_time() -> None:
    demands = [demand(key, 128) for key in range(4)]
    plan = plan_batch(demands, batch_tokens=512, cost=CallCost(fixed_s=0.05, token_s=0.005))
    assert taken(plan) == {0: 128}
    assert plan.left_out == (1, 2, 3)


@pytest.mark.behaviour("B-05")
def test_prompts_share_a_call_where_calls_take_the_time() -> None:
    demands = [demand(key, 8) for key in range(4)]
    plan = plan_batch(demands, batch_tokens=512, cost=CallCost(fixed_s=0.05, token_s=0.0005))
    assert len(plan.rows) == 4


@pytest.mark.behaviour("B-05")
@pytest.mark.parametrize(
    ("fixed_s", "others", "batch_tokens", "inputs"),
    [
        (0.3, 0, 512, {0: 100}),  # the second gains 0.3 s, both end 0.3 s earlier, and the first waits 1 s longer
        (0.34, 0, 512, {0: 100, 1: 100}),
        (0.12, 6, 512, {0: 100, 1: 100}),  # streams end earlier, too
        (0.34, 0, 150, {0: 100}),  # half of a prompt saves half of a call
        (0.51, 0, 150, {0: 100, 1: 50}),
    ],
)
def test_prompts_share_a_call_where_that_saves_others_more_than_it_takes_from_the_first(
    fixed_s: float, others: int, batch_tokens: int, inputs: dict[int, int]
) -> None:
    demands = [demand(0, 100), demand(1, 100), *(demand(2 + key, 1, generating=True) for key in range(others))]
    plan = plan_batch(demands, batch_tokens=batch_tokens, cost=CallCost(fixed_s=fixed_s, token_s=0.01 / (1 + others)))
    assert {row.key: row.tokens for row in plan.rows if not row.generating} == inputs


@pytest.mark.parametrize("clocks", [None, {"": 5000, "other": 0}], ids=["one tenant", "a tenant that had more"])
def test_a_prompt_of_a_higher_band_precedes_shorter_ones_and_shares_no_call(clocks: dict[str, int] | None) -> None:
    demands = [demand(0, 10, tenant="other", rank=2), demand(1, 300), demand(2, 1, generating=True)]
    plan = plan_batch(demands, batch_tokens=512, clocks=clocks)
    assert taken(plan) == {2: 1, 1: 300}
    assert plan.left_out == (0,)


def test_a_call_of_generating_sequences_alone_holds_each_in_the_order_of_slots() -> None:
    demands = [demand(key, 1, generating=True, rank=key % 3) for key in range(5)]
    plan = plan_batch(demands, batch_tokens=5)
    assert [(row.key, row.tokens) for row in plan.rows] == [(key, 1) for key in range(5)]
    beside_a_full_one = plan_batch([*demands, demand(5, 1, generating=True, room=0)], batch_tokens=5)
    assert plan == beside_a_full_one._replace(full=())


def test_prompts_of_one_lower_band_share_a_call_beside_generating_sequences() -> None:
    demands = [demand(0, 10, rank=2), demand(1, 20, rank=2), demand(2, 1, generating=True)]
    assert taken(plan_batch(demands, batch_tokens=512)) == {2: 1, 0: 10, 1: 20}


@pytest.mark.behaviour("B-05")
def test_a_prompt_waits_no_longer_for_shorter_ones_than_it_takes_itself() -> None:
    left, passed, calls = 1000, 0, 0
    while left:
        plan = plan_batch([demand(0, left, passed=passed), demand(1, 50)], batch_tokens=50)
        calls += 1
        left -= taken(plan).get(0, 0)
        passed += 50 * (0 in plan.left_out)
    assert calls == pytest.approx(2 * 1000 / 50, abs=2)


@pytest.mark.behaviour("B-05")
def test_sequences_that_generate_take_turns_where_a_batch_has_no_room_for_all() -> None:
    passed, served = dict.fromkeys(range(3), 0), []
    for _ in range(9):
        plan = plan_batch([demand(key, 1, generating=True, passed=passed[key]) for key in passed], batch_tokens=1)
        (row,) = plan.rows
        served.append(row.key)
        passed = {key: 0 if key == row.key else tokens + 1 for key, tokens in passed.items()}
    assert served == [0, 1, 2] * 3


@pytest.mark.behaviour("B-05")
def test_streams_wait_no_longer_than_the_limit_for_a_prompt() -> None:
    demands = [demand(0, 8000), demand(1, 1, generating=True)]
    cost = CallCost(fixed_s=0.2, token_s=0.01)
    plan = plan_batch(demands, batch_tokens=512, cost=cost)
    assert cost.fixed_s + taken(plan)[0] * cost.token_s == pytest.approx(STREAMS_WAIT_S_MAX)
    assert taken(plan_batch(demands[:1], batch_tokens=512, cost=cost)) == {0: 512}
    assert taken(plan_batch(demands[:1], batch_tokens=512, cost=cost, wait_s=STREAMS_WAIT_S_MAX)) == {0: taken(plan)[0]}
    assert taken(plan_batch(demands, batch_tokens=512, cost=CallCost(fixed_s=2.0, token_s=0.1)))[0] == 20


@pytest.mark.parametrize(
    ("waited_s", "cost", "rows"),
    [
        ((0.0, 0.5, 0.0), CallCost(fixed_s=0.1, token_s=0.01), {0: 40, 3: 1}),
        ((0.0, 0.9, 0.0), CallCost(fixed_s=0.1, token_s=0.01), {0: 90, 1: 1, 2: 1, 3: 1}),
        ((0.0, 0.0, 5.0), CallCost(fixed_s=0.1, token_s=0.01), {0: 90, 3: 1}),
        ((0.0, 0.0, 0.0), CallCost(), {0: 509, 1: 1, 2: 1, 3: 1}),
        ((0.0, 0.0, 0.0), CallCost(fixed_s=0.6, token_s=0.01), {0: 60, 1: 1, 2: 1, 3: 1}),
    ],
    ids=["waits", "has-waited", "of-the-same-band", "unknown-cost", "slow-calls"],
)
def test_streams_wait_for_a_prompt_of_a_higher_band_until_one_has_waited_for_the_limit(
    waited_s: tuple[float, float, float], cost: CallCost, rows: dict[int, int]
) -> None:
    ranks = (2, 1, 0)
    streams = [
        demand(key, 1, generating=True, rank=rank, waited_s=s)
        for key, rank, s in zip((1, 2, 3), ranks, waited_s, strict=True)
    ]
    left, wait_s = hold_streams([demand(0, 8000), *streams], cost=cost)
    assert taken(plan_batch(left, batch_tokens=512, cost=cost, wait_s=wait_s)) == rows
    assert hold_streams(streams, cost=cost) == (streams, 0.0)


@pytest.mark.parametrize(
    ("rank", "expected_band", "one_comes", "taken_tokens"),
    [
        (1, Band.HIGH, False, 50),
        (2, Band.NORMAL, False, 50),
        (1, Band.NORMAL, False, 512),
        (0, Band.HIGH, False, 512),
        (1, Band.LOW, False, 512),
        (1, Band.LOW, True, 50),
        (0, Band.HIGH, True, 50),
    ],
)
def test_a_prompt_takes_short_calls_where_a_request_of_a_higher_band_may_come_or_a_state_is_brought(
    rank: int, expected_band: Band, one_comes: bool, taken_tokens: int
) -> None:
    cost = CallCost(fixed_s=EXPECTED_WAITS_S - 0.05, token_s=0.001)
    prompt = demand(0, 8000, rank=rank)
    left, wait_s = hold_streams([prompt], cost=cost, expected_band=expected_band, one_comes=one_comes)
    assert taken(plan_batch(left, batch_tokens=512, cost=cost, wait_s=wait_s)) == {0: taken_tokens}


@pytest.mark.behaviour("B-04", "B-21")
def test_a_group_is_never_split() -> None:
    plan = plan_batch([demand(0, 30, units=(1, 1, 10, 5))], batch_tokens=9)
    assert taken(plan) == {0: 2}


@pytest.mark.behaviour("B-04")
def test_a_group_larger_than_the_batch_widens_this_batch_only_and_is_alone_in_it() -> None:
    demands = [demand(0, 20, units=(20,)), demand(1, 50)]
    assert taken(plan_batch(demands, batch_tokens=8)) == {0: 20}
    assert taken(plan_batch([demand(1, 5)], batch_tokens=8)) == {1: 5}


@pytest.mark.behaviour("B-04")
def test_a_group_that_does_not_fit_behind_others_waits() -> None:
    plan = plan_batch([demand(0, 5), demand(1, 20, units=(20,))], batch_tokens=8)
    assert taken(plan) == {0: 5}
    assert plan.left_out == (1,)


@pytest.mark.behaviour("B-07")
def test_logits_are_wanted_only_where_nothing_stays_pending() -> None:
    demands = [demand(0, 100), demand(1, 1, generating=True), demand(2, 3)]
    plan = plan_batch(demands, batch_tokens=50)
    assert [(row.key, row.tokens, row.complete) for row in plan.rows] == [(1, 1, True), (2, 3, True), (0, 46, False)]


@pytest.mark.behaviour("B-08")
def test_a_long_prompt_has_batches_without_outputs() -> None:
    pending, outputs = 5 * 64, []
    while pending:
        (row,) = plan_batch([demand(0, pending)], batch_tokens=64).rows
        outputs.append(row.complete)
        pending -= row.tokens
    assert outputs == [False, False, False, False, True]


@pytest.mark.behaviour("B-51")
def test_a_full_sequence_is_named_and_adds_nothing_until_it_has_room() -> None:
    plan = plan_batch([demand(0, 1, generating=True, room=0), demand(1, 1, generating=True)], batch_tokens=8)
    assert plan.full == (0,)
    assert taken(plan) == {1: 1}


@pytest.mark.behaviour("B-51")
def test_pending_inputs_before_the_limit_close_the_batch_there() -> None:
    plan = plan_batch([demand(0, 10, room=4)], batch_tokens=64)
    assert [(row.key, row.tokens, row.complete) for row in plan.rows] == [(0, 4, False)]
    assert plan.full == ()


def test_a_group_is_not_begun_where_the_context_ends_inside_it() -> None:
    plan = plan_batch([demand(0, 8, room=6, units=(2, 5, 1))], batch_tokens=64)
    assert taken(plan) == {0: 2}


@pytest.mark.behaviour("B-04", "B-51")
def test_tokens_behind_a_group_stay_within_the_batch_and_the_context() -> None:
    assert taken(plan_batch([demand(0, 20, units=(4,))], batch_tokens=10)) == {0: 10}
    assert taken(plan_batch([demand(0, 20, units=(4,), room=7)], batch_tokens=64)) == {0: 7}


BATCH_TOKENS = 64
# Inputs are what takes the time, so that prompts do not share calls.
COST = CallCost(fixed_s=0.001, token_s=0.01)


def inputs_before(own: int, others: list[list[int]], *, crowd: int) -> int:
    """Return how many inputs of other tenants are computed until a prompt of `own` inputs is.

    Each of the others has `crowd` prompts of its lengths, in turns, at any time; `own` arrives among them.
    """
    clocks, turns = TenantClocks(), [0] * len(others)
    left = {(tenant, place): 0 for tenant in range(len(others)) for place in range(crowd)}
    passed = dict.fromkeys(left, 0)
    own_left, own_passed, before = own, 0, 0
    for call in range(5_000):
        for at, tokens in left.items():
            if not tokens:
                lengths = others[at[0]]
                left[at], passed[at] = lengths[turns[at[0]] % len(lengths)], 0
                turns[at[0]] += 1
        rows = [demand(key, left[at], passed=passed[at], tenant=f"{at[0]}") for key, at in enumerate(left)]
        if call >= 5:
            rows.append(demand(len(left), own_left, passed=own_passed, tenant="own"))
        clocks.start(rows)
        plan = plan_batch(rows, batch_tokens=BATCH_TOKENS, cost=COST, clocks=clocks.inputs)
        clocks.book(plan.rows)
        done, places = taken(plan), list(left)
        own_left -= done.pop(len(left), 0)
        if not own_left:
            return before
        for key, at in enumerate(places):
            left[at] -= done.get(key, 0)
            passed[at] += sum(done.values()) * (key in plan.left_out)
        if call >= 5:
            own_passed += sum(done.values()) * (len(left) in plan.left_out)
            before += sum(done.values())
    raise AssertionError("the prompt starves")


@pytest.mark.behaviour("B-05")
@settings(max_examples=30)
@given(
    own=st.integers(1, 600),
    others=st.lists(st.lists(st.integers(1, 600), min_size=1, max_size=4), min_size=1, max_size=3),
    crowd=st.integers(1, 8),
)
def test_a_tenant_waits_for_as_many_inputs_of_each_other_as_it_has_however_many_prompts_they_have(
    own: int, others: list[list[int]], crowd: int
) -> None:
    before = inputs_before(own, others, crowd=crowd)
    assert before <= len(others) * (own + max(max(lengths) for lengths in others))


@pytest.mark.behaviour("B-05")
def test_a_tenant_that_pauses_between_prompts_comes_back_where_it_stood() -> None:
    clocks = TenantClocks()
    waits = demand(0, 1000, tenant="waits")
    served = 0
    while True:
        rows = [waits, demand(1, 50, tenant="short")]
        clocks.start(rows)
        plan = plan_batch(rows, batch_tokens=50, cost=COST, clocks=clocks.inputs)
        if 0 in taken(plan):
            break
        clocks.book(plan.rows)
        served += 50
        clocks.start([waits])
    assert served == pytest.approx(1000, abs=50)


def test_clocks_are_forgotten_once_no_prompt_waits() -> None:
    clocks = TenantClocks()
    clocks.start([demand(0, 9, tenant="a")])
    clocks.book([demand(0, 9, tenant="a")._replace(tokens=9)])
    clocks.start([demand(0, 1, generating=True, tenant="a")])
    assert clocks.inputs == {}
