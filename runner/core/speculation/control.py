"""Decide how many drafted tokens a decode call evaluates. Pure.

A call of more inputs takes longer, a right guess saves a call. What both are worth is measured: the time of calls by
their inputs, and the share of right guesses, which is counted for guesses that were not evaluated, too. So a drafter
that is wrong costs the time to ask it, and one that becomes right is noticed.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate, repeat
from operator import mul
from typing import NamedTuple

from common.spec.layout import DRAFTED_TOKENS_MAX
from runner.core.sequence.batching import CallCost

# Numbers of drafted tokens of one sequence. A few, so that calls are of few shapes.
DRAFT_SIZES = (1, 3, 7, DRAFTED_TOKENS_MAX)
# More sequences than this fill the call by themselves.
SEQUENCES_MAX = 4
# Each sequence of a call has to gain as much.
GAIN_MIN = 1.1
_KEPT = 0.9  # of what was counted, with each further token
_TIMES_MAX = 9  # durations of calls of one size
_TIMES_CALLS_MAX = 1024  # calls after which a size that was not seen is unknown again
# Right guesses at first, by the trust in them.
_FIRST_SHARES = (0.3, 0.5, 0.7)


class Acceptance:
    """Share of a drafter's tokens that were right, over about the last ten."""

    __slots__ = ("_right", "_seen")

    def __init__(self, trust: int) -> None:
        """`trust`: see `Drafter`."""
        self._seen = 2.0
        self._right = self._seen * _FIRST_SHARES[trust]

    def see(self, drafted: Sequence[int], said: Sequence[int]) -> None:
        """Compare a guess with the tokens that came; nothing counts behind a wrong one."""
        for guess, token_id in zip(drafted, said, strict=False):
            self._seen = self._seen * _KEPT + 1
            self._right = self._right * _KEPT + (guess == token_id)
            if guess != token_id:
                return

    @property
    def share(self) -> float:
        """Between 0 and 1."""
        return self._right / self._seen


class CallTimes:
    """Durations of calls without prompts, by their inputs."""

    def __init__(self) -> None:
        """No call was seen."""
        self._calls = 0
        self._seen: dict[int, tuple[int, deque[float]]] = {}  # the newest call, and durations

    def see(self, inputs: int, seconds: float) -> None:
        """Learn from a call."""
        self._calls += 1
        _, durations = self._seen.get(inputs, (0, deque[float](maxlen=_TIMES_MAX)))
        durations.append(seconds)
        self._seen[inputs] = (self._calls, durations)

    def seconds(self, inputs: int, *, like: int, line: CallCost) -> float:
        """Return the expected duration; 0: not known.

        Where no call of this size was seen lately, it is that of `like` inputs, lengthened as `line` says.
        """
        known = self._median(inputs)
        if known or inputs == like:
            return known
        if not line.token_s:
            return 0.0
        return self._median(like) * (line.fixed_s + inputs * line.token_s) / (line.fixed_s + like * line.token_s)

    def _median(self, inputs: int) -> float:
        newest, durations = self._seen.get(inputs, (0, ()))
        if not durations or self._calls - newest > _TIMES_CALLS_MAX:
            return 0.0
        return sorted(durations)[len(durations) // 2]


class Offer(NamedTuple):
    """A guess for one sequence: its tokens, and the share that is expected to be right."""

    tokens: Sequence[int]
    share: float


def choose_drafts(offers: Sequence[Offer], *, seconds: Callable[[int], float], inputs_max: int) -> tuple[int, ...]:
    """Return how many tokens of each offer are evaluated: all 0, unless every sequence gains by it.

    Args:
        offers: of the sequences of a call, one of which each has one input at least.
        seconds: duration of a call by its inputs; 0: not known.
        inputs_max: most inputs of the call.
    """
    best: tuple[int, ...] = (0,) * len(offers)
    alone_s = seconds(len(offers))
    if not alone_s:
        return best
    gain_best = GAIN_MIN
    before: tuple[int, ...] = ()
    for most in DRAFT_SIZES:
        counts = tuple(
            [max((size for size in DRAFT_SIZES if size <= min(most, len(offer.tokens))), default=0) for offer in offers]
        )
        drafted = sum(counts)
        if drafted > DRAFTED_TOKENS_MAX or len(offers) + drafted > inputs_max or counts == before:
            break
        before = counts
        call_s = seconds(len(offers) + drafted)
        if not call_s:
            break
        expected = min(1.0 + right_tokens(offer.share, count) for offer, count in zip(offers, counts, strict=True))
        gain = expected * alone_s / call_s
        if gain > gain_best:
            gain_best, best = gain, counts
    return best


def paying_share(*, seconds: Callable[[int], float], inputs_max: int) -> float | None:
    """Return the smallest share of right guesses, in steps of a hundredth, at which one sequence gets drafts, if any.

    Args:
        seconds: as of `choose_drafts`.
        inputs_max: likewise.
    """
    guess = range(DRAFTED_TOKENS_MAX)

    def pays(percent: int) -> bool:
        return any(choose_drafts([Offer(guess, percent / 100)], seconds=seconds, inputs_max=inputs_max))

    smallest = bisect_left(range(101), True, key=pays)  # more right guesses never gain less
    return smallest / 100 if smallest <= 100 else None


def right_tokens(share: float, count: int) -> float:
    """Return how many of `count` drafted tokens are expected to be right, one after the other."""
    return sum(accumulate(repeat(share, count), mul), 0.0)
