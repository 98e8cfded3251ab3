"""Messages between the two ends of a tunnel."""

import pytest

from runner.core.host.tunnel import (
    BadLine,
    Opening,
    Purpose,
    Refused,
    answer_line,
    check_answer,
    frame,
    opening_line,
    read_opening,
)


@pytest.mark.parametrize("purpose", list(Purpose))
def test_an_opening_arrives_as_it_was_meant(purpose: Purpose) -> None:
    opening = Opening(placement_id="a-b", generation=7, purpose=purpose, channel=3)
    line = opening_line(opening)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert read_opening(line) == opening


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"GET / HTTP/1.1\r\n",
        b"{}\n",
        b"[1]\n",
        b'{"placement": "a", "generation": "x", "purpose": "data", "channel": 0}\n',
        b'{"placement": "a", "generation": 1, "purpose": "steal", "channel": 0}\n',
        b'{"placement": "a", "generation": 1, "purpose": "data", "channel": 99}\n',
        b'{"placement": "a", "generation": 1, "purpose": "data", "channel": -1}\n',
    ],
)
def test_anything_else_is_no_opening(line: bytes) -> None:
    with pytest.raises(BadLine):
        read_opening(line)


def test_an_answer_takes_or_says_why_not() -> None:
    check_answer(answer_line())
    with pytest.raises(Refused, match="in use"):
        check_answer(answer_line("in use"))
    with pytest.raises(BadLine):
        check_answer(b"what?\n")


def test_a_frame_carries_its_length() -> None:
    assert frame(b"abc") == b"\x03\x00\x00\x00abc"
