"""Names of the beginnings of prompts, and where a prompt goes for them."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.dispatch.prompt_prefixes import NAMES_MAX, NO_PREFIXES, Piece, PromptPrefixes, name_prefixes
from gateway.core.dispatch.replica_choice import (
    KeptState,
    ReplicaCandidate,
    ReplicaNeed,
    choose_replica,
    cost_s,
)
from gateway.core.prepare.literals import Literal, Text
from gateway.core.prepare.prompt import prompt_of
from protos import cluster_pb2, runner_pb2
from runner.serve.held_prefixes import NAMES_MAX as HELD_MAX
from runner.serve.held_prefixes import SAVED_NAMES_MAX, HeldPrefixes, RestorableState

CONTENT = st.binary(max_size=3000)


def named(*contents: bytes, salt: str = "t") -> PromptPrefixes:
    return name_prefixes([Piece(0, content) for content in contents], salt=salt)


@given(CONTENT, CONTENT, CONTENT)
def test_what_is_equal_is_found_but_for_an_eighth_and_what_differs_never_is(
    start: bytes, one: bytes, other: bytes
) -> None:
    mine, theirs = named(start, one), named(start, other)
    common = len(start)
    while common < min(mine.size_bytes, theirs.size_bytes) and (start + one)[common] == (start + other)[common]:
        common += 1
    found = mine.held_bytes(frozenset(theirs.names))
    assert found <= common
    assert found >= common - max(64, common // 8 + 8)


@given(CONTENT, st.lists(st.integers(0, 3000), max_size=6))
def test_how_a_text_is_cut_into_pieces_changes_no_name(text: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:stop] for start, stop in pairwise(places)]
    assert named(*pieces) == named(text)


def test_a_prompt_of_megabytes_has_a_bounded_number_of_names_and_the_last_is_all_of_it() -> None:
    prompt = named(b"x" * 8_000_000)
    assert len(prompt.names) <= NAMES_MAX
    assert prompt.ends[-1] == prompt.size_bytes == 8_000_000
    assert named() == NO_PREFIXES


def test_tenants_never_share_a_name_nor_do_kinds_of_text() -> None:
    text = b"what nobody else should know " * 20
    assert named(text, salt="a").held_bytes(frozenset(named(text, salt="b").names)) == 0
    as_template = name_prefixes(prompt_of([Text(text.decode())]).pieces(), salt="t")
    as_user = name_prefixes(prompt_of([Literal(text.decode())]).pieces(), salt="t")
    assert as_template.held_bytes(frozenset(as_user.names)) == 0


def candidate(key: str, *, busy: int = 0, held: PromptPrefixes = NO_PREFIXES, speed: float = 0.0) -> ReplicaCandidate:
    return ReplicaCandidate(
        key=key,
        context_tokens=4096,
        slots_total=8,
        slots_free=8 - busy,
        work=busy,
        held=frozenset(held.names),
        prompt_tokens_per_s=speed,
    )


LONG = b"a long system prompt " * 500
BUSY = st.integers(0, 7)


@given(st.integers(0, len(LONG)), st.integers(0, len(LONG)), BUSY)
def test_of_equally_busy_replicas_the_one_that_holds_more_is_taken(one: int, other: int, busy: int) -> None:
    prompt = named(LONG)
    held = {"a": named(LONG[:one]), "b": named(LONG[:other])}
    chosen = choose_replica([candidate(key, busy=busy, held=held[key]) for key in held], ReplicaNeed(prefixes=prompt))
    assert chosen is not None
    assert prompt.held_bytes(frozenset(held[chosen].names)) == max(
        prompt.held_bytes(frozenset(one.names)) for one in held.values()
    )


@given(st.lists(st.tuples(BUSY, st.integers(0, len(LONG)), st.sampled_from([0.0, 50.0, 5000.0])), min_size=1))
def test_no_other_replica_with_a_free_slot_is_predicted_to_be_faster(replicas: list[tuple[int, int, float]]) -> None:
    prompt = named(LONG)
    able = {
        str(number): candidate(str(number), busy=busy, held=named(LONG[:length]), speed=speed)
        for number, (busy, length, speed) in enumerate(replicas)
    }
    known = [one.prompt_tokens_per_s for one in able.values() if one.prompt_tokens_per_s]
    usual = sum(known) / len(known) if known else 500.0
    costs = {key: cost_s(one, prompt, usual_tokens_per_s=usual) for key, one in able.items()}
    chosen = choose_replica(able.values(), ReplicaNeed(prefixes=prompt))
    assert chosen is not None
    assert costs[chosen] == min(costs.values())


def test_a_short_prefix_is_left_for_an_idle_replica_and_a_long_one_is_not() -> None:
    short, long = named(b"hi, you " * 20), named(LONG)
    for prompt, expected in ((short, "idle"), (long, "holder")):
        replicas = [candidate("holder", busy=7, held=prompt, speed=1000.0), candidate("idle", speed=1000.0)]
        assert choose_replica(replicas, ReplicaNeed(prefixes=prompt)) == expected


def test_a_full_holder_is_not_waited_for() -> None:
    prompt = named(LONG)
    replicas = [candidate("holder", busy=8, held=prompt), candidate("other", busy=7)]
    assert choose_replica(replicas, ReplicaNeed(prefixes=prompt)) == "other"


def test_a_runner_tells_the_names_of_what_its_slots_hold_once_for_each_change() -> None:
    held, shared = HeldPrefixes(), cluster_pb2.RunnerStatus(slots_total=2)
    for number, names in ((1, [11, 12]), (2, [11, 22])):
        held.note(number, runner_pb2.GenerateRequest(prefix_names=names))
    assert held.see((1, 2), (), inside=[2])
    assert not held.see((1, 2), (), inside=[])
    assert list(held.completed(shared, known_version=-1).held_prefixes.names) == [11, 22, 12]
    known = held.version
    assert not held.completed(shared, known_version=known).HasField("held_prefixes")
    assert held.see((2,), (), inside=[])
    assert list(held.completed(shared, known_version=known).held_prefixes.names) == [11, 22]
    assert not shared.HasField("held_prefixes")


def test_names_of_parked_prompts_come_after_those_in_slots_and_leave_with_the_prompt() -> None:
    held = HeldPrefixes()
    for number, names in ((1, [11, 12]), (2, [11, 22]), (3, [33]), (4, [44])):
        held.note(number, runner_pb2.GenerateRequest(prefix_names=names))
    assert held.see((4,), (3, 2, 1), inside=[])
    told = held.tell()
    assert (list(told.names), list(told.parked_names)) == ([44], [33, 11, 22, 12])
    assert held.see((2, 4), (3, 1), inside=[])
    told = held.tell()
    assert (list(told.names), list(told.parked_names)) == ([44, 11, 22], [33, 12]), "none is told twice"
    assert held.see((4,), (), inside=[])
    assert held.see((4,), (1,), inside=[])
    assert list(held.tell().parked_names) == [], "what had left is forgotten"


def test_no_more_names_are_told_than_there_is_room_for_the_slots_first() -> None:
    held = HeldPrefixes()
    for number in range(2 * HELD_MAX // NAMES_MAX):
        first = number * NAMES_MAX
        held.note(number, runner_pb2.GenerateRequest(prefix_names=range(first, first + NAMES_MAX)))
    count = HELD_MAX // NAMES_MAX
    assert held.see(tuple(range(count - 1)), tuple(range(count - 1, 2 * count)), inside=[])
    told = held.tell()
    assert (len(told.names), len(told.parked_names)) == (HELD_MAX - NAMES_MAX, NAMES_MAX)
    assert list(told.parked_names) == list(range(HELD_MAX - NAMES_MAX, HELD_MAX)), "the newest of those parked"


@given(st.integers(0, len(LONG)), st.integers(0, len(LONG)))
def test_a_parked_prompt_counts_a_little_less_than_one_in_a_slot_and_more_than_none(one: int, other: int) -> None:
    prompt = named(LONG)
    parked = replace(candidate("parked"), parked=frozenset(named(LONG[:one]).names))
    costs = [cost_s(each, prompt, usual_tokens_per_s=500.0) for each in (parked, candidate("none"))]
    assert costs[0] <= costs[1]
    assert (costs[0] < costs[1]) == (prompt.held_bytes(parked.parked) > 0)
    both = replace(parked, held=frozenset(named(LONG[:other]).names))
    in_slot = candidate("slot", held=named(LONG[: max(one, other)]))
    assert cost_s(in_slot, prompt, usual_tokens_per_s=500.0) <= cost_s(both, prompt, usual_tokens_per_s=500.0)


def test_where_the_template_ends_and_a_user_begins_is_part_of_every_name_behind_it() -> None:
    start, rest = b"template " * 20, b"text " * 20
    as_user = name_prefixes([Piece(0, start), Piece(1, rest)], salt="t")
    as_template = name_prefixes([Piece(0, start), Piece(0, rest)], salt="t")
    assert as_user.held_bytes(frozenset(as_template.names)) <= len(start)
    assert as_user.held_bytes(frozenset(as_user.names)) == len(start) + len(rest)


def test_a_runner_tells_each_name_of_a_saved_state_once_with_the_time_to_restore_it() -> None:
    held, shared = HeldPrefixes(), cluster_pb2.RunnerStatus(slots_total=2)
    held.note(1, runner_pb2.GenerateRequest(prefix_names=[11]))
    held.see((1,), (), inside=[])
    held.saved = lambda: [RestorableState((11, 12), 0.25), RestorableState((12, 13), 2.0), RestorableState((13,), 1.0)]
    before = held.version
    held.saved_changed()
    told = held.completed(shared, known_version=before).held_prefixes
    assert [(list(one.names), one.restore_ms) for one in told.saved] == [([12], 250), ([13], 2000)]


def test_a_runner_tells_a_bounded_number_of_names_of_saved_states() -> None:
    held = HeldPrefixes()
    held.saved = lambda: [RestorableState(tuple(range(start, start + 100)), 1.0) for start in range(0, 10_000, 100)]
    assert sum(len(one.names) for one in held.tell().saved) == SAVED_NAMES_MAX


def keeper(key: str, kept: PromptPrefixes, restore_s: float, *, speed: float = 1000.0) -> ReplicaCandidate:
    return replace(candidate(key, speed=speed), kept=(KeptState(frozenset(kept.names), restore_s),))


def test_a_prompt_goes_where_a_tier_keeps_its_beginning_if_restoring_is_predicted_to_be_faster() -> None:
    prompt = named(LONG)
    computed_s = len(LONG) / 4 / 1000.0
    for restore_s, expected in ((0.1 * computed_s, "keeper"), (2 * computed_s, "other")):
        replicas = [keeper("keeper", prompt, restore_s), candidate("other", held=named(LONG[:1000]), speed=1000.0)]
        assert choose_replica(replicas, ReplicaNeed(prefixes=prompt)) == expected


@given(st.floats(0, 100), st.integers(0, len(LONG)))
def test_a_kept_state_never_makes_a_replica_look_slower(restore_s: float, length: int) -> None:
    prompt = named(LONG)
    plain, keeping = candidate("a", speed=1000.0), keeper("a", named(LONG[:length]), restore_s)
    costs = [cost_s(one, prompt, usual_tokens_per_s=1000.0) for one in (keeping, plain)]
    assert costs[0] <= costs[1]


def test_another_tenants_kept_state_attracts_nothing() -> None:
    prompt = named(LONG)
    replicas = [keeper("a", named(LONG, salt="other"), 0.0), candidate("b", speed=1000.0)]
    assert choose_replica(replicas, ReplicaNeed(prefixes=prompt)) == "b"
