"""Silence of a runner, and a listener that was away itself."""

from runner.host.runners.runner_link import HUNG_AFTER_S, SILENCE_LOOK_INTERVAL_S, lengthen_silence


def test_silence_grows_by_the_time_between_looks() -> None:
    assert lengthen_silence(1.0, elapsed_s=0.5, heard=False) == 1.5


def test_a_sign_of_life_ends_it() -> None:
    assert lengthen_silence(9.0, elapsed_s=0.5, heard=True) == 0.0


def test_the_time_in_which_the_listener_did_not_run_proves_nothing() -> None:
    assert lengthen_silence(0.0, elapsed_s=3600.0, heard=False) == 1.0


def test_a_hung_runner_is_killed_within_ten_seconds_of_its_last_answer() -> None:
    at_s, silence_s = SILENCE_LOOK_INTERVAL_S, 0.0  # the latest look at which the last answer was heard
    while silence_s < HUNG_AFTER_S:
        at_s += SILENCE_LOOK_INTERVAL_S
        silence_s = lengthen_silence(silence_s, elapsed_s=SILENCE_LOOK_INTERVAL_S, heard=False)
    assert at_s <= 9.5, "half a second is left for the kill"
