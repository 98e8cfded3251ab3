"""Whether a device may be used: what was seen of it in, its state out. Pure.

| state | how it is reached | how it is left |
|---|---|---|
| unchecked | listed for the first time or again, or a runner ended with an error of the device | its check |
| ok | its check passed | any other row |
| lost | no longer listed | listed again: unchecked |
| failed | its check failed | the next check, ever later; an operator; another driver |
| worn | three errors of runners within ten minutes | an operator; another driver |
| barred | the configuration says so | never |
"""

from dataclasses import dataclass, replace
from enum import StrEnum

ERRORS_MAX = 3
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
    """How a check ended. `exit_code` is negative for a signal, None where the process did not end by itself."""

    reason: str
    exit_code: int | None = None
    last_line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """One device. Moments are wall-clock seconds since 1970, because they outlive the host process."""

    condition: Condition = Condition.UNCHECKED
    reason: str = "it has not been tested yet"
    errors_at_unix_s: tuple[float, ...] = ()
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


def barred(reason: str) -> Health:
    """A device that the configuration leaves out."""
    return Health(condition=Condition.BARRED, reason=reason)


def pass_check(health: Health) -> Health:
    """It computes. Errors of runners stay in mind: a device may pass every check and still end its runners."""
    if health.condition in (Condition.WORN, Condition.BARRED):
        return health
    return Health(condition=Condition.OK, reason="", errors_at_unix_s=health.errors_at_unix_s)


def fail_check(health: Health, failure: CheckFailure, *, now_unix_s: float, driver: str) -> Health:
    """It does not."""
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


def lose(health: Health, reason: str) -> Health:
    """It is no longer listed."""
    if health.condition in (Condition.BARRED, Condition.WORN, Condition.LOST):
        return health
    return replace(health, condition=Condition.LOST, reason=reason)


def find_again(health: Health) -> Health:
    """It is listed; nothing changes unless it was lost."""
    if health.condition is not Condition.LOST:
        return health
    return replace(health, condition=Condition.UNCHECKED, reason="it came back and is tested", failures=0)


def doubt(health: Health, reason: str) -> Health:
    """Something happened after which it has to show that it works."""
    return replace(health, condition=Condition.UNCHECKED, reason=reason) if health.condition is Condition.OK else health


def see_error(health: Health, *, now_unix_s: float, driver: str, text: str) -> Health:
    """A runner ended and named the device."""
    if health.condition in (Condition.BARRED, Condition.WORN):
        return health
    recent = tuple(at_s for at_s in health.errors_at_unix_s if now_unix_s - at_s < ERROR_WINDOW_S)
    errors = (*recent, now_unix_s)[-ERRORS_MAX:]
    if len(errors) >= ERRORS_MAX:
        reason = f"{ERRORS_MAX} runners ended within {ERROR_WINDOW_S / 60:g} min with an error of the device: {text}"
        return replace(health, condition=Condition.WORN, reason=reason, errors_at_unix_s=errors, driver=driver)
    if health.condition is Condition.LOST:
        return replace(health, errors_at_unix_s=errors)
    reason = f"a runner ended with an error of the device, which is tested: {text}"
    return replace(health, condition=Condition.UNCHECKED, reason=reason, errors_at_unix_s=errors)


def see_driver(health: Health, driver: str) -> Health:
    """Another driver version gives an excluded device another chance."""
    if health.condition in (Condition.WORN, Condition.FAILED) and driver and driver != health.driver:
        return Health(reason=f"it is tested with {driver}")
    return health


def see_time(health: Health, *, now_unix_s: float) -> Health:
    """A failed check is repeated when its time has come."""
    if health.condition is Condition.FAILED and now_unix_s >= health.retry_at_unix_s:
        return replace(health, condition=Condition.UNCHECKED)
    return health


def reset(health: Health) -> Health:
    """An operator wants it used again."""
    return health if health.condition is Condition.BARRED else Health(reason="it is tested because an operator asked")
