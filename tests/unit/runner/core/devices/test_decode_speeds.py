"""Speed of a device: the best that its steps showed, which changes seldom."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.devices.decode_speeds import (
    DEVICE_BYTES_MIN,
    FALLS_FROM,
    HOURS_KEPT,
    RISES_FROM,
    WINDOWS_MIN,
    Company,
    DecodeSpeed,
    ReadDevice,
    learn,
    restored,
    telling,
)

GB = 1e9
FIRST = [(100 * GB, 0, True)] * WINDOWS_MIN


def learned(windows: list[tuple[float, int, bool]], known: DecodeSpeed | None = None) -> DecodeSpeed:
    """`windows` as bytes a second, hour, and whether nobody else was on the device."""
    known = known or DecodeSpeed()
    for bytes_s, hour, alone in windows:
        known = learn(known, bytes_s, hour=hour, alone=alone)
    return known


def reader(size: int, *, copy: float = 400 * GB, make: str = "CUDA, a card", device: str = "GPU-1") -> ReadDevice:
    return ReadDevice(id=device, make=make, copy_bytes_s=copy, bytes=size)


def test_nothing_is_shown_before_there_were_some_windows() -> None:
    assert learned(FIRST[1:]).shown_bytes_s == 0
    assert learned(FIRST).shown_bytes_s == 100 * GB


def test_the_best_of_the_first_windows_counts() -> None:
    assert learned([(30 * GB, 0, True), (90 * GB, 0, True), *[(40 * GB, 0, True)] * 2]).shown_bytes_s == 90 * GB


def test_what_is_faster_counts_at_once_and_what_is_slower_after_hours() -> None:
    known = learned(FIRST)
    assert learned([(111 * GB, 0, True)], known).shown_bytes_s == 111 * GB
    slower = [(70 * GB, hour, True) for hour in range(1, HOURS_KEPT)]
    assert learned(sorted(slower * 5, key=lambda one: one[1]), known).shown_bytes_s == 100 * GB
    assert learned([*slower, (70 * GB, HOURS_KEPT, True)], known).shown_bytes_s == 70 * GB


def test_one_good_window_in_half_a_day_keeps_what_is_shown() -> None:
    """Neighbours of a host CPU come and go."""
    busy = [
        (speed, hour, True)
        for hour in range(100)
        for speed in (20 * GB, 95 * GB if hour % (HOURS_KEPT - 1) == 0 else 30 * GB)
    ]
    assert learned(busy, learned(FIRST)).shown_bytes_s == 100 * GB


def test_beside_others_a_window_tells_only_that_the_device_is_no_slower() -> None:
    known = learned(FIRST)
    crowded = [(40 * GB, hour, False) for hour in range(1, 50)]
    assert learned(crowded, known) == known
    assert learned([(150 * GB, 1, False)], known).shown_bytes_s == 150 * GB


@pytest.mark.parametrize("figure", [0.0, -1.0, float("inf"), float("nan")])
def test_what_is_no_speed_is_not_taken_in(figure: float) -> None:
    assert learn(DecodeSpeed(), figure, hour=0, alone=True) == DecodeSpeed()


@given(
    st.lists(
        st.tuples(st.floats(min_value=1e6, max_value=1e13), st.integers(min_value=0, max_value=5), st.booleans()),
        max_size=200,
    )
)
def test_within_the_hours_that_are_kept_what_is_shown_only_rises_and_seldom(
    windows: list[tuple[float, int, bool]],
) -> None:
    """Whatever comes, in whatever order of hours: the clock may jump."""
    known, shown = DecodeSpeed(), list[float]()
    for bytes_s, hour, alone in windows:
        before = known
        known = learn(known, bytes_s, hour=hour, alone=alone)
        if known.shown_bytes_s != before.shown_bytes_s:
            shown.append(known.shown_bytes_s)
        assert len(known.hours) <= HOURS_KEPT
        assert known.shown_bytes_s <= max((one for one, _, _ in windows), default=0)
        if len(known.hours) < HOURS_KEPT:
            assert all(later > earlier * RISES_FROM for earlier, later in pairwise(shown))
        if known.shown_bytes_s:
            assert known.best_bytes_s <= known.shown_bytes_s * RISES_FROM


@given(st.lists(st.tuples(st.floats(min_value=0.0, max_value=1.0), st.integers(0, 40)), min_size=20, max_size=300))
def test_noise_that_only_slows_never_changes_what_was_shown(noise: list[tuple[float, int]]) -> None:
    """As long as one window in each hour comes near what the device can do."""
    known = learned(FIRST)
    for slowed, hour in sorted(noise, key=lambda one: one[1]):
        known = learn(known, 100 * GB * (1 - slowed) + 1, hour=hour, alone=True)
        known = learn(known, 100 * GB * (FALLS_FROM + 0.01), hour=hour, alone=True)
        assert known.shown_bytes_s == 100 * GB


def test_steps_tell_where_reading_takes_the_time() -> None:
    assert telling([reader(3 * 10**9)], 300 * GB)
    assert not telling([reader(10**9)], 100 * GB), "2.5 ms of reading: a fixed part of the step would be mistaken"
    assert telling([reader(10**9, copy=20 * GB)], 15 * GB)


def test_small_models_never_make_a_device_look_slow() -> None:
    """Their steps are launches, barriers and sampling; and what lies in a cache is not read from memory."""
    assert not telling([reader(DEVICE_BYTES_MIN - 1, copy=10 * GB)], 1 * GB)
    assert not telling([reader(DEVICE_BYTES_MIN - 1, copy=10 * GB)], 100 * GB)


def test_without_a_copy_the_time_of_the_steps_decides() -> None:
    assert telling([reader(10**9, copy=0)], 50 * GB)
    assert not telling([reader(10**9, copy=0)], 51 * GB)


def test_a_sum_of_times_tells_only_of_devices_that_are_alike() -> None:
    half = 3 * 10**9
    assert telling([reader(half), reader(half, device="GPU-2")], 300 * GB)
    assert not telling([reader(half), reader(half, device="GPU-2", make="CUDA, another card")], 300 * GB)
    assert not telling([reader(half), reader(half, device="cpu", make="CPU, a CPU", copy=20 * GB)], 40 * GB)
    assert not telling([reader(half), reader(10**6, device="GPU-2")], 300 * GB)
    assert not telling([], 300 * GB)


def test_company_is_remembered() -> None:
    company = Company()
    company.see({"a": 2, "b": 1}, 10.0)
    assert not company.was_alone({"a"}, since_s=10.5), "it may have been heard of late"
    assert company.was_alone({"a"}, since_s=12.0)
    assert company.was_alone({"b", "c"}, since_s=0.0)
    assert not company.was_alone({"a", "b"}, since_s=5.0)


@given(st.lists(st.tuples(st.floats(1e6, 1e13), st.integers(0, 30), st.booleans()), max_size=40))
def test_what_is_written_down_comes_back(windows: list[tuple[float, int, bool]]) -> None:
    known = learned(windows)
    text = json.dumps([known.shown_bytes_s, known.windows, known.hours])
    assert restored(*json.loads(text)) == known


@pytest.mark.parametrize(
    "written", [("x", 1, []), (1.0, "1", []), (1.0, 1, {}), (float("nan"), 1, []), (-1.0, 1, []), (None, None, None)]
)
def test_what_cannot_be_read_is_nothing(written: tuple[object, object, object]) -> None:
    assert restored(*written) == DecodeSpeed()


def test_hours_that_cannot_be_read_are_left_out() -> None:
    assert restored(5.0, 99, [[1, 5.0], [2], ["3", 5.0], 4, [5, -1.0], [6, 7.0]]) == DecodeSpeed(
        shown_bytes_s=5.0, windows=WINDOWS_MIN, hours=((1, 5.0), (6, 7.0))
    )
