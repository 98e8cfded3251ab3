"""Time limits of engine steps and waits, and the age of one that does not end."""

import pytest

from runner.core.threads.step_times import (
    FIRST_S,
    HUNG_S_MIN,
    HUNG_S_MIN_CPU,
    HUNG_TIMES,
    MIXED_CALLS_MIN,
    TURNS_MAX,
    WAIT_LIMIT_S,
    EngineStep,
    StepAge,
    StepTimes,
)

RUNNING = EngineStep(1, 10.0)


def looked(age: StepAge, step: EngineStep, *, looks: int, elapsed_s: float = 0.5) -> float:
    return [age.look(step, elapsed_s=elapsed_s) for _ in range(looks)][-1]


def test_a_fast_call_has_the_least_limit_which_is_longer_without_a_device() -> None:
    for on_devices, limit_s in ((True, HUNG_S_MIN), (False, HUNG_S_MIN_CPU)):
        times = StepTimes(on_devices=on_devices)
        times.see(1, 0.02)
        assert times.limit_s(1) == limit_s


def test_before_any_call_has_ended_a_slow_disk_is_allowed_for() -> None:
    assert StepTimes(on_devices=True).limit_s(1) == HUNG_TIMES * FIRST_S


def test_a_slow_call_allows_calls_of_its_size_eight_times_as_long() -> None:
    times = StepTimes(on_devices=True)
    times.see(512, 6.0)
    assert times.limit_s(512) == times.limit_s(900) == 48.0
    times.see(512, 2.0)
    assert times.limit_s(512) == 40.0


def test_a_larger_call_than_any_before_is_allowed_its_share_for_each_input() -> None:
    times = StepTimes(on_devices=True)
    times.see(1, 0.5)
    assert times.limit_s(1) == HUNG_S_MIN
    assert times.limit_s(512) == 0.5 * 512 * HUNG_TIMES


def test_a_step_that_exceeds_its_limit_is_found_and_a_new_step_begins_at_zero() -> None:
    age = StepAge()
    assert looked(age, RUNNING, looks=21) == 0.0
    assert looked(age, RUNNING, looks=1) == 10.5
    assert looked(age, RUNNING.ended().begun(10.0), looks=20) == 0.0


def test_a_wait_whose_thread_gives_no_sign_of_life_has_hung_and_one_that_does_has_not() -> None:
    waiting, age = EngineStep(1, HUNG_S_MIN_CPU).ended(), StepAge()
    assert looked(age, waiting, looks=int(WAIT_LIMIT_S / 0.5) + 1) == 0.0
    assert looked(age, waiting, looks=1) == WAIT_LIMIT_S + 0.5
    assert looked(age, waiting.begun(HUNG_S_MIN_CPU).ended(), looks=1) == 0.0


def test_the_time_in_which_the_process_was_stopped_does_not_count() -> None:
    age = StepAge()
    looked(age, RUNNING, looks=1)
    assert looked(age, RUNNING, looks=10, elapsed_s=60.0) == 0.0


def test_the_cost_of_a_call_is_the_line_through_the_smallest_and_the_largest() -> None:
    times = StepTimes(on_devices=False)
    assert times.cost() == (0.0, 0.0)
    times.see(1, 0.06)
    assert times.cost() == (0.0, 0.0)
    for _ in range(40):
        times.see(20, 1.0)
        times.see(101, 1.06)
    assert times.cost() == pytest.approx((0.05, 0.01))


def test_the_cost_of_a_call_is_never_negative() -> None:
    times = StepTimes(on_devices=False)
    times.see(1, 0.2)
    times.see(20, 0.1)
    assert times.cost() == (0.2, 0.0)


def seen_apart() -> StepTimes:
    """128 inputs of prompts take 1.28 s, and 4 streams 0.1 s."""
    times = StepTimes(on_devices=False)
    times.see(128, 1.28, prompt_inputs=128)
    times.see(4, 0.1)
    return times


def test_streams_and_prompts_share_calls_until_that_has_taken_longer_than_two_calls() -> None:
    times = seen_apart()
    for seconds in (1.4, 1.4, 1.4, 1.4):
        times.see(132, seconds, prompt_inputs=128)
        assert not times.take_turns()
    times.see(132, 2.5, prompt_inputs=128)
    assert times.take_turns()


def test_one_long_call_decides_nothing() -> None:
    times = seen_apart()
    times.see(132, 9.0, prompt_inputs=128)
    assert not times.take_turns()


def test_nothing_is_decided_by_a_call_whose_parts_were_never_seen_apart() -> None:
    times = StepTimes(on_devices=False)
    times.see(128, 1.28, prompt_inputs=128)
    for _ in range(MIXED_CALLS_MIN):
        times.see(132, 9.0, prompt_inputs=128)
    assert not times.take_turns()


def test_after_many_turns_a_call_with_both_shows_again_how_long_it_takes() -> None:
    times = seen_apart()
    for _ in range(MIXED_CALLS_MIN):
        times.see(132, 2.0, prompt_inputs=128)
    assert [times.take_turns() for _ in range(TURNS_MAX + 1)] == [True] * TURNS_MAX + [False]
    for _ in range(MIXED_CALLS_MIN):
        times.see(132, 1.3, prompt_inputs=128)
    assert not times.take_turns()


def test_the_cost_is_that_of_prompts_once_two_sizes_of_them_are_known() -> None:
    times = StepTimes(on_devices=False)
    times.see(1, 0.03)
    times.see(512, 3.6, prompt_inputs=512)
    assert times.cost().fixed_s == pytest.approx(0.023, abs=0.001)
    times.see(4, 0.09, prompt_inputs=4)
    assert times.cost().fixed_s == pytest.approx(0.023, abs=0.001)
    times.see(32, 0.28, prompt_inputs=32)
    assert times.cost().fixed_s == pytest.approx(0.059, abs=0.001)
