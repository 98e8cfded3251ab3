"""Choice of the slot of a new sequence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import InvalidRequest
from runner.core.layout.layout import slot_context_tokens
from runner.core.sequence.slots import (
    Leader,
    MemoryRules,
    PromptView,
    ResumePoint,
    SharedCells,
    SlotChoice,
    SlotPolicy,
    SlotView,
    choose_leader,
    choose_slot,
    common_prefix_tokens,
    resume_point,
)

PLAIN = MemoryRules()
RECURRENT = MemoryRules(erases_tail=False, can_move=False)


def slot(slot_id: int, held: list[int], *, busy: bool = False, last_used: int = 0, first_position: int = 0) -> SlotView:
    return SlotView(slot_id=slot_id, held=held, busy=busy, last_used=last_used, first_position=first_position)


def choice(slot_id: int, source_id: int, prefix_tokens: int) -> SlotChoice:
    return SlotChoice(slot_id=slot_id, source_id=source_id, prefix_tokens=prefix_tokens)


@pytest.mark.behaviour("B-36")
@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_the_common_prefix_is_found_whatever_the_lists_are(left: list[int], right: list[int]) -> None:
    expected = 0
    while expected < min(len(left), len(right)) and left[expected] == right[expected]:
        expected += 1
    assert common_prefix_tokens(left, right) == expected


@pytest.mark.behaviour("B-30")
@pytest.mark.parametrize(("cells", "slots", "expected"), [(4096, 4, 1024), (4100, 8, 512), (7, 7, 1)])
def test_slots_share_the_cells(cells: int, slots: int, expected: int) -> None:
    assert slot_context_tokens(cells, slots) == expected


@pytest.mark.behaviour("B-30")
def test_less_than_one_cell_for_each_slot_is_refused() -> None:
    with pytest.raises(
        InvalidRequest, match=r"^must have at least one kv cache entry per parallel sequence \(kv: 3 parallel: 4\)$"
    ):
        slot_context_tokens(3, 4)


@pytest.mark.behaviour("B-32")
def test_longest_takes_the_idle_slot_with_the_longest_prefix() -> None:
    slots = [slot(0, [1, 2]), slot(1, [1, 2, 3])]
    assert choose_slot(slots, [1, 2, 3, 4], policy=SlotPolicy.LONGEST, rules=PLAIN) == choice(1, 1, 3)


@pytest.mark.behaviour("B-32")
def test_longest_never_looks_at_busy_slots() -> None:
    slots = [slot(0, [1, 2]), slot(1, [1, 2, 3], busy=True)]
    assert choose_slot(slots, [1, 2, 3, 4], policy=SlotPolicy.LONGEST, rules=PLAIN) == choice(0, 0, 2)


@pytest.mark.behaviour("B-32")
def test_longest_breaks_ties_by_the_lowest_id_and_takes_empty_slots_too() -> None:
    assert choose_slot([slot(0, []), slot(1, [])], [7], policy=SlotPolicy.LONGEST, rules=PLAIN) == choice(0, 0, 0)


@pytest.mark.behaviour("B-33")
def test_best_forks_into_the_slot_used_longest_ago() -> None:
    slots = [slot(0, [1, 2, 9], last_used=5), slot(1, [], last_used=1)]
    assert choose_slot(slots, [1, 2, 3], policy=SlotPolicy.BEST, rules=PLAIN) == choice(1, 0, 2)


@pytest.mark.behaviour("B-33")
def test_best_goes_on_in_an_idle_slot_that_is_entirely_a_prefix() -> None:
    slots = [slot(0, [], last_used=0), slot(1, [1, 2], last_used=9)]
    assert choose_slot(slots, [1, 2, 3], policy=SlotPolicy.BEST, rules=PLAIN) == choice(1, 1, 2)


@pytest.mark.behaviour("B-33")
def test_best_forks_from_a_busy_slot() -> None:
    slots = [slot(0, [1, 2, 3, 4], busy=True), slot(1, [1, 7], last_used=3), slot(2, [8], last_used=2)]
    assert choose_slot(slots, [1, 2, 3, 5], policy=SlotPolicy.BEST, rules=PLAIN) == choice(2, 0, 3)


@pytest.mark.behaviour("B-33")
def test_best_prefers_an_idle_slot_to_a_busy_one_on_equal_prefixes() -> None:
    slots = [slot(0, [1, 2], busy=True, last_used=9), slot(1, [1, 2], last_used=5), slot(2, [], last_used=1)]
    assert choose_slot(slots, [1, 2, 3], policy=SlotPolicy.BEST, rules=PLAIN) == choice(1, 1, 2)


@pytest.mark.behaviour("B-33")
def test_best_needs_no_copy_when_the_oldest_slot_holds_the_prefix_itself() -> None:
    slots = [slot(0, [1, 2, 9], last_used=1), slot(1, [5], last_used=2)]
    assert choose_slot(slots, [1, 2, 3], policy=SlotPolicy.BEST, rules=PLAIN) == choice(0, 0, 2)


@pytest.mark.behaviour("B-33")
def test_best_without_any_prefix_takes_the_slot_used_longest_ago() -> None:
    slots = [slot(0, [5], last_used=3), slot(1, [6], last_used=2), slot(2, [7], last_used=4)]
    assert choose_slot(slots, [1, 2], policy=SlotPolicy.BEST, rules=PLAIN) == choice(1, 1, 0)


@pytest.mark.behaviour("B-34")
@pytest.mark.parametrize("policy", list(SlotPolicy))
def test_one_input_is_left_to_compute_when_the_whole_prompt_is_held(policy: SlotPolicy) -> None:
    chosen = choose_slot([slot(0, [1, 2, 3])], [1, 2, 3], policy=policy, rules=PLAIN)
    assert chosen == choice(0, 0, 2)


@pytest.mark.behaviour("B-35")
def test_a_memory_that_cannot_cut_gives_a_prefix_only_as_a_whole() -> None:
    assert resume_point(slot(0, [1, 2, 9]), [1, 2, 3], RECURRENT).tokens == 0
    assert resume_point(slot(0, [1, 2]), [1, 2, 3], RECURRENT).tokens == 2
    assert resume_point(slot(0, [1, 2, 3]), [1, 2, 3], RECURRENT).tokens == 0


@pytest.mark.behaviour("B-35")
def test_a_memory_that_cannot_cut_is_forked_where_the_whole_source_is_the_prefix() -> None:
    slots = [slot(0, [1, 2], busy=True), slot(1, [4])]
    assert choose_slot(slots, [1, 2, 3], policy=SlotPolicy.BEST, rules=RECURRENT) == choice(1, 0, 2)


@pytest.mark.behaviour("B-37")
@pytest.mark.parametrize(("first_position", "expected"), [(169, 200), (170, 0), (0, 200)])
def test_a_sliding_window_is_reused_only_while_its_first_position_is_held(first_position: int, expected: int) -> None:
    held = list(range(300))
    prompt = [*range(200), 999, 998]
    rules = MemoryRules(window_tokens=32)
    assert resume_point(slot(0, held, first_position=first_position), prompt, rules).tokens == expected


@pytest.mark.behaviour("B-37")
def test_a_lost_window_is_not_forked_either() -> None:
    rules = MemoryRules(window_tokens=4)
    slots = [slot(0, list(range(100)), busy=True, first_position=90), slot(1, [])]
    assert choose_slot(slots, [*range(20), 999], policy=SlotPolicy.BEST, rules=rules) == choice(1, 1, 0)


@pytest.mark.behaviour("B-39")
def test_without_reuse_the_policy_still_chooses_the_slot() -> None:
    slots = [slot(0, []), slot(1, [1, 2])]
    chosen = choose_slot(slots, [1, 2, 3], policy=SlotPolicy.BEST, rules=PLAIN, reuse=False)
    assert chosen == choice(1, 1, 0)


@pytest.mark.behaviour("B-41")
@pytest.mark.parametrize("policy", list(SlotPolicy))
def test_no_slot_is_an_answer(policy: SlotPolicy) -> None:
    assert choose_slot([slot(0, [1], busy=True), slot(1, [], busy=True)], [1, 2], policy=policy, rules=PLAIN) is None


@pytest.mark.behaviour("B-42")
def test_a_fork_shares_its_cells_with_everyone_who_has_them() -> None:
    shared = SharedCells()
    shared.fork(0, 1, 10)
    shared.fork(1, 2, 6)
    assert [shared.shared_tokens(slot_id) for slot_id in range(4)] == [10, 10, 6, 0]


@pytest.mark.behaviour("B-42")
def test_a_cut_ends_the_sharing_beyond_it() -> None:
    shared = SharedCells()
    shared.fork(0, 1, 10)
    shared.fork(1, 2, 6)
    shared.cut(1, 4)
    assert [shared.shared_tokens(slot_id) for slot_id in range(3)] == [6, 4, 6]
    shared.cut(0, 0)
    assert [shared.shared_tokens(slot_id) for slot_id in range(3)] == [0, 4, 4]


def prompt(sequence_id: int, inputs: list[int]) -> PromptView:
    return PromptView(slot_id=sequence_id, sequence_id=sequence_id, inputs=inputs)


def test_a_new_sequence_follows_the_one_that_evaluates_most_of_its_inputs() -> None:
    inputs = list(range(100))
    older = [prompt(1, inputs[:40]), prompt(2, [*inputs[:80], 999]), prompt(3, [7])]
    assert choose_leader(inputs, held_tokens=0, older=older) == Leader(slot_id=2, sequence_id=2, tokens=80)


def test_nobody_is_followed_for_inputs_that_are_held_already() -> None:
    inputs = list(range(100))
    assert choose_leader(inputs, held_tokens=70, older=[prompt(2, [*inputs[:80], 999])]) is None


def test_a_follower_of_an_equal_prompt_computes_its_last_input_itself() -> None:
    inputs = list(range(100))
    leader = choose_leader(inputs, held_tokens=0, older=[prompt(1, list(inputs))])
    assert leader == Leader(slot_id=1, sequence_id=1, tokens=99)


@pytest.mark.behaviour("B-38")
def test_where_the_memory_cannot_go_back_the_latest_checkpoint_within_the_prefix_is_used() -> None:
    held = SlotView(slot_id=0, held=[1, 2, 3, 4, 5], busy=False, last_used=0, checkpoints=(1, 3, 5))
    assert resume_point(held, [1, 2, 3, 4, 9], RECURRENT) == ResumePoint(3, restores=True)
    assert resume_point(held, [1, 9], RECURRENT) == ResumePoint(1, restores=True)
    assert resume_point(held, [8, 9], RECURRENT) == ResumePoint(0, restores=False)
    assert resume_point(held, [1, 2, 3, 4, 5, 6], RECURRENT) == ResumePoint(5, restores=False)


@pytest.mark.behaviour("B-38")
def test_a_checkpoint_of_a_busy_slot_is_forked() -> None:
    busy = SlotView(slot_id=0, held=[1, 2, 3, 4, 5], busy=True, last_used=0, checkpoints=(3,))
    chosen = choose_slot([busy, slot(1, [])], [1, 2, 3, 9], policy=SlotPolicy.BEST, rules=RECURRENT)
    assert chosen == SlotChoice(slot_id=1, source_id=0, prefix_tokens=3, restores=True)


def test_a_prefix_that_is_computed_faster_than_it_is_brought_here_is_not_used() -> None:
    far = SlotView(slot_id=4, held=[1, 2, 3, 4, 5], busy=True, last_used=0, worth_tokens=3)
    assert resume_point(far, [1, 2, 9], PLAIN) == ResumePoint(0, restores=False)
    assert resume_point(far, [1, 2, 3, 9], PLAIN) == ResumePoint(3, restores=False)


@pytest.mark.behaviour("B-42")
def test_a_fork_of_a_fork_shares_with_the_first_no_more_than_the_second_did() -> None:
    shared = SharedCells()
    shared.fork(0, 1, 10)
    shared.fork(1, 2, 25)
    assert [shared.shared_tokens(slot_id) for slot_id in range(3)] == [10, 25, 25]
    shared.cut(1, 0)
    assert [shared.shared_tokens(slot_id) for slot_id in range(3)] == [10, 0, 10]


@pytest.mark.behaviour("B-42")
def test_a_cut_behind_what_is_shared_changes_nothing() -> None:
    shared = SharedCells()
    shared.fork(0, 1, 10)
    shared.cut(0, 15)
    assert shared.shared_tokens(0) == shared.shared_tokens(1) == 10
