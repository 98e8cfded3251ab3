"""Guesses from what was said: the place after the same run of tokens, followed as long as it is right."""

import random

from runner.core.speculation.drafters import (
    INDEXED_TOKENS_MAX,
    KEY_TOKENS,
    POOL_TOKENS_MAX,
    TENANTS_MAX,
    AnswerPool,
    NgramDrafter,
    NgramIndex,
)


def drafter(said: list[int]) -> NgramDrafter:
    return NgramDrafter(said, NgramIndex(said))


def test_what_followed_before_is_guessed_again() -> None:
    assert drafter([1, 2, 3, 4, 5, 9, 1, 2, 3]).draft(3) == [4, 5, 9]


def test_nothing_is_guessed_of_what_was_never_said() -> None:
    assert not drafter([1, 2, 3, 4, 5]).draft(3)
    assert not drafter([1, 2]).draft(3)


def test_the_newest_place_counts() -> None:
    assert drafter([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3]).draft(1) == [5]


def test_a_repetition_is_guessed_to_go_on() -> None:
    assert drafter([7, 8, 7, 8, 7, 8]).draft(5) == [7, 8, 7, 8, 7]


def test_a_place_is_followed_while_it_is_right_and_left_when_it_is_wrong() -> None:
    said = [1, 2, 3, *range(10, 40), 1, 2, 3]
    follows = drafter(said)
    for token in range(10, 30):
        assert list(follows.draft(2)) == [token, token + 1]
        said.append(token)
    follows.draft(1)
    assert follows.trust == 1  # 20 tokens in a row
    said.append(99)
    assert not follows.draft(2)


def test_a_long_prompt_is_indexed_over_several_calls() -> None:
    said = [*range(5 * INDEXED_TOKENS_MAX), 3, 4, 5]
    later = 4 * INDEXED_TOKENS_MAX
    follows = drafter(said)
    assert follows.draft(1) == [6]
    said += [later, later + 1, later + 2]
    assert not follows.draft(1)
    assert any(follows.draft(1) == [later + 3] for _ in range(5))


def test_every_guess_follows_a_run_that_was_said() -> None:
    chance = random.Random(3)
    said = [chance.randrange(4) for _ in range(50)]
    follows = drafter(said)
    for _ in range(500):
        guess = list(follows.draft(4))
        if guess:
            assert len(guess) == 4
            text = [*said, *guess]
            runs = [text[at : at + KEY_TOKENS + 1] for at in range(len(said) - KEY_TOKENS)]
            assert text[len(said) - KEY_TOKENS : len(said) + 1] in runs
        said.append(guess[0] if guess and chance.random() < 0.7 else chance.randrange(4))


def test_answers_are_found_again_by_the_same_tenant_only() -> None:
    pool = AnswerPool()
    pool.add("a", [1, 2, 3, 4, 5])
    assert NgramDrafter([0, 1, 2, 3], pool.index("a")).draft(2) == [4, 5]
    assert not NgramDrafter([0, 1, 2, 3], pool.index("b")).draft(2)


def test_a_pool_is_bounded_and_a_sequence_keeps_the_index_that_it_began_with() -> None:
    pool = AnswerPool()
    pool.add("a", [1, 2, 3, 4, 5])
    early = NgramDrafter([1, 2, 3], pool.index("a"))
    for start in range(0, 4 * POOL_TOKENS_MAX, 1000):
        pool.add("a", range(start, start + 1000))
        assert len(pool.index("a").tokens) <= POOL_TOKENS_MAX
    assert early.draft(1) == [4]
    for tenant in range(2 * TENANTS_MAX):
        pool.add(str(tenant), [1])
    assert pool.index("a").tokens == []
