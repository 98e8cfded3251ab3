"""Cells of a prompt serve requests of the same salt only."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import InvalidRequest
from runner.core.sequence.requests import GenerationRequest, TokenizedPrompt, check_request
from runner.core.sequence.slots import (
    MemoryRules,
    PromptView,
    SlotPolicy,
    SlotView,
    choose_leader,
    choose_slot,
    common_prefix_tokens,
)
from runner.engine.contract.engine import Freed
from runner.engine.media.media_encoder import EncodingDone, EncodingJob
from runner.engine.media.media_store import MediaStore
from tests.unit.runner.fake_images import encoded, image
from tests.unit.runner.simulated_context import VOCABULARY, Simulation

INPUTS = st.lists(st.integers(0, 1), max_size=12)
SALTS = st.sampled_from(["", "a", "b"])
RULES = st.sampled_from([MemoryRules(), MemoryRules(erases_tail=False, can_move=False), MemoryRules(window_tokens=4)])


@st.composite
def slot_views(draw: st.DrawFn) -> list[SlotView]:
    """Slots and parked prompts of any salts; somebody may always run in the first."""
    return [
        SlotView(
            slot_id=slot_id,
            held=draw(INPUTS),
            busy=slot_id > 0 and draw(st.booleans()),
            last_used=draw(st.integers(0, 9)),
            first_position=draw(st.integers(0, 3)),
            checkpoints=tuple(draw(st.lists(st.integers(1, 12), max_size=3))),
            salt=draw(SALTS),
        )
        for slot_id in range(draw(st.integers(1, 6)))
    ]


@given(slot_views(), INPUTS.filter(bool), SALTS, RULES, st.sampled_from(SlotPolicy))
def test_no_prefix_is_taken_from_a_slot_of_another_salt(
    slots: list[SlotView], inputs: list[int], salt: str, rules: MemoryRules, policy: SlotPolicy
) -> None:
    choice = choose_slot(slots, inputs, policy=policy, rules=rules, salt=salt)
    assert choice is not None
    assert choice.prefix_tokens == 0 or slots[choice.source_id].salt == salt


@given(slot_views(), INPUTS.filter(bool), SALTS, RULES, st.sampled_from(SlotPolicy))
def test_where_all_have_one_salt_it_changes_no_choice(
    slots: list[SlotView], inputs: list[int], salt: str, rules: MemoryRules, policy: SlotPolicy
) -> None:
    def with_salt(one: str) -> list[SlotView]:
        return [
            SlotView(
                slot_id=slot.slot_id,
                held=slot.held,
                busy=slot.busy,
                last_used=slot.last_used,
                first_position=slot.first_position,
                checkpoints=slot.checkpoints,
                salt=one,
            )
            for slot in slots
        ]

    salted = choose_slot(with_salt(salt), inputs, policy=policy, rules=rules, salt=salt)
    assert salted == choose_slot(with_salt(""), inputs, policy=policy, rules=rules)


@given(st.lists(st.tuples(INPUTS, SALTS), max_size=5), SALTS)
def test_nobody_waits_for_a_prompt_of_another_salt(prompts: list[tuple[list[int], str]], salt: str) -> None:
    head = [7] * 40
    older = [
        PromptView(slot_id=number, sequence_id=number, inputs=[*head, *inputs], salt=one)
        for number, (inputs, one) in enumerate(prompts)
    ]
    leader = choose_leader([*head, 9], held_tokens=0, older=older, salt=salt)
    assert (leader is None) == (salt not in {one.salt for one in older})
    assert leader is None or older[leader.slot_id].salt == salt


@dataclass
class Asked:
    """A request, and what could be held of it once it is over."""

    salt: str
    inputs: list[int]


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), SALTS), min_size=1, max_size=5), max_size=4),
    st.sampled_from([2, 4]),
)
def test_over_any_history_no_more_is_cached_than_requests_of_the_same_salt_have_left(
    bursts: list[list[tuple[int, int, str]]], slots: int
) -> None:
    """Requests that come together, and after each other, with common beginnings everywhere."""
    simulation = Simulation(slots=slots, cells=512)
    asked: dict[int, Asked] = {}
    for burst in bursts:
        for kind, length, salt in burst:
            prompt = [kind // 2] * length + [10 + kind % 2]
            said = [(prompt[-1] + 1 + step) % VOCABULARY for step in range(3)]
            asked[simulation.submit(prompt, max_tokens=3, cache_salt=salt)] = Asked(salt, prompt + said)
        simulation.run()
    freed = [one for one in simulation.recorder.outcomes if isinstance(one, Freed)]
    assert {one.sequence_id for one in freed} == set(asked)
    for one in freed:
        own = asked[one.sequence_id]
        others = [each for number, each in asked.items() if number != one.sequence_id and each.salt == own.salt]
        most = max((common_prefix_tokens(own.inputs, each.inputs) for each in others), default=0)
        assert one.times is not None
        assert one.times.cached_tokens <= most


def test_rows_of_an_image_are_computed_again_for_another_salt() -> None:
    jobs: list[EncodingJob] = []
    store = MediaStore(jobs.append)
    picture = image("one")
    assert picture.salted("") is picture
    mine, theirs = picture.salted("a"), picture.salted("b")
    assert (mine.inputs, mine.units) == (picture.inputs, picture.units)
    for number, one in enumerate((picture, mine, theirs)):
        assert store.unit(one, 0, number) is None
        store.take_in(EncodingDone(jobs[number], encoded(one), None))
    assert store.unit(picture.salted("a"), 0, 9) is not None


def test_a_salt_without_end_is_refused() -> None:
    check_request(GenerationRequest(prompt=TokenizedPrompt((1,)), cache_salt="s" * 64), vocabulary_size=10)
    with pytest.raises(InvalidRequest, match="cache_salt"):
        check_request(GenerationRequest(prompt=TokenizedPrompt((1,)), cache_salt="s" * 65), vocabulary_size=10)
