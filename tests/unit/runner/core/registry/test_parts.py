"""Parts of a blob, what is remembered of them, and whether an answer is one of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.registry.parts import (
    MIB,
    PARTS_MAX,
    Part,
    PartSizes,
    RangeAnswer,
    decode_state,
    done_bytes,
    encode_state,
    frontier,
    judge_answer,
    plan_parts,
    range_header,
)

DIGEST = "ab" * 32


@given(size=st.integers(0, 2**45), parallel=st.integers(1, 16))
def test_parts_cover_a_blob_without_gap_or_overlap(size: int, parallel: int) -> None:
    parts = plan_parts(size, PartSizes(parallel=parallel))
    position = 0
    for part in parts:
        assert part.start == position < part.stop
        position = part.stop
    assert position == size
    assert all(part.stop - part.start >= 64 * MIB for part in parts[:-1])


def test_parts_are_between_64_and_512_mib() -> None:
    assert len(plan_parts(63 * MIB, PartSizes())) == 1
    assert [part.stop - part.start for part in plan_parts(1024 * MIB, PartSizes())] == [128 * MIB] * 8
    assert len(plan_parts(40 * 1024 * MIB, PartSizes())) == 80


def test_the_frontier_is_what_is_here_without_a_gap() -> None:
    parts = (Part(start=0, stop=10, done=10), Part(start=10, stop=20, done=3), Part(start=20, stop=30, done=10))
    assert frontier(parts) == 13
    assert done_bytes(parts) == 23
    assert frontier(()) == 0


@given(st.data())
def test_a_state_is_read_as_it_was_written(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 10_000))
    parts = [
        part.grown(data.draw(st.integers(0, part.stop - part.start)))
        for part in plan_parts(size, PartSizes(parallel=4, min_bytes=100, max_bytes=1000))
    ]
    content = encode_state(parts, digest=DIGEST, size_bytes=size)
    assert decode_state(content, digest=DIGEST, size_bytes=size) == tuple(parts)
    assert decode_state(content, digest=DIGEST, size_bytes=size + 1) is None
    assert decode_state(content, digest="cd" * 32, size_bytes=size) is None
    assert decode_state(content[:-1], digest=DIGEST, size_bytes=size) is None


@pytest.mark.parametrize(
    "parts",
    [
        "[[0,5,0]]",
        "[[0,5,0],[6,10,0]]",
        "[[0,0,0],[0,10,0]]",
        "[[0,10,11]]",
        "[[0,10,-1]]",
        "[[0,10]]",
        "null",
        "[[5,5,0]]",
        '[["a",1,2]]',
    ],
)
def test_a_state_that_does_not_cover_the_blob_is_worthless(parts: str) -> None:
    content = f'{{"version": 1, "digest": "{DIGEST}", "size_bytes": 10, "parts": {parts}}}'.encode()
    assert decode_state(content, digest=DIGEST, size_bytes=10) is None


@pytest.mark.parametrize(
    ("status", "content_range", "expected"),
    [
        (206, "bytes 10-19/100", RangeAnswer.PART),
        (206, "bytes 10-19/*", RangeAnswer.PART),
        (206, "bytes 10-19/101", RangeAnswer.CHANGED),
        (206, "bytes 0-19/100", RangeAnswer.CHANGED),
        (206, "bytes 10-18/100", RangeAnswer.CHANGED),
        (206, "", RangeAnswer.CHANGED),
        (200, "", RangeAnswer.WHOLE),
        (416, "bytes */5", RangeAnswer.CHANGED),
        (404, "", RangeAnswer.REFUSED),
        (500, "bytes 10-19/100", RangeAnswer.REFUSED),
    ],
)
def test_an_answer_is_judged_by_status_and_range(status: int, content_range: str, expected: RangeAnswer) -> None:
    assert range_header(10, 20) == "bytes=10-19"
    assert judge_answer(status, content_range, start=10, stop=20, size=100) is expected


def test_the_largest_blob_has_no_more_parts_than_a_state_can_hold() -> None:
    parts = plan_parts(10 * PARTS_MAX + 1, PartSizes(min_bytes=1, max_bytes=1))
    assert len(parts) <= PARTS_MAX
    assert parts[-1].stop == 10 * PARTS_MAX + 1


def test_a_state_of_another_version_is_worthless() -> None:
    state = encode_state([Part(start=0, stop=10, done=3)], digest="d", size_bytes=10)
    assert decode_state(state, digest="d", size_bytes=10) == (Part(start=0, stop=10, done=3),)
    newer = state.replace(b'"version": 1', b'"version": 2')
    assert newer != state
    assert decode_state(newer, digest="d", size_bytes=10) is None
