"""Decide how many drafted tokens a decode call evaluates. Pure.

A call of more inputs takes longer, a right guess saves a call. What both are worth is measured: the time of calls by
their inputs, and the share of right guesses, which is counted for guesses that were not evaluated, too. So a drafter
that is wrong costs the time to ask it, and one that becomes right is noticed.
"""

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from common.spec.layout import DRAFTED_TOKENS_MAX

# Numbers of drafted tokens of one sequence. A few, so that calls are of few shapes.
DRAFT_SIZES = (1, 3, 7, DRAFTED_TOKENS_MAX)
# More sequences than this fill the call by themselves.
SEQUENCES_MAX = 4
_INPUTS_MAX = SEQUENCES_MAX + DRAFTED_TOKENS_MAX
# Each sequence of a call has to gain as much.
GAIN_MIN = 1.1
_SHARE_MIN = 1.0 - 1.0 / GAIN_MIN  # of right guesses; with fewer, guesses do not pay even if they take no time
_KEPT = 0.95  # by a sequence: about its last twenty tokens count
_KEPT_OF_ALL = 0.98  # by all sequences together
_FIRST_SEEN = 2.0  # tokens that the expectation at first counts as
_TIMES_MAX = 9  # durations of calls of one size
_TIMES_CALLS_MAX = 128  # calls after which a duration counts no more
# Calls without guesses: earned with each call; saved up at most (the loss of several large calls), and at least once
# all is spent (that of one).
EARNED = 0.01
ALLOWANCE_MAX, ALLOWANCE_MIN = 12.0, 4.0
# Right guesses of the first sequence at first, by the trust in them.
_FIRST_SHARES = (0.3, 0.5, 0.7)


class Acceptance:
    """Expected share of right guesses, by those of late."""

    __slots__ = ("_kept", "_right", "_seen")

    def __init__(self, share: float, *, kept: float = _KEPT) -> None:
        """`share`: expected at first. `kept`: of what was counted, with each further token."""
        self._kept = kept
        self._seen = _FIRST_SEEN
        self._right = _FIRST_SEEN * share

    def see(self, drafted: Sequence[int], said: Sequence[int]) -> None:
        """Compare a guess with the tokens that came; nothing counts behind a wrong one."""
        for guess, token_id in zip(drafted, said, strict=False):
            self._seen = self._seen * self._kept + 1
            self._right = self._right * self._kept + (guess == token_id)
            if guess != token_id:
                return

    @property
    def share(self) -> float:
        """Between 0 and 1. Half a standard error less than was counted, as guesses too many cost more than too few."""
        return max(0.0, self._right / self._seen - self._half_error)

    @property
    def hoped(self) -> float:
        """Half a standard error more than was counted: what makes a drafter worth asking that is hardly known."""
        return min(1.0, self._right / self._seen + self._half_error)

    @property
    def _half_error(self) -> float:
        share = self._right / self._seen
        return 0.5 * math.sqrt(max(0.0, share * (1.0 - share)) / self._seen)


class Experience:
    """Shares of right guesses over all sequences, by kind of drafter and trust: what a new sequence expects."""

    def __init__(self) -> None:
        """No guess was seen."""
        self._shares: dict[tuple[type, int], Acceptance] = {}

    def of(self, kind: type, trust: int) -> Acceptance:
        """Return the share of guesses of a kind of drafter; `trust`: see `Drafter`."""
        found = self._shares.get((kind, trust))
        if found is None:
            found = self._shares[kind, trust] = Acceptance(_FIRST_SHARES[trust], kept=_KEPT_OF_ALL)
        return found


class CallTimes:
    """Durations of recent calls, by their inputs.

    The shortest of them counts: other work on the machine only lengthens calls. What was seen longer ago counts no
    more, so that a call of one input, and sizes that seemed not to pay, are measured again.
    """

    def __init__(self) -> None:
        """No call was seen."""
        self._calls = 0
        self._seen: dict[int, deque[tuple[int, float]]] = {}  # number of the call, and its duration
        self._several: deque[tuple[int, float]] = deque(maxlen=_TIMES_MAX)  # inputs, two or more, and duration

    def see(self, inputs: int, seconds: float) -> None:
        """Learn from a call."""
        self._calls += 1
        if inputs > 1:
            self._several.append((inputs, seconds))
        if inputs <= _INPUTS_MAX:
            self._seen.setdefault(inputs, deque(maxlen=_TIMES_MAX)).append((self._calls, seconds))

    def seconds(self, inputs: int, *, like: int) -> float:
        """Return the expected duration, at least that of `like` inputs; 0: not known.

        Where no call of this size was seen lately, each input more takes as long as in calls of other sizes.
        """
        least = self._shortest(like)
        if not least or inputs == like:
            return least
        known = self._shortest(inputs)
        if not known:
            larger = [(duration - least) / (size - like) for size, duration in self._several if size > like]
            if not larger:
                return 0.0
            known = least + (inputs - like) * min(larger)
        return max(least, known)

    def _shortest(self, inputs: int) -> float:
        oldest = self._calls - _TIMES_CALLS_MAX
        return min([seconds for call, seconds in self._seen.get(inputs, ()) if call > oldest], default=0.0)


class Allowance:
    """Time that guesses may lose, in calls without guesses: a hundredth of those made, and what guesses saved.

    So guesses cost an engine a hundredth of its time at most, besides the allowance that it begins with. Once it is
    spent, it is saved up again: asking drafters alone may take a hundredth, and would leave nothing for a guess.
    """

    def __init__(self) -> None:
        """Begin with enough for a large call of wrong guesses."""
        self.calls = ALLOWANCE_MIN
        self.has_some = True

    def earn(self, calls: float) -> None:
        """Add calls that were saved, or take away those that were lost."""
        self.calls = min(ALLOWANCE_MAX, self.calls + calls)
        self.has_some = self.calls > (0.0 if self.has_some else ALLOWANCE_MIN)


class Offer(NamedTuple):
    """A guess for one sequence: its tokens, and the share that is expected to be right."""

    tokens: Sequence[int]
    share: float


def choose_drafts(
    offers: Sequence[Offer], *, seconds: Callable[[int], float], inputs_max: int, lost_calls_max: float = ALLOWANCE_MAX
) -> tuple[int, ...]:
    """Return how many tokens of each offer are evaluated: all 0, unless every sequence gains by it.

    Args:
        offers: of the sequences of a call, one of which each has one input at least.
        seconds: duration of a call by its inputs, no less for more; 0: not known.
        inputs_max: most inputs of the call.
        lost_calls_max: calls without drafts that the call may last longer than one of them.
    """
    best: tuple[int, ...] = (0,) * len(offers)
    if any(offer.share < _SHARE_MIN for offer in offers):
        return best
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
        if not call_s or call_s - alone_s > lost_calls_max * alone_s:
            break
        expected = min(1.0 + right_tokens(offer.share, count) for offer, count in zip(offers, counts, strict=True))
        gain = expected * alone_s / call_s
        if gain > gain_best:
            gain_best, best = gain, counts
    return best


def choose_length(
    share: float, *, sequences: int, token_s: float, seconds: Callable[[int], float], inputs_max: int
) -> int:
    """Return how many tokens a drafter that takes time should guess for each sequence of a call; 0: it does not pay.

    Args:
        share: of its guesses that is expected to be right.
        sequences: of the call, each of which is guessed for.
        token_s: time of a guessed token.
        seconds: as of `choose_drafts`.
        inputs_max: likewise.
    """
    best, gain_best = 0, GAIN_MIN
    alone_s = seconds(sequences)
    for size in DRAFT_SIZES:
        if sequences * size > DRAFTED_TOKENS_MAX or sequences * (1 + size) > inputs_max:
            break
        call_s = seconds(sequences * (1 + size))
        if not call_s or not alone_s:
            break
        gain = (1.0 + right_tokens(share, size)) * alone_s / (call_s + sequences * size * token_s)
        if gain > gain_best:
            gain_best, best = gain, size
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
    return float(count) if share >= 1.0 else share * (1.0 - share**count) / (1.0 - share)
