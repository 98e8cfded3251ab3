"""Restart delays of a process that died: its uptime in, the time to wait out. Pure."""

from dataclasses import dataclass

DELAY_S_FIRST = 0.5
DELAY_S_MAX = 30.0
# A process that lived as long as the longest wait is not caught in a crash loop: its next death counts as the first.
STABLE_AFTER_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartState:
    """Deaths in a row, none of them after a stable life, and how many there were in all."""

    deaths_in_a_row: int = 0
    deaths_total: int = 0

    @property
    def delay_s(self) -> float:
        """The delay before the next start: it doubles with each death in a row, up to a limit."""
        if self.deaths_in_a_row == 0:
            return 0.0
        # Beyond 2**16 the limit has long been reached; the bound keeps the power small.
        return min(DELAY_S_MAX, DELAY_S_FIRST * 2.0 ** min(self.deaths_in_a_row - 1, 16))


def after_death(state: RestartState, *, uptime_s: float) -> RestartState:
    """Count a death of a process that lived for `uptime_s`."""
    in_a_row = 1 if uptime_s >= STABLE_AFTER_S else state.deaths_in_a_row + 1
    return RestartState(deaths_in_a_row=in_a_row, deaths_total=state.deaths_total + 1)
