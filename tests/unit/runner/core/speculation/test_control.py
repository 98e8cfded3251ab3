"""The number of drafted tokens in a call follows the time of calls and the share of right guesses."""

import itertools
import random
from collections.abc import Callable

import pytest

from common.spec.layout import DRAFTED_TOKENS_MAX
from runner.core.sequence.batching import CallCost
from runner.core.speculation.control import (
    DRAFT_SIZES,
    Acceptance,
    CallTimes,
    Offer,
    choose_drafts,
    paying_share,
    right_tokens,
)

GUESS = tuple(range(DRAFTED_TOKENS_MAX))
LINE = CallCost(fixed_s=0.046, token_s=0.009)


def call_s(inputs: int) -> float:
    """Duration of a call of a model of 1 billion parameters on 2 cores: 55, 97 and 186 ms for 1, 4 and 16 inputs."""
    known = [(1, 0.055), (4, 0.097), (16, 0.186)]
    for (few, few_s), (many, many_s) in itertools.pairwise(known):
        if inputs <= many:
            return few_s + (inputs - few) * (many_s - few_s) / (many - few)
    return 0.186 + (inputs - 16) * 0.0085


def chosen(*shares: float, seconds: Callable[[int], float] = call_s, inputs_max: int = 64) -> tuple[int, ...]:
    return choose_drafts([Offer(GUESS, share) for share in shares], seconds=seconds, inputs_max=inputs_max)


def test_the_more_guesses_are_right_the_more_are_evaluated() -> None:
    counts = [chosen(share)[0] for share in (0.0, 0.1, 0.6, 0.75, 0.9, 1.0)]
    assert counts == sorted(counts)
    assert (counts[0], counts[1], counts[-1]) == (0, 0, DRAFTED_TOKENS_MAX)
    assert set(counts) <= {0, *DRAFT_SIZES}


def test_nothing_is_evaluated_while_the_time_of_a_call_is_unknown() -> None:
    assert chosen(1.0, seconds=lambda _: 0.0) == (0,)


def test_a_device_whose_calls_take_as_long_as_their_inputs_gains_nothing() -> None:
    assert chosen(0.9, seconds=float) == (0,)


def test_no_sequence_waits_for_the_drafts_of_another() -> None:
    assert chosen(1.0, 0.0) == (0, 0)
    assert min(chosen(0.95, 0.95)) > 0


def test_drafts_stay_within_the_inputs_of_a_call() -> None:
    assert chosen(1.0, inputs_max=4) == (3,)
    for sequences in (1, 2, 3, 4):
        assert sum(chosen(*[1.0] * sequences)) <= DRAFTED_TOKENS_MAX


def test_a_short_guess_is_evaluated_in_a_size_that_calls_have() -> None:
    assert choose_drafts([Offer(GUESS[:5], 1.0)], seconds=call_s, inputs_max=64) == (3,)


def test_the_share_that_pays_is_the_smallest_one_with_drafts() -> None:
    share = paying_share(seconds=call_s, inputs_max=64)
    assert share is not None
    assert chosen(share)[0] > 0
    assert chosen(share - 0.01) == (0,)
    assert paying_share(seconds=float, inputs_max=64) is None
    assert paying_share(seconds=lambda _: 0.0, inputs_max=64) is None


def test_times_of_sizes_that_were_not_seen_follow_the_line_of_all_calls() -> None:
    times = CallTimes()
    assert times.seconds(1, like=1, line=LINE) == 0.0
    times.see(1, 0.11)
    assert times.seconds(4, like=1, line=LINE) == pytest.approx(0.11 * (0.046 + 4 * 0.009) / (0.046 + 0.009))
    assert times.seconds(4, like=1, line=CallCost()) == 0.0
    times.see(4, 0.15)
    assert times.seconds(4, like=1, line=LINE) == 0.15


def test_one_slow_call_does_not_change_what_is_expected() -> None:
    times = CallTimes()
    for seconds in (0.1, 0.1, 5.0):
        times.see(1, seconds)
    assert times.seconds(1, like=1, line=LINE) == 0.1


def answer_s(shares: list[float], *, speculates: bool) -> list[float]:
    """Return when each token of an answer is there, with a drafter that is right at these shares by place."""
    chance = random.Random(5)
    times, acceptance = CallTimes(), Acceptance(2)
    now_s, ends = 0.0, list[float]()
    while len(ends) < len(shares):
        right = [chance.random() < share for share in shares[len(ends) :][:DRAFTED_TOKENS_MAX]]
        drafted = 0
        if speculates and right:
            offer = Offer(GUESS[: len(right)], acceptance.share)
            (drafted,) = choose_drafts(
                [offer], seconds=lambda inputs: times.seconds(inputs, like=1, line=LINE), inputs_max=64
            )
        accepted = next((at for at, hit in enumerate(right[:drafted]) if not hit), min(drafted, len(right)))
        acceptance.see(GUESS, [token if hit else -1 for token, hit in zip(GUESS, right, strict=False)][: accepted + 1])
        now_s += call_s(1 + drafted)
        times.see(1 + drafted, call_s(1 + drafted))
        ends += [now_s] * (accepted + 1)
    return ends[: len(shares)]


def test_a_drafter_that_is_right_at_nine_of_ten_doubles_the_speed() -> None:
    shares = [0.9] * 600
    assert answer_s(shares, speculates=False)[-1] >= 2.0 * answer_s(shares, speculates=True)[-1]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.3])
def test_a_drafter_that_is_mostly_wrong_costs_next_to_nothing(share: float) -> None:
    shares = [share] * 600
    assert answer_s(shares, speculates=True)[-1] <= answer_s(shares, speculates=False)[-1] / 0.98


def test_acceptance_that_collapses_costs_little_from_50_tokens_later() -> None:
    shares = [0.9] * 300 + [0.05] * 300
    with_drafts, without = answer_s(shares, speculates=True), answer_s(shares, speculates=False)
    assert with_drafts[-1] - with_drafts[350] <= 1.02 * (without[-1] - without[350])


def test_shares_add_up_to_the_tokens_that_are_expected() -> None:
    assert right_tokens(0.5, 3) == pytest.approx(0.5 + 0.25 + 0.125)
    assert right_tokens(1.0, 7) == pytest.approx(7.0)
