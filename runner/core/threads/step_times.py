"""Time limits of an engine's steps and waits: a device that hangs blocks the engine thread, and nothing else. Pure."""

from typing import NamedTuple

from runner.core.sequence.batching import UNKNOWN_COST, CallCost

FIRST_S = 60.0  # expected before any call has ended: weights may come from a slow disk
HUNG_TIMES = 8.0  # of the expected duration
HUNG_S_MIN = 10.0
HUNG_S_MIN_CPU = 60.0  # processors do not hang, they are only taken by others
BEAT_S = 2.0  # a thread that waits for work wakes this often, which shows that it is not blocked
WAIT_LIMIT_S = 10.0  # after which a wait counts as hung: no computation is part of it, with or without a device
LOOK_INTERVAL_S = 0.5
_NEWEST_SHARE = 0.25  # of the newest call in what is expected of the next one


class EngineStep(NamedTuple):
    """The step of an engine thread. `number` is odd while a step runs and even while the thread waits for work.

    It changes with each step, and every BEAT_S while there is none; unchanged for `limit_s` means a blocked thread.
    """

    number: int
    limit_s: float

    def begun(self, limit_s: float) -> "EngineStep":
        """Return the step that begins now."""
        return EngineStep(self.number + 1, limit_s)

    def ended(self) -> "EngineStep":
        """Return the wait after this step."""
        return EngineStep(self.number + 1, WAIT_LIMIT_S)


class StepTimes:
    """Durations of past calls. Those of 2^n to 2^(n+1) - 1 inputs count as equally large."""

    def __init__(self, *, on_devices: bool) -> None:
        self.limit_s_min = HUNG_S_MIN if on_devices else HUNG_S_MIN_CPU
        self._calls: dict[int, tuple[float, float]] = {}  # averages of inputs and seconds, by size

    def see(self, inputs: int, seconds: float) -> None:
        """Learn from a call that has ended."""
        size = inputs.bit_length()
        inputs_before, seconds_before = self._calls.get(size, (inputs, seconds))
        self._calls[size] = (
            inputs_before + _NEWEST_SHARE * (inputs - inputs_before),
            seconds_before + _NEWEST_SHARE * (seconds - seconds_before),
        )

    def limit_s(self, inputs: int) -> float:
        """Return the duration after which a step with such a call counts as hung."""
        return max(self.limit_s_min, HUNG_TIMES * self._expected_s(inputs.bit_length()))

    def cost(self) -> CallCost:
        """Return the line through the smallest and the largest calls."""
        if len(self._calls) < 2:  # a line needs two
            return UNKNOWN_COST
        (few, few_s), (many, many_s) = self._calls[min(self._calls)], self._calls[max(self._calls)]
        token_s = max(0.0, (many_s - few_s) / (many - few))
        return CallCost(fixed_s=max(0.0, few_s - few * token_s), token_s=token_s)

    def _expected_s(self, size: int) -> float:
        """Take calls of this size, else of the next larger one, else the largest, as if each input took its share."""
        known = min((one for one in self._calls if one >= size), default=max(self._calls, default=None))
        if known is None:
            return FIRST_S
        return self._calls[known][1] * float(1 << max(0, size - known))


class StepAge:
    """Age of the current step or wait. A look counts for two intervals at most: a stopped process has not hung."""

    def __init__(self) -> None:
        self._number = 0
        self._age_s = 0.0

    def look(self, step: EngineStep, *, elapsed_s: float) -> float:
        """Return the age of a step or wait that has exceeded its limit, else 0; `elapsed_s`: since the last look."""
        if step.number != self._number:
            self._number, self._age_s = step.number, 0.0
        else:
            self._age_s += min(elapsed_s, 2 * LOOK_INTERVAL_S)
        return self._age_s if self._age_s > step.limit_s else 0.0
