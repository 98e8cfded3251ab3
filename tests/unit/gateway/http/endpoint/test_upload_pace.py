"""Slowest pace of a large upload."""

import pytest

from gateway.http.endpoint.blob_body import BYTES_PER_S_MIN, PAUSE_S_MAX, UploadPace


def test_a_body_that_comes_at_the_slowest_rate_may_come_for_ever() -> None:
    pace = UploadPace()
    for _ in range(10_000):
        pace = pace.after(BYTES_PER_S_MIN, 1.0)
    assert pace.left_s == PAUSE_S_MAX


def test_a_body_that_comes_slower_runs_out_of_time() -> None:
    pace, pieces = UploadPace(), 0
    while pace.left_s > 0 and pieces < 100:
        pace, pieces = pace.after(BYTES_PER_S_MIN // 2, 1.0), pieces + 1
    assert pieces == 2 * PAUSE_S_MAX


def test_no_speed_buys_more_than_one_pause() -> None:
    pace = UploadPace().after(10**9, 0.001)
    assert pace.left_s == PAUSE_S_MAX
    assert pace.after(0, 4.0).left_s == pytest.approx(PAUSE_S_MAX - 4.0)


def test_what_was_waited_is_earned_back_by_what_comes() -> None:
    pace = UploadPace(left_s=1.0).after(3 * BYTES_PER_S_MIN, 0.5)
    assert pace.left_s == pytest.approx(3.5)
