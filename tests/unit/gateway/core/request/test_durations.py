"""Durations as Go writes them."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.durations import DURATION_MS_MAX, parse_go_duration_ms
from common.errors import InvalidRequest
from gateway.core.request.durations import FOREVER_MS, parse_keep_alive_ms


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("0", 0),
        ("10m", 600_000),
        ("1h30m", 5_400_000),
        ("1.5s", 1500),
        (".5s", 500),
        ("-1s", -1000),
        ("+2ms", 2),
        ("1us", 1),  # more than nothing stays more than nothing
        ("1e9h", DURATION_MS_MAX),
        ("999999999999h", DURATION_MS_MAX),
    ],
)
def test_go_durations(text: str, duration_ms: int) -> None:
    assert parse_go_duration_ms(text) == duration_ms


@pytest.mark.parametrize("text", ["", "5", "m", "1x", "1h-3m", "1 h", "--1s", "1h" * 40, "nan", "infs"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_go_duration_ms(text)


@pytest.mark.parametrize(
    ("value", "keep_alive_ms"),
    [
        (None, None),
        (300, 300_000),
        (0.5, 500),
        (0, 0),
        ("0", 0),
        ("0s", 0),
        (-1, FOREVER_MS),
        (-0.5, FOREVER_MS),
        ("-1s", FOREVER_MS),
        ("5m", 300_000),
        (1e300, DURATION_MS_MAX),
    ],
)
def test_keep_alive_is_seconds_or_a_duration(value: object, keep_alive_ms: int | None) -> None:
    assert parse_keep_alive_ms(value) == keep_alive_ms


@pytest.mark.parametrize("value", [True, [], {}, "soon", "5", "", "nan", math.nan, math.inf, -math.inf])
def test_keep_alive_of_another_type_names_the_field(value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_keep_alive_ms(value)
    assert caught.value.param == "keep_alive"


@given(st.text(max_size=80))
def test_no_text_breaks_the_parser(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert abs(parse_go_duration_ms(text)) <= DURATION_MS_MAX
