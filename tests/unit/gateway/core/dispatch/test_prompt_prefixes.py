"""Names of the beginnings of prompts, and where a prompt goes for them."""

from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.spec.pace import RunnerPace
from common.spec.prompt_names import BLOCK_BYTES, NAMES_MAX
from gateway.core.dispatch.prompt_prefixes import (
    NO_PREFIXES,
    NOTHING_HELD,
    SLOTS,
    Holdings,
    PromptPrefixes,
    name_prefixes,
)
from gateway.core.dispatch.replica_choice import (
    ReplicaCandidate,
    ReplicaNeed,
    choose_replica,
    known_paces,
    predict,
)

CONTENT = st.binary(max_size=3000)
PACE = RunnerPace(batch_tokens=512, call_s=0.01, token_s=0.001, bytes_per_token=4.0, answer_tokens=50.0)


def named(*contents: bytes, salt: str = "t") -> PromptPrefixes:
    return name_prefixes(contents, salt=salt)


@given(CONTENT, CONTENT, CONTENT)
def test_what_is_equal_is_found_to_the_last_whole_block_and_what_differs_never_is(
    start: bytes, one: bytes, other: bytes
) -> None:
    mine, theirs = named(start, one), named(start, other)
    common = len(start)
    while common < min(mine.size_bytes, theirs.size_bytes) and (start + one)[common] == (start + other)[common]:
        common += 1
    found = mine.held_bytes(frozenset(theirs.names))
    assert found == common if mine == theirs else common // BLOCK_BYTES * BLOCK_BYTES <= found <= common


@given(CONTENT, st.lists(st.integers(0, 3000), max_size=6))
def test_the_parts_of_a_text_change_no_name(text: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert named(*(text[start:stop] for start, stop in pairwise(places))) == named(text)


def test_a_prompt_of_megabytes_has_a_bounded_number_of_names() -> None:
    prompt = named(b"x" * 8_000_000)
    assert (len(prompt.names), prompt.ends[-1], prompt.size_bytes) == (NAMES_MAX, NAMES_MAX * BLOCK_BYTES, 8_000_000)
    assert named() == NO_PREFIXES


def test_tenants_never_share_a_name() -> None:
    text = b"a secret of one tenant " * 20
    assert named(text, salt="a").held_bytes(frozenset(named(text, salt="b").names)) == 0


def holding(slots: PromptPrefixes = NO_PREFIXES, **tiers: tuple[PromptPrefixes, float]) -> Holdings:
    kept: Mapping[str, Mapping[int, float]] = {
        tier: dict.fromkeys(names.names, restore_s) for tier, (names, restore_s) in tiers.items()
    }
    return Holdings(frozenset(slots.names), kept)


def candidate(
    key: str, *, busy: int = 0, holdings: Holdings = NOTHING_HELD, pace: RunnerPace = PACE
) -> ReplicaCandidate:
    return ReplicaCandidate(
        key=key,
        context_tokens=4096,
        slots_total=8,
        slots_free=8 - busy,
        work=busy,
        holdings=holdings,
        pace=pace,
    )


LONG = b"a long system prompt " * 500
BUSY = st.integers(0, 7)
LENGTH = st.integers(0, len(LONG))


@given(LENGTH, LENGTH, BUSY)
def test_of_equally_busy_replicas_the_one_that_holds_more_is_taken(one: int, other: int, busy: int) -> None:
    prompt = named(LONG)
    held = {"a": named(LONG[:one]), "b": named(LONG[:other])}
    chosen = choose_replica(
        [candidate(key, busy=busy, holdings=holding(held[key])) for key in held], ReplicaNeed(prefixes=prompt)
    )
    assert chosen is not None
    found = {key: prompt.held_bytes(frozenset(names.names)) for key, names in held.items()}
    assert found[chosen] == max(found.values())


@given(st.lists(st.tuples(BUSY, LENGTH, st.sampled_from([0.0, 0.02, 0.0002])), min_size=1))
def test_no_other_replica_with_a_free_slot_is_predicted_to_be_faster(replicas: list[tuple[int, int, float]]) -> None:
    prompt = named(LONG)
    able = [
        candidate(str(number), busy=busy, holdings=holding(named(LONG[:length])), pace=RunnerPace(token_s=token_s))
        for number, (busy, length, token_s) in enumerate(replicas)
    ]
    paces = known_paces(able)
    costs = {one.key: predict(one, prompt, pace=paces[one.key]).cost_s for one in able}
    chosen = choose_replica(able, ReplicaNeed(prefixes=prompt))
    assert chosen is not None
    assert costs[chosen] == min(costs.values())


def test_a_prediction_is_the_sum_of_what_was_measured() -> None:
    prompt = named(b"x" * 4096)
    half = holding(named(b"x" * 2048))
    # 512 tokens are missing; of a call of 512, two are of the answers that run.
    predicted = predict(candidate("a", busy=2, holdings=half), prompt, pace=PACE)
    assert predicted.first_token_s == 512 * 0.001 + 2 * (0.01 + 2 * 0.001)
    assert (predicted.slowdown_s, predicted.place) == (50 * 2 * 0.001, SLOTS)


def test_a_replica_that_has_computed_nothing_counts_as_the_fastest() -> None:
    other = RunnerPace(call_s=0.03, token_s=0.003, bytes_per_token=2.0)
    paces = known_paces(
        [candidate("a"), candidate("b", pace=other), candidate("new", pace=RunnerPace(batch_tokens=64))]
    )
    new = paces["new"]
    assert (new.batch_tokens, new.call_s, new.token_s) == (64, 0.01, 0.001)
    assert (new.bytes_per_token, new.answer_tokens, paces["b"].answer_tokens) == (3.0, 50.0, 50.0)


def test_a_short_prefix_is_left_for_an_idle_replica_and_a_long_one_is_not() -> None:
    short, long = named(b"hi, you " * 20), named(LONG)
    for prompt, expected in ((short, "idle"), (long, "holder")):
        replicas = [candidate("holder", busy=7, holdings=holding(prompt)), candidate("idle")]
        assert choose_replica(replicas, ReplicaNeed(prefixes=prompt)) == expected


@pytest.mark.parametrize("fuller", ["a", "b"])
def test_a_prompt_that_none_holds_goes_where_least_is_held(fuller: str) -> None:
    replicas = [candidate(key, holdings=holding(named(LONG if key == fuller else b"x" * 1000))) for key in ("a", "b")]
    (emptier,) = {"a", "b"} - {fuller}
    assert choose_replica(replicas, ReplicaNeed(prefixes=named(b"another"))) == emptier


def test_a_full_holder_is_not_waited_for() -> None:
    prompt = named(LONG)
    replicas = [candidate("holder", busy=8, holdings=holding(prompt)), candidate("other", busy=7)]
    assert choose_replica(replicas, ReplicaNeed(prefixes=prompt)) == "other"


def test_a_prompt_goes_where_a_tier_keeps_its_beginning_if_restoring_is_predicted_to_be_faster() -> None:
    prompt = named(LONG)
    computed_s = len(LONG) / 4 / 1000.0
    for restore_s, expected in ((0.1 * computed_s, "keeper"), (2 * computed_s, "other")):
        replicas = [
            candidate("keeper", holdings=holding(disk=(prompt, restore_s))),
            candidate("other", holdings=holding(named(LONG[:1000]))),
        ]
        assert choose_replica(replicas, ReplicaNeed(prefixes=prompt)) == expected


@given(st.floats(0, 100), LENGTH, st.floats(0, 100), LENGTH)
def test_a_kept_state_never_makes_a_replica_look_slower(ram_s: float, in_ram: int, disk_s: float, on_disk: int) -> None:
    prompt, ram = named(LONG), (named(LONG[:in_ram]), ram_s)
    holdings = [holding(), holding(ram=ram), holding(ram=ram, disk=(named(LONG[:on_disk]), disk_s))]
    costs = [predict(candidate("a", holdings=held), prompt, pace=PACE).cost_s for held in holdings]
    assert costs == sorted(costs, reverse=True)


def test_another_tenants_kept_state_attracts_nothing() -> None:
    prompt = named(LONG)
    replicas = [candidate("a", holdings=holding(ram=(named(LONG, salt="other"), 0.0))), candidate("b")]
    assert choose_replica(replicas, ReplicaNeed(prefixes=prompt)) == "b"
