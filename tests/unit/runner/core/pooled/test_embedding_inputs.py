"""Tokens of an input that are embedded."""

import pytest

from common.errors import InvalidRequest, PromptTooLong
from runner.core.pooled.embedding_inputs import Frame, frame_input

BOTH = Frame((101,), (102,))
BEGIN = Frame((101,), ())
NONE = Frame()


@pytest.mark.behaviour("B-91")
@pytest.mark.parametrize(
    ("ids", "frame", "context", "expected"),
    [
        ([1, 2, 3], BOTH, 10, (101, 1, 2, 3, 102)),
        ([1, 2, 3], BEGIN, 10, (101, 1, 2, 3)),
        ([1, 2, 3], NONE, 3, (1, 2, 3)),
        # Exactly full is not too long.
        ([1, 2, 3], BOTH, 5, (101, 1, 2, 3, 102)),
        # The cut keeps the first ones, and the frame.
        ([1, 2, 3], BOTH, 4, (101, 1, 2, 102)),
        ([1, 2, 3], BEGIN, 2, (101, 1)),
        ([1, 2, 3], NONE, 1, (1,)),
        ([1, 2, 3], BOTH, 3, (101, 1, 102)),
        # What the input brings along is not added again, and not lost to the cut.
        ([101, 1, 2, 3, 102], BOTH, 10, (101, 1, 2, 3, 102)),
        ([101, 1, 2, 3, 102], BOTH, 4, (101, 1, 2, 102)),
        ([101, 1, 2, 3], BOTH, 10, (101, 1, 2, 3, 102)),
        ([1, 2, 3, 102], BOTH, 4, (101, 1, 2, 102)),
        # An empty text still has its frame.
        ([], BOTH, 10, (101, 102)),
        ([101], BOTH, 10, (101, 102)),
    ],
)
def test_an_input_is_cut_to_its_head_inside_the_frame(
    ids: list[int], frame: Frame, context: int, expected: tuple[int, ...]
) -> None:
    assert frame_input(ids, frame=frame, context_tokens=context, truncate=True) == expected


@pytest.mark.behaviour("B-91")
def test_what_fits_is_not_refused_without_truncation() -> None:
    assert frame_input([1, 2], frame=BOTH, context_tokens=4, truncate=False) == (101, 1, 2, 102)


@pytest.mark.behaviour("B-91")
def test_too_long_without_truncation_is_refused_in_ollamas_words() -> None:
    with pytest.raises(PromptTooLong) as refused:
        frame_input([1, 2, 3], frame=BOTH, context_tokens=4, truncate=False)
    assert refused.value.message == "the input length exceeds the context length: 5 tokens > 4 maximum"
    assert refused.value.param == "input"


@pytest.mark.behaviour("B-91")
@pytest.mark.parametrize(("frame", "context"), [(BOTH, 2), (BOTH, 1), (BEGIN, 1)])
def test_a_context_that_the_frame_fills_has_nothing_left_for_the_input(frame: Frame, context: int) -> None:
    with pytest.raises(InvalidRequest) as refused:
        frame_input([1, 2, 3], frame=frame, context_tokens=context, truncate=True)
    assert refused.value.message == "input after truncation exceeds maximum context length"


def test_an_empty_input_without_a_frame_is_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        frame_input([], frame=NONE, context_tokens=8, truncate=True)
    assert refused.value.message == "no input provided"
