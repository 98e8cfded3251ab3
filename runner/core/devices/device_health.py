"""Health of a device: observations in, its state out. Pure.

| state | how it is reached | how it is left |
|---|---|---|
| unchecked | listed for the first time or again, or a runner ended with an error of the device | its check |
| ok | its check passed | any other row |
| lost | no longer listed | listed again: unchecked |
| failed | its check failed | the next check, ever later; an operator; another driver |
| worn | errors of runners within ten minutes that no single model explains | an operator; another driver |
| barred | the configuration says so | never |
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

# So many errors within the window, and so many besides those of one model: a bad model breaks every device.
ERRORS_MAX = 3
OTHER_ERRORS_MAX = 2
ERRORS_KEPT = 8
ERROR_WINDOW_S = 600.0
# A failed check may have met a busy machine: it is tried again, ever later.
RETRY_S_MIN = 60.0
RETRY_S_MAX = 3600.0


class Condition(StrEnum):
    """As the table above."""

    UNCHECKED = "unchecked"
    OK = "ok"
    LOST = "lost"
    FAILED = "failed"
    WORN = "worn"
    BARRED = "barred"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckFailure:
    """End of a failed check. `exit_code` is negative for a signal, None where the process did not end by itself."""

    reason: str
    exit_code: int | None = None
    last_line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerError:
    """Error of a device that ended a runner, and the runner: its model and its replica."""

    at_unix_s: float
    model_digest: str = ""
    replica: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """One device. Moments are wall-clock seconds since 1970, because they outlive the host process."""

    condition: Condition = Condition.UNCHECKED
    reason: str = "it has not been tested yet"
    errors: tuple[RunnerError, ...] = ()
    failures: int = 0  # checks that failed one after another
    retry_at_unix_s: float = 0.0
    driver: str = ""  # when it was excluded
    exit_code: int | None = None
    last_line: str = ""

    @property
    def needs_check(self) -> bool:
        """Now."""
        return self.condition is Condition.UNCHECKED


BARRED_BY_SETTING = "excluded by PUNA_EXCLUDED_DEVICES"


def barred(reason: str) -> DeviceHealth:
    """Return a device that the configuration leaves out."""
    return DeviceHealth(condition=Condition.BARRED, reason=reason)


def pass_check(health: DeviceHealth) -> DeviceHealth:
    """Apply a passed check. Errors of runners are kept: a device may pass every check and still end its runners."""
    if health.condition in (Condition.WORN, Condition.BARRED):
        return health
    return DeviceHealth(condition=Condition.OK, reason="", errors=health.errors)


def fail_check(health: DeviceHealth, failure: CheckFailure, *, now_unix_s: float, driver: str) -> DeviceHealth:
    """Apply a failed check."""
    if health.condition in (Condition.WORN, Condition.BARRED):
        return health
    wait_s = min(RETRY_S_MIN * 2**health.failures, RETRY_S_MAX)
    return replace(
        health,
        condition=Condition.FAILED,
        reason=failure.reason,
        failures=health.failures + 1,
        retry_at_unix_s=now_unix_s + wait_s,
        driver=driver,
        exit_code=failure.exit_code,
        last_line=failure.last_line,
    )


def lose(health: DeviceHealth, reason: str) -> DeviceHealth:
    """Mark a device that is no longer listed."""
    if health.condition in (Condition.BARRED, Condition.WORN, Condition.LOST):
        return health
    return replace(health, condition=Condition.LOST, reason=reason)


def find_again(health: DeviceHealth) -> DeviceHealth:
    """Clear the mark of a device that is listed; nothing changes unless it was lost."""
    if health.condition is not Condition.LOST:
        return health
    return replace(health, condition=Condition.UNCHECKED, reason="it came back and is tested", failures=0)


def doubt(health: DeviceHealth, reason: str) -> DeviceHealth:
    """Require a check of a device that was OK."""
    return replace(health, condition=Condition.UNCHECKED, reason=reason) if health.condition is Condition.OK else health


def see_error(health: DeviceHealth, error: RunnerError, *, driver: str, text: str) -> DeviceHealth:
    """Count an error of a runner that named the device."""
    if health.condition in (Condition.BARRED, Condition.WORN):
        return health
    recent = [one for one in health.errors if error.at_unix_s - one.at_unix_s < ERROR_WINDOW_S]
    errors = (*recent, error)[-ERRORS_KEPT:]
    if _are_the_devices(errors):
        reason = f"{len(errors)} runners ended within {ERROR_WINDOW_S / 60:g} min with an error of the device: {text}"
        return replace(health, condition=Condition.WORN, reason=reason, errors=errors, driver=driver)
    if health.condition is Condition.LOST:
        return replace(health, errors=errors)
    reason = f"a runner ended with an error of the device, which is tested: {text}"
    return replace(health, condition=Condition.UNCHECKED, reason=reason, errors=errors)


def excuse(health: DeviceHealth, replica: str) -> DeviceHealth:
    """Forget the error that ended a replica: a request was to blame."""
    errors = tuple(one for one in health.errors if one.replica != replica)
    if errors == health.errors:
        return health
    if health.condition is Condition.WORN and not _are_the_devices(errors):
        return DeviceHealth(reason="a request ended the runners, and the device is tested", errors=errors)
    return replace(health, errors=errors)


def _are_the_devices(errors: Sequence[RunnerError]) -> bool:
    """Return True if the device must be the cause, because no single model explains the errors."""
    of_one_model = max(Counter(one.model_digest for one in errors).values(), default=0)
    return len(errors) >= ERRORS_MAX and len(errors) - of_one_model >= OTHER_ERRORS_MAX


def see_driver(health: DeviceHealth, driver: str) -> DeviceHealth:
    """Require a check of an excluded device once the driver's version changes."""
    if health.condition in (Condition.WORN, Condition.FAILED) and driver and driver != health.driver:
        return DeviceHealth(reason=f"it is tested with {driver}")
    return health


def see_time(health: DeviceHealth, *, now_unix_s: float) -> DeviceHealth:
    """Schedule a failed check again when its time has come."""
    if health.condition is Condition.FAILED and now_unix_s >= health.retry_at_unix_s:
        return replace(health, condition=Condition.UNCHECKED)
    return health


def reset(health: DeviceHealth) -> DeviceHealth:
    """Clear the state at an operator's request."""
    return (
        health
        if health.condition is Condition.BARRED
        else DeviceHealth(reason="it is tested because an operator asked")
    )
