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
# Calls that generate and evaluate prompts take turns where doing both in one takes so much longer than two calls.
MIXED_RATIO_MAX = 1.1
MIXED_CALLS_MIN = 4  # that are seen before that is decided: one may be long by chance
TURNS_MAX = 128  # before calls with both show again how long they take
LINE_INPUTS_MIN = 16  # of a prompt's calls that show what a call costs: each input of smaller ones takes longer


_Averages = dict[int, tuple[float, float]]  # of inputs and seconds, by size


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
        self._calls: _Averages = {}
        # Of calls that only evaluate prompts, and only generate.
        self._prompts: _Averages = {}
        self._generated: _Averages = {}
        self._mixed_ratio = 0.0  # of one call with both to two
        self._mixed_calls = 0
        self._turns = 0

    def see(self, inputs: int, seconds: float, *, prompt_inputs: int = 0) -> None:
        """Learn from a call that has ended; `prompt_inputs` of its inputs are prompts'."""
        _learn(self._calls, inputs, seconds)
        if prompt_inputs == inputs:
            _learn(self._prompts, inputs, seconds)
        elif not prompt_inputs:
            _learn(self._generated, inputs, seconds)
        else:
            apart_s = (_seconds(self._prompts, prompt_inputs), _seconds(self._generated, inputs - prompt_inputs))
            if all(apart_s):
                self._mixed_calls += 1
                share = max(_NEWEST_SHARE, 1 / self._mixed_calls)
                self._mixed_ratio += share * (seconds / sum(apart_s) - self._mixed_ratio)

    def take_turns(self) -> bool:
        """Return True if generating sequences and prompts that both wait are better evaluated in calls of their own.

        On a processor, fused attention goes over the cells of every sequence for each tile of 64 inputs that it has a
        part of: 3 streams and a prompt of 125 tokens took 325 ms together, and 32 and 192 ms apart (Gemma 3 270M).
        """
        if self._mixed_calls < MIXED_CALLS_MIN or self._mixed_ratio <= MIXED_RATIO_MAX:
            return False
        self._turns += 1
        if self._turns > TURNS_MAX:
            self._turns = self._mixed_calls = 0
        return self._mixed_calls > 0

    def limit_s(self, inputs: int) -> float:
        """Return the duration after which a step with such a call counts as hung."""
        return max(self.limit_s_min, HUNG_TIMES * self.expected_s(inputs))

    def expected_s(self, inputs: int) -> float:
        """Return how long a call of so many inputs takes.

        Calls of this size count, else of the next larger one, else the largest, as if each input took its share.
        """
        size = inputs.bit_length()
        if size in self._calls:
            return self._calls[size][1]
        known = min((one for one in self._calls if one >= size), default=max(self._calls, default=None))
        if known is None:
            return FIRST_S
        return self._calls[known][1] * float(1 << max(0, size - known))

    def cost(self) -> CallCost:
        """Return the line through the smallest and the largest calls, of prompts where they are known."""
        prompts = {size: call for size, call in self._prompts.items() if call[0] >= LINE_INPUTS_MIN}
        # Two sizes next to each other make no line: a tenth more for one of them would turn it round.
        calls = prompts if max(prompts, default=0) > min(prompts, default=0) + 1 else self._calls
        if len(calls) < 2:  # a line needs two
            return UNKNOWN_COST
        (few, few_s), (many, many_s) = calls[min(calls)], calls[max(calls)]
        token_s = max(0.0, (many_s - few_s) / (many - few))
        return CallCost(fixed_s=max(0.0, few_s - few * token_s), token_s=token_s)


def _learn(calls: _Averages, inputs: int, seconds: float) -> None:
    size = inputs.bit_length()
    inputs_before, seconds_before = calls.get(size, (inputs, seconds))
    calls[size] = (
        inputs_before + _NEWEST_SHARE * (inputs - inputs_before),
        seconds_before + _NEWEST_SHARE * (seconds - seconds_before),
    )


def _seconds(calls: _Averages, inputs: int) -> float:
    """Return how long a call of so many inputs takes, by calls of its size or the next; 0: none was seen."""
    size = inputs.bit_length()
    known_inputs, known_s = calls.get(size) or calls.get(size + 1) or (1.0, 0.0)
    return known_s * inputs / known_inputs


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
