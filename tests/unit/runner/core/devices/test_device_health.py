"""States of a device, from what was seen of it."""

import pytest

from runner.core.devices.device_health import (
    ERROR_WINDOW_S,
    RETRY_S_MAX,
    RETRY_S_MIN,
    CheckFailure,
    Condition,
    DeviceHealth,
    RunnerError,
    barred,
    excuse,
    fail_check,
    find_again,
    lose,
    pass_check,
    reset,
    see_driver,
    see_error,
    see_time,
)

pytestmark = pytest.mark.behaviour("B-130")

DIED = CheckFailure(reason="signal 6", exit_code=-6, last_line="no kernel image")
OK = pass_check(DeviceHealth())


def error(health: DeviceHealth, at_s: float, model: str = "a", replica: str = "") -> DeviceHealth:
    one = RunnerError(at_unix_s=at_s, model_digest=model, replica=replica)
    return see_error(health, one, driver="nvidia 1", text="CUDA error")


def worn_device() -> DeviceHealth:
    health = OK
    for moment, model in enumerate("abc"):
        health = error(pass_check(health), moment, model, replica=f"{model}/1")
    return health


def test_a_new_device_is_used_only_after_its_check() -> None:
    assert DeviceHealth().needs_check
    assert OK.condition is Condition.OK
    assert not OK.reason


def test_a_device_that_is_gone_is_lost_and_is_checked_again_when_it_comes_back() -> None:
    gone = lose(OK, "not listed")
    assert (gone.condition, gone.reason) == (Condition.LOST, "not listed")
    assert find_again(OK) is OK
    assert find_again(gone).needs_check


def test_a_failed_check_keeps_how_it_ended_and_is_tried_again_ever_later() -> None:
    failed = fail_check(DeviceHealth(), DIED, now_unix_s=0, driver="nvidia 1")
    assert failed.condition is Condition.FAILED
    assert (failed.reason, failed.exit_code, failed.last_line) == ("signal 6", -6, "no kernel image")
    assert not see_time(failed, now_unix_s=RETRY_S_MIN - 1).needs_check
    due = see_time(failed, now_unix_s=RETRY_S_MIN)
    assert due.needs_check
    again = fail_check(due, DIED, now_unix_s=100, driver="nvidia 1")
    assert again.retry_at_unix_s == 100 + 2 * RETRY_S_MIN
    for _ in range(20):
        again = fail_check(again, DIED, now_unix_s=0, driver="nvidia 1")
    assert again.retry_at_unix_s == RETRY_S_MAX


def test_one_error_of_a_runner_has_the_device_checked_and_those_of_three_models_exclude_it() -> None:
    once = error(OK, 0)
    assert once.needs_check
    twice = error(pass_check(once), 100, "b")
    assert pass_check(twice).condition is Condition.OK
    worn = error(pass_check(twice), 200, "c")
    assert worn.condition is Condition.WORN
    assert "3 runners ended within 10 min" in worn.reason
    assert pass_check(worn) is worn  # a check does not clear it, nor does time
    assert see_time(worn, now_unix_s=1e9) is worn
    assert lose(worn, "gone") is worn


def test_a_model_that_explains_the_errors_excludes_no_device() -> None:
    health = OK
    for moment in range(20):
        health = pass_check(error(health, moment))
    health = pass_check(error(health, 20, "b"))
    assert health.condition is Condition.OK
    assert error(health, 21, "b").condition is Condition.WORN, "errors of two models are the device's"


def test_errors_that_a_request_is_to_blame_for_do_not_count_also_if_that_is_known_late() -> None:
    worn = worn_device()
    assert excuse(worn, "d/1") is worn
    excused = excuse(worn, "b/1")
    assert excused.needs_check
    assert pass_check(error(pass_check(excused), 5, "a")).condition is Condition.OK
    assert excuse(OK, "b/1") is OK


def test_errors_that_lie_further_apart_do_not_count_together() -> None:
    health = OK
    for moment in range(5):
        health = pass_check(error(health, moment * ERROR_WINDOW_S / 1.5, f"model {moment}"))
    assert health.condition is Condition.OK


def test_only_an_operator_or_another_driver_clears_a_worn_device() -> None:
    health = worn_device()
    assert see_driver(health, "nvidia 1") is health
    assert see_driver(health, "") is health
    assert see_driver(health, "nvidia 2").needs_check
    assert reset(health).needs_check
    assert not reset(health).errors


def test_nothing_but_the_configuration_decides_about_a_barred_device() -> None:
    health = barred("so says the configuration")
    assert health.condition is Condition.BARRED
    for after in (
        pass_check(health),
        fail_check(health, DIED, now_unix_s=0, driver=""),
        lose(health, "gone"),
        error(health, 0),
        reset(health),
        see_driver(health, "nvidia 9"),
    ):
        assert after is health
