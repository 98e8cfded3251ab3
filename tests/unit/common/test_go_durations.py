"""Durations as Go writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.durations import go_duration_text, parse_go_duration_ms


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [(0, "0s"), (0.12, "120ms"), (1, "1s"), (1.5, "1.5s"), (59.9995, "1m0s"), (360, "6m0s"), (3661.25, "1h1m1.25s")],
)
def test_they_look_as_go_prints_them(duration_s: float, text: str) -> None:
    assert go_duration_text(duration_s) == text


@given(st.integers(0, 10**9))
def test_they_are_read_as_they_were_written(duration_ms: int) -> None:
    assert abs(parse_go_duration_ms(go_duration_text(duration_ms / 1000)) - duration_ms) <= 1
