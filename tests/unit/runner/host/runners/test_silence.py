"""Silence of a runner, and a listener that was away itself."""

from runner.host.runners.runner_link import lengthen_silence


def test_silence_grows_by_the_time_between_looks() -> None:
    assert lengthen_silence(1.0, elapsed_s=0.5, heard=False) == 1.5


def test_a_sign_of_life_ends_it() -> None:
    assert lengthen_silence(9.0, elapsed_s=0.5, heard=True) == 0.0


def test_the_time_in_which_the_listener_did_not_run_proves_nothing() -> None:
    assert lengthen_silence(0.0, elapsed_s=3600.0, heard=False) == 1.0
