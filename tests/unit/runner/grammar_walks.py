"""Texts that a grammar allows, at random, without a model."""

import random

from runner.core.grammar.text import parse_grammar
from runner.core.grammar.walk import DEAD, Grammar, StateId, WorkBudget

BYTES_MAX = 20_000
_CLOSING = b'"]}'


def budget() -> WorkBudget:
    return WorkBudget(50_000_000)


def grammar_of(text: str) -> Grammar:
    return Grammar(parse_grammar(text))


def following(grammar: Grammar, state: StateId) -> dict[StateId, list[int]]:
    """By the state that they lead to: the bytes that may come next."""
    found: dict[StateId, list[int]] = {}
    for byte in range(256):
        after = grammar.advance(state, bytes([byte]), budget())
        if after != DEAD:
            found.setdefault(after, []).append(byte)
    return found


def random_text(grammar: Grammar, seed: int, *, short_after: int = 200) -> bytes:
    """A whole text: after some bytes, what closes something comes first."""
    draw = random.Random(seed)
    state = grammar.start(budget())
    text = bytearray()
    while len(text) < BYTES_MAX:
        choices = following(grammar, state)
        if grammar.may_end(state) and (not choices or len(text) >= short_after or draw.random() < 0.3):
            return bytes(text)
        options = list(choices.values())
        closing = [byte for option in options if len(option) <= 2 for byte in option if byte in _CLOSING]
        byte = draw.choice(closing) if closing and len(text) >= short_after else draw.choice(draw.choice(options))
        text.append(byte)
        state = grammar.advance(state, bytes([byte]), budget())
    raise AssertionError("the text did not end")


def matches(grammar: Grammar, text: str | bytes) -> bool:
    """Return True if a whole text belongs to the grammar."""
    data = text.encode() if isinstance(text, str) else text
    state = grammar.advance(grammar.start(budget()), data, budget())
    return state != DEAD and grammar.may_end(state)
