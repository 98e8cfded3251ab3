"""Texts that a grammar allows, at random, without a model."""

import random
from time import thread_time

from runner.core.grammar.constraint_text import ConstraintText, lark_text
from runner.core.grammar.token_grammar import GrammarCursor, TokenGrammar
from runner.core.grammar.token_tree import TokenTree

BYTES_MAX = 20_000
_CLOSING = b'"]}'
_LIKELY = b"at,:059{["
# One token for each byte, so that a token is a byte.
TREE = TokenTree([bytes([byte]) for byte in range(256)], list)


def grammar_of(text: str, **fields: object) -> TokenGrammar:
    return constrained(ConstraintText(kind="grammar", text=text, **fields))  # type: ignore[arg-type]


def schema_grammar(text: str) -> TokenGrammar:
    return constrained(ConstraintText(kind="json_schema", text=text))


def constrained(wanted: ConstraintText) -> TokenGrammar:
    return TokenGrammar(lark_text(wanted, TREE), TREE, end_tokens=frozenset(), cpu_s=thread_time, param=wanted.kind)


def random_text(grammar: TokenGrammar, seed: int, *, short_after: int = 200) -> bytes:
    """A whole text: after some bytes, what closes something comes first."""
    draw = random.Random(seed)
    cursor = GrammarCursor(grammar)
    text = bytearray()
    while len(text) < BYTES_MAX:
        choices = cursor.allowed().tolist()
        if cursor.complete and (not choices or len(text) >= short_after or draw.random() < 0.3):
            return bytes(text)
        closing = [byte for byte in choices if byte in _CLOSING]
        likely = [byte for byte in choices if byte in _LIKELY]
        pool = closing if closing and draw.random() < (0.6 if len(text) >= short_after else 0.2) else likely
        byte = draw.choice(pool if pool and draw.random() < 0.7 else choices)
        text.append(byte)
        cursor.accept(byte)
    raise AssertionError("the text did not end")


def matches(grammar: TokenGrammar, text: str | bytes) -> bool:
    """Return True if a whole text belongs to the grammar."""
    cursor = GrammarCursor(grammar)
    for byte in text.encode() if isinstance(text, str) else text:
        if not cursor.allows(byte):
            return False
        cursor.accept(byte)
    return cursor.complete
