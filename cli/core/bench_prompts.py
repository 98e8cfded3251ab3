"""Prompts of a measurement: words without meaning, different for each request. Pure."""

from hashlib import blake2b

_SYLLABLES = ("ka", "mo", "ri", "ten", "sal", "du", "ve", "lor", "an", "pi", "su", "gen", "ta", "ol", "bi", "nek")
_SHARED = -1


def bench_prompt(*, words: int, shared_words: int, number: int) -> str:
    """`shared_words` are the same for every number; the rest, which no cache can have, belongs to this one."""
    assert 0 <= shared_words <= words
    assert number >= 0
    shared = [_word(_SHARED, position) for position in range(shared_words)]
    return " ".join([*shared, *(_word(number, position) for position in range(words - shared_words))])


def _word(number: int, position: int) -> str:
    digest = blake2b(f"{number}/{position}".encode(), digest_size=3).digest()
    return "".join(_SYLLABLES[byte % len(_SYLLABLES)] for byte in digest)
