"""DRY: repetitions become unlikely."""

import random

import numpy as np
import pytest

from common.spec.sampling import Sampling
from runner.core.sequence.dry import Breakers, Dry, _suffix_lengths, find_breakers

VOCABULARY = 12


def lowered(earlier: list[int], breakers: Breakers | None = None, **fields: object) -> dict[int, float]:
    parameters = Sampling(**{"dry_multiplier": 1.0, "dry_base": 2.0, **fields})  # type: ignore[arg-type]
    logits = np.zeros(VOCABULARY, np.float32)
    Dry(parameters, breakers or {}, context_tokens=1000, earlier=earlier).apply(logits)
    return {token_id: float(value) for token_id, value in enumerate(logits) if value}


def test_the_token_that_would_lengthen_a_repetition_is_lowered() -> None:
    assert lowered([1, 2, 3, 4, 1, 2, 3]) == {4: -2.0}


def test_each_token_more_multiplies_by_the_base() -> None:
    assert lowered([1, 2, 3, 5, 9, 1, 2, 3]) == {5: -2.0}
    assert lowered([0, 1, 2, 3, 5, 9, 0, 1, 2, 3]) == {5: -4.0}


def test_what_is_short_is_allowed() -> None:
    assert lowered([1, 2, 9, 1]) == {}
    assert lowered([1, 2, 9, 1], dry_allowed_length=1) == {2: -1.0}


def test_the_longest_repetition_counts() -> None:
    assert lowered([1, 2, 5, 0, 1, 2, 5, 0, 1, 2]) == {5: -16.0}


def test_a_breaker_ends_a_repetition_and_is_never_lowered() -> None:
    assert lowered([1, 2, 3, 4, 1, 2, 3], breakers={2: ((),)}) == {}
    assert lowered([1, 2, 3, 4, 1, 2, 3], breakers={4: ((),)}) == {}
    assert lowered([1, 2, 3, 4, 1, 2, 3], breakers={1: ((2,),)}) == {}
    assert lowered([1, 2, 3, 4, 1, 2, 3], breakers={1: ((3,),)}) == {4: -2.0}


def test_only_the_last_tokens_count() -> None:
    assert lowered([1, 2, 3, 4, 1, 2, 3], dry_penalty_last_n=4) == {}
    assert lowered([1, 2, 3, 4, 1, 2, 3], dry_penalty_last_n=6) == {4: -1.0}


def test_penalties_stay_finite() -> None:
    assert np.isfinite(list(lowered([7] * 900, dry_multiplier=0.001, dry_base=1.75).values())).all()


@pytest.mark.parametrize("window", [3, 7, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_token_by_token_or_all_at_once_is_the_same(seed: int, window: int) -> None:
    draw = random.Random(seed)
    said = [draw.randrange(4) for _ in range(200)]
    parameters = Sampling(dry_multiplier=0.8, dry_allowed_length=1, dry_penalty_last_n=window)
    breakers: Breakers = {3: ((), (2,))}
    growing = Dry(parameters, breakers, context_tokens=500, earlier=said[:5])
    for at in range(5, len(said)):
        growing.accept(said[at])
        step, whole = np.zeros(VOCABULARY, np.float32), np.zeros(VOCABULARY, np.float32)
        growing.apply(step)
        Dry(parameters, breakers, context_tokens=500, earlier=said[: at + 1]).apply(whole)
        np.testing.assert_array_equal(step, whole)


@pytest.mark.parametrize("seed", range(20))
def test_lengths_are_those_of_comparing_token_by_token(seed: int) -> None:
    draw = random.Random(seed)
    tokens = [draw.randrange(2 + seed % 3) for _ in range(40)]
    expected = [0] * len(tokens)
    for at in range(len(tokens) - 1):
        while expected[at] <= at and tokens[at - expected[at]] == tokens[-1 - expected[at]]:
            expected[at] += 1
    assert _suffix_lengths(tokens) == expected


def test_breakers_are_found_inside_tokens_and_over_their_ends() -> None:
    pieces = [b"a", b"\n", b"x\ny", b"b:", b"e", b"end"]

    def tokenize(text: bytes) -> list[int]:
        return [pieces.index(bytes([byte])) for byte in text]

    assert find_breakers(["\n"], pieces=pieces, tokenize=tokenize) == {1: ((),), 2: ((),)}
    assert find_breakers(["\na"], pieces=pieces, tokenize=tokenize) == {1: ((0,),)}
    assert find_breakers([":e"], pieces=pieces, tokenize=tokenize) == {3: ((4,),)}
