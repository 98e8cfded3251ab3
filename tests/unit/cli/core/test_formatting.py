from datetime import UTC, datetime

import pytest

from cli.core.formatting import format_bytes, format_since, format_span, format_until

NOW_UNIX_S = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (3_456_789, "3.5 MB"),
        (9_960_000, "10 MB"),
        (999_600, "1.0 MB"),
        (25_300_000_000, "25 GB"),
        (5_000_000_000_000_000_000, "5000 PB"),
    ],
)
def test_bytes_are_given_in_decimal_units_with_three_digits_at_most(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("span_s", "text"), [(0.5, "now"), (1.0, "1 second"), (299, "4 minutes"), (7300, "2 hours"), (90_000, "1 day")]
)
def test_a_span_is_given_in_its_largest_whole_unit(span_s: float, text: str) -> None:
    assert format_span(span_s) == text


def test_a_time_to_come_with_nanoseconds_is_understood() -> None:
    assert format_until("2026-01-01T00:04:59.123456789Z", now_unix_s=NOW_UNIX_S) == "in 4 minutes"


def test_no_end_and_an_end_beyond_every_life_mean_for_ever() -> None:
    assert format_until(None, now_unix_s=NOW_UNIX_S) == "forever"
    assert format_until("2318-01-01T00:00:00Z", now_unix_s=NOW_UNIX_S) == "forever"


def test_a_time_that_has_come_is_now() -> None:
    assert format_until("2025-12-31T23:59:00Z", now_unix_s=NOW_UNIX_S) == "now"


def test_a_time_with_an_offset_is_compared_in_utc() -> None:
    assert format_since("2026-01-01T00:30:00.5+01:00", now_unix_s=NOW_UNIX_S) == "29 minutes ago"
