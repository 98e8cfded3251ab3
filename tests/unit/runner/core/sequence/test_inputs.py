"""Images among the inputs: what a list of integers says, and what may be cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import InvalidRequest
from runner.core.sequence.context_shift import plan_context_shift, replay_context, whole_head_tokens
from runner.core.sequence.inputs import (
    MediaUnit,
    excess_rows,
    groups_in,
    holds_media,
    join_pieces,
    leading_segment,
    read_row,
    tokens_of,
    unit_key,
    units_in,
    whole_units,
)
from runner.core.sequence.requests import GenerationRequest, TokenizedPrompt, prepare_prompt
from runner.core.sequence.slots import MemoryRules, SlotPolicy, SlotView, choose_slot
from runner.core.sequence.truncation import Group, truncate_prompt
from tests.unit.runner.fake_images import BEGIN, END, image

PICTURE = image("one")
OTHER = image("two")
BARE = image("one", markers=False)


@given(
    key=st.integers(0, 2**128 - 1),
    rows=st.integers(1, 40),
    positions=st.integers(0, 2**24 - 1),
    lead=st.integers(0, 2**24 - 1),
    trail=st.integers(0, 2**24 - 1),
    whole=st.booleans(),
)
def test_every_row_tells_its_unit_and_its_place_in_it(
    key: int, rows: int, positions: int, lead: int, trail: int, whole: bool
) -> None:
    unit = MediaUnit(key=key, rows=rows, positions=positions, lead=lead, trail=trail, whole=whole)
    inputs = unit.inputs()
    assert all(value < 0 for value in inputs)
    assert [(read_row(value).unit, read_row(value).row) for value in inputs] == [(unit, row) for row in range(rows)]


def test_equal_contents_are_equal_inputs_and_others_differ_from_the_first_row_on() -> None:
    assert image("one").inputs == PICTURE.inputs
    assert set(PICTURE.inputs[1:-1]).isdisjoint(OTHER.inputs[1:-1])
    assert unit_key(PICTURE.hash, 0) != unit_key(PICTURE.hash, 1)


@pytest.mark.behaviour("B-103")
def test_an_editor_s_markers_and_rows_are_one_group_and_the_rows_one_unit() -> None:
    inputs = [1, 2, *PICTURE.inputs, 3]
    assert [value if value >= 0 else "row" for value in inputs] == [1, 2, BEGIN, *["row"] * 5, END, 3]
    assert [(start, unit.rows) for start, unit in units_in(inputs)] == [(3, 5)]
    assert groups_in(inputs) == (Group(2, 9),)
    assert tokens_of(inputs) == [1, 2, BEGIN, END, 3]
    assert holds_media(inputs)
    assert not holds_media([1, 2])
    assert groups_in([1, 2]) == ()


@pytest.mark.behaviour("B-103")
def test_the_parts_of_a_tiled_image_are_one_group() -> None:
    parts = [MediaUnit(key=unit_key(PICTURE.hash, part), rows=2, positions=2) for part in range(2)]
    units, joined = join_pieces([[BEGIN], parts[0], [7], parts[1], [END]])
    assert [(unit.lead, unit.trail) for unit in units] == [(1, 4), (4, 1)]
    assert groups_in([9, *joined, 9]) == (Group(1, 8),)
    assert groups_in([9, *joined]) == (Group(1, 8),)
    assert groups_in([*joined, *joined]) == (Group(0, 7), Group(7, 14))


@pytest.mark.behaviour("B-21")
def test_segments_are_of_one_kind_and_keep_the_order() -> None:
    pending = [1, 2, *PICTURE.inputs, 3, *BARE.inputs]
    kinds = []
    while pending:
        segment = leading_segment(pending)
        kinds.append((segment.inputs, segment.row is not None))
        del pending[: segment.inputs]
    assert kinds == [(3, False), (5, True), (2, False), (5, True)]


@pytest.mark.behaviour("B-21")
def test_a_unit_that_was_begun_goes_on_where_it_stopped() -> None:
    segment = leading_segment([*BARE.inputs[3:], 1])
    assert segment.inputs == 2
    assert segment.row is not None
    assert segment.row.row == 3


@pytest.mark.behaviour("B-36")
def test_the_common_prefix_of_another_image_ends_before_it_and_never_inside() -> None:
    held = [1, 2, *PICTURE.inputs, 3, 4]
    rules = MemoryRules()

    def prefix(prompt: list[int]) -> int:
        view = SlotView(slot_id=0, held=held, busy=False, last_used=1)
        choice = choose_slot([view], prompt, policy=SlotPolicy.LONGEST, rules=rules)
        assert choice is not None
        return choice.prefix_tokens

    assert prefix([1, 2, *OTHER.inputs, 3, 4]) == 3  # up to the begin marker, which is the same token
    assert prefix([1, 2, *PICTURE.inputs, 3, 5]) == 10
    assert prefix([1, 2, *PICTURE.inputs, 9]) == 9
    assert prefix([1, 2, *PICTURE.inputs[:-1]]) == 3  # a row has to be computed again, so all are
    held[:] = held[:6]  # a request that was cancelled inside the image
    assert prefix([1, 2, *PICTURE.inputs, 3, 4]) == 3


def erased(held: list[int], start: int, stop: int) -> list[tuple[int, str]]:
    """Return the places of images after the inputs [start, stop) were erased and later ones moved down."""
    names = {unit.key: name for name, picture in (("one", BARE), ("two", OTHER)) for unit in picture.units}
    return [(place, names[unit.key]) for place, unit in units_in([*held[:start], *held[stop:]])]


@pytest.mark.behaviour("B-45")
@pytest.mark.parametrize(
    ("start", "stop", "kept"),
    [
        (60, 100, [(50, "one")]),
        (40, 100, []),
        (10, 30, [(30, "one")]),
        (50, 55, []),
        (55, 60, [(50, "one")]),
        (49, 50, [(49, "one")]),
    ],
)
def test_an_image_goes_exactly_when_its_place_goes_and_moves_along(
    start: int, stop: int, kept: list[tuple[int, str]]
) -> None:
    held = [*range(50), *BARE.inputs, *range(55, 100)]
    assert erased(held, start, stop) == kept


@pytest.mark.behaviour("B-45")
def test_a_prefix_cut_inside_an_image_goes_back_to_its_begin() -> None:
    held = [*range(50), *BARE.inputs, *range(55, 100)]
    assert [whole_units(held, place) for place in (49, 50, 51, 54, 55, 60, 100)] == [49, 50, 50, 50, 55, 60, 100]


@pytest.mark.behaviour("B-52", "B-45")
def test_a_shift_that_begins_to_drop_an_image_drops_all_of_it() -> None:
    held = [*range(10), *PICTURE.inputs, *range(100, 115)]  # 32 inputs, the image's group at [10, 17)
    groups = groups_in(held)

    def dropped(kept: int, context: int = 32) -> tuple[int, int]:
        plan = plan_context_shift(
            held_tokens=len(held), context_tokens=context, kept_tokens=kept, can_move=True, groups=groups
        )
        assert plan is not None
        assert plan.moves
        return plan.drop_start, plan.drop_stop

    assert dropped(0) == (0, 17)  # half of the context would end inside the image
    assert dropped(4) == (4, 18)
    assert dropped(17) == (17, 24)


def test_a_kept_head_that_ends_inside_an_image_keeps_all_of_it_if_that_leaves_room() -> None:
    groups = (Group(2, 9),)
    assert whole_head_tokens(5, context_tokens=20, groups=groups) == 9
    assert whole_head_tokens(5, context_tokens=9, groups=groups) == 2
    assert whole_head_tokens(2, context_tokens=20, groups=groups) == 2
    assert whole_head_tokens(9, context_tokens=20, groups=groups) == 9


@pytest.mark.behaviour("B-55")
def test_a_cut_prompt_holds_images_whole_or_not_at_all() -> None:
    prompt = [*range(10), *PICTURE.inputs, *range(100, 110)]
    cut = truncate_prompt(prompt, context_tokens=14, kept_tokens=2, truncate=True, groups=groups_in(prompt))
    assert cut == [0, 1, *range(100, 110)]
    whole = truncate_prompt(prompt, context_tokens=20, kept_tokens=2, truncate=True, groups=groups_in(prompt))
    assert whole == [0, 1, 9, *PICTURE.inputs, *range(100, 110)]
    with pytest.raises(InvalidRequest, match="begins inside the kept head"):
        truncate_prompt(prompt, context_tokens=20, kept_tokens=12, truncate=True, groups=groups_in(prompt))


def test_a_prepared_prompt_with_an_image_is_cut_like_that() -> None:
    prompt = TokenizedPrompt((*range(10), *PICTURE.inputs, *range(30, 40)), images=(PICTURE,))
    request = GenerationRequest(prompt=prompt, keep_tokens=2)
    assert prepare_prompt(request, slot_context_tokens=14, adds_bos=False).inputs == [0, 1, *range(30, 40)]
    kept = GenerationRequest(prompt=prompt, keep_tokens=12)
    assert prepare_prompt(kept, slot_context_tokens=64, adds_bos=False).kept_tokens == 17


def test_a_replayed_context_drops_images_as_the_first_runner_did() -> None:
    prompt = [0, 1, *PICTURE.inputs, *range(10, 17)]  # 16 inputs
    inputs = replay_context(prompt, [20, 21], context_tokens=16, kept_tokens=1, shift=True)
    assert inputs == [0, *range(10, 17), 20, 21]


@pytest.mark.behaviour("B-21", "B-43")
def test_rows_that_share_positions_are_counted_as_what_they_take() -> None:
    wide = image("wide", rows=6, positions=3)
    inputs = [1, *wide.inputs, 2]
    assert excess_rows(inputs) == 3
    assert excess_rows(inputs[:2]) == 0
    assert excess_rows(inputs[:4]) == 2  # a unit that is not complete has taken no position yet
    assert excess_rows([1, *PICTURE.inputs]) == 0


@pytest.mark.behaviour("B-37", "B-36")
def test_a_window_is_counted_in_positions_also_behind_an_image() -> None:
    wide = image("wide", rows=40, positions=8)
    held = [1, 2, *wide.inputs, *range(3, 30)]
    rules = MemoryRules(window_tokens=16)

    def prefix(first_position: int) -> int:
        view = SlotView(
            slot_id=0, held=held, busy=False, last_used=1, first_position=first_position, excess=excess_rows(held)
        )
        choice = choose_slot([view], [*held[:60], 99], policy=SlotPolicy.LONGEST, rules=rules)
        assert choice is not None
        return choice.prefix_tokens

    # 60 inputs end at position 28, which sees positions from 13 on.
    assert prefix(13) == 60
    assert prefix(14) == 0
