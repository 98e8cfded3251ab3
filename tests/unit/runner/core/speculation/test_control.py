"""The number of drafted tokens in a call follows the time of calls and the share of right guesses."""

import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from common.spec.layout import DRAFTED_TOKENS_MAX
from runner.core.speculation.control import (
    ALLOWANCE_MIN,
    DRAFT_SIZES,
    EARNED,
    Acceptance,
    Allowance,
    CallTimes,
    Experience,
    Offer,
    choose_drafts,
    choose_length,
    paying_share,
    right_tokens,
)

GUESS = tuple(range(DRAFTED_TOKENS_MAX))
Costs = Callable[[int], float]
# Seconds by inputs, measured on 2 cores: a model of 1 billion parameters, and one of 57 million.
LARGE = [(1, 0.055), (4, 0.097), (16, 0.186), (512, 4.4)]
ASKING_S = 0.00008  # of drafters whose guesses are not evaluated, likewise
SMALL = [(1, 0.0059), (2, 0.0125), (4, 0.0155), (8, 0.0199), (16, 0.03), (512, 0.5)]


def costs(known: list[tuple[int, float]]) -> Costs:
    """Durations between those that were measured."""

    def seconds(inputs: int) -> float:
        for (few, few_s), (many, many_s) in itertools.pairwise(known):
            if inputs <= many:
                return few_s + (inputs - few) * (many_s - few_s) / (many - few)
        raise AssertionError("more inputs than were measured")

    return seconds


call_s = costs(LARGE)


def chosen(*shares: float, seconds: Costs = call_s, inputs_max: int = 64) -> tuple[int, ...]:
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


def test_a_size_that_was_not_seen_takes_for_each_input_what_other_sizes_do() -> None:
    times = CallTimes()
    assert times.seconds(1, like=1) == 0.0
    times.see(1, 0.11)
    assert times.seconds(4, like=1) == 0.0
    times.see(11, 0.31)
    assert times.seconds(4, like=1) == pytest.approx(0.11 + 3 * 0.02)
    times.see(4, 0.15)
    assert times.seconds(4, like=1) == 0.15


def test_slow_calls_do_not_change_what_is_expected_and_more_inputs_never_take_less() -> None:
    times = CallTimes()
    for seconds in (0.1, 0.1, 5.0):
        times.see(1, seconds)
    assert times.seconds(1, like=1) == 0.1
    times.see(2, 0.05)
    assert times.seconds(2, like=1) == 0.1


def test_durations_are_forgotten() -> None:
    times = CallTimes()
    times.see(1, 0.1)
    for _ in range(128):
        times.see(8, 0.2)
    assert times.seconds(1, like=1) == 0.0
    times.see(1, 0.3)
    assert times.seconds(1, like=1) == 0.3


def test_a_sequence_expects_what_others_have_seen() -> None:
    experience = Experience()
    before = experience.of(Experience, 2).share
    for _ in range(50):
        experience.of(Experience, 2).see([1], [2])
    assert Acceptance(experience.of(Experience, 2).share).share < 0.1 < before
    assert experience.of(Experience, 1).share > 0.1


def answers_s(
    shares: list[float], seconds: Costs, *, speculates: bool, seed: int = 5, answers: int = 4, slow: float = 0.1
) -> list[float]:
    """Return when each token of the last of some answers is there.

    The drafter is right at these shares by place. A share of calls, `slow`, takes longer than it should.
    """
    chance, noise = random.Random(seed), random.Random(seed)
    times, experience, allowance = CallTimes(), Experience(), Allowance()
    alone_s = seconds(1)
    ends: list[float] = []
    for _ in range(answers):
        acceptance, now_s, ends = Acceptance(experience.of(Experience, 2).share), 0.0, []
        times.see(23, seconds(23))  # the prompt
        while len(ends) < len(shares):
            right = [chance.random() < share for share in shares[len(ends) :][:DRAFTED_TOKENS_MAX]]
            drafted = 0
            if asks := speculates and allowance.has_some:
                now_s += ASKING_S
                allowance.earn(-ASKING_S / alone_s)
                offer = Offer(GUESS[: len(right)], acceptance.share)
                known_s = partial(times.seconds, like=1)
                (drafted,) = choose_drafts([offer], seconds=known_s, inputs_max=64, lost_calls_max=allowance.calls)
            accepted = next((at for at, hit in enumerate(right[:drafted]) if not hit), drafted)
            said = [token if hit else -1 for token, hit in zip(GUESS, right, strict=False)][: accepted + 1]
            for known in (acceptance, experience.of(Experience, 2)) if asks else ():
                known.see(GUESS, said)
            taken_s = seconds(1 + drafted) * (1.0 + (noise.random() < slow) * noise.expovariate(1.0))
            now_s += taken_s
            times.see(1 + drafted, taken_s)
            allowance.earn(EARNED + accepted + (1.0 - seconds(1 + drafted) / alone_s))
            ends += [now_s] * (accepted + 1)
    return ends[: len(shares)]


def ratio(shares: list[float], seconds: Costs) -> float:
    """Tokens/s with drafts over those without, of several runs together."""
    runs = range(8)
    without = sum(answers_s(shares, seconds, speculates=False, seed=seed)[-1] for seed in runs)
    return without / sum(answers_s(shares, seconds, speculates=True, seed=seed)[-1] for seed in runs)


def test_a_drafter_that_is_right_at_nine_of_ten_doubles_the_speed() -> None:
    assert ratio([0.9] * 200, call_s) >= 2.0
    assert ratio([0.9] * 200, costs(SMALL)) >= 1.4


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.3, 0.5])
@pytest.mark.parametrize("known", [LARGE, SMALL], ids=["1b", "57m"])
def test_a_drafter_that_is_often_wrong_costs_next_to_nothing(share: float, known: list[tuple[int, float]]) -> None:
    assert ratio([share] * 100, costs(known)) >= 0.98


@pytest.mark.parametrize("known", [LARGE, SMALL], ids=["1b", "57m"])
@pytest.mark.parametrize("right_tokens_in_a_row", [0, 2, 5, 20])
@pytest.mark.parametrize("wrong_tokens_in_a_row", [1, 10, 40])
def test_guesses_never_cost_more_than_a_hundredth_of_the_time(
    known: list[tuple[int, float]], right_tokens_in_a_row: int, wrong_tokens_in_a_row: int
) -> None:
    """Also against a text that changes as soon as the controller trusts its drafter."""
    seconds = costs(known)
    shares = ([1.0] * right_tokens_in_a_row + [0.0] * wrong_tokens_in_a_row) * (4000 // (wrong_tokens_in_a_row + 20))
    taken_s = {
        drafts: answers_s(shares, seconds, speculates=drafts, answers=1, slow=0.0)[-1] for drafts in (False, True)
    }
    lost_calls = (taken_s[True] - taken_s[False]) / seconds(1)
    assert lost_calls <= EARNED * len(shares) + ALLOWANCE_MIN


def test_acceptance_that_collapses_costs_little_from_50_tokens_later() -> None:
    shares = [0.9] * 200 + [0.05] * 200
    later_s = {
        speculates: sum(
            ends[-1] - ends[250]
            for seed in range(8)
            for ends in [answers_s(shares, call_s, speculates=speculates, seed=seed, answers=1)]
        )
        for speculates in (False, True)
    }
    assert later_s[True] <= 1.02 * later_s[False]


def test_shares_add_up_to_the_tokens_that_are_expected() -> None:
    assert right_tokens(0.5, 3) == pytest.approx(0.5 + 0.25 + 0.125)
    assert right_tokens(1.0, 7) == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("share", "token_s", "sequences", "count"),
    [
        (0.9, 0.0, 1, 15),  # calls of any size take as long, and guesses nothing
        (0.9, 0.1, 1, 7),
        (0.9, 1.0, 1, 0),  # as long as the target's own tokens
        (0.0, 0.001, 1, 0),
        (0.9, 0.05, 4, 3),  # each is guessed for in turn, and the drafts of a call are bounded
        (0.9, 0.5, 4, 0),
    ],
)
def test_a_drafter_that_takes_time_guesses_as_many_as_pay(
    share: float, token_s: float, sequences: int, count: int
) -> None:
    found = choose_length(share, sequences=sequences, token_s=token_s, seconds=lambda _: 1.0, inputs_max=64)
    assert found == count


def test_nothing_pays_before_calls_were_timed_or_beyond_the_room_of_one() -> None:
    asked: dict[str, Any] = {"sequences": 1, "token_s": 0.001}
    assert choose_length(0.9, seconds=lambda _: 0.0, inputs_max=64, **asked) == 0
    assert choose_length(0.9, seconds=lambda _: 1.0, inputs_max=4, **asked) == 3
