"""Truncation of a prompt that is longer than the context."""

import pytest

from common.errors import InvalidRequest, PromptTooLong
from runner.core.sequence.truncation import Group, truncate_prompt


def cut(length: int, context: int, kept: int, *, truncate: bool = True, groups: tuple[Group, ...] = ()) -> list[int]:
    return truncate_prompt(
        list(range(length)), context_tokens=context, kept_tokens=kept, truncate=truncate, groups=groups
    )


@pytest.mark.behaviour("B-55")
def test_a_prompt_that_fits_is_left_alone() -> None:
    assert cut(10, 10, 4, truncate=False) == list(range(10))


@pytest.mark.behaviour("B-55")
def test_head_and_tail_stay() -> None:
    assert cut(20, 10, 4) == [0, 1, 2, 3, 14, 15, 16, 17, 18, 19]


@pytest.mark.behaviour("B-55")
def test_a_group_at_the_cut_goes_whole() -> None:
    assert cut(20, 10, 4, groups=(Group(12, 17),)) == [0, 1, 2, 3, 17, 18, 19]


@pytest.mark.behaviour("B-55")
def test_a_group_behind_the_cut_stays_whole() -> None:
    assert cut(20, 10, 4, groups=(Group(14, 18),)) == [0, 1, 2, 3, 14, 15, 16, 17, 18, 19]


@pytest.mark.behaviour("B-55")
def test_a_group_that_begins_inside_the_head_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="inside the kept head"):
        cut(20, 10, 4, groups=(Group(3, 6),))


@pytest.mark.behaviour("B-55")
def test_a_cut_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"^entire prompt removed by truncation$"):
        cut(20, 10, 4, groups=(Group(10, 20),))


@pytest.mark.behaviour("B-56")
def test_without_truncation_a_long_prompt_is_refused() -> None:
    with pytest.raises(PromptTooLong, match=r"^the input length exceeds the context length: \d+ tokens > \d+ maximum$"):
        cut(11, 10, 4, truncate=False)


@pytest.mark.behaviour("B-56")
def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"^no input provided$"):
        cut(0, 10, 4)
