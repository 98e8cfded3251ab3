"""Drafters: guesses of the tokens that a sequence goes on with. Pure.

A guess costs nothing but time: a token counts only once the sampler has drawn it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from runner.core.grammar.token_grammar import GrammarCursor

KEY_TOKENS = 3  # a run this long that was there before is followed
INDEXED_TOKENS_MAX = 128  # of one call: an index of a long prompt is made over several
HISTORY_TOKENS_MAX = 65_536
POOL_TOKENS_MAX = 8_192  # of the answers of one tenant
TENANTS_MAX = 64
_LONG_MATCH, _LONGER_MATCH = 8, 24  # tokens
NO_PLACE = -1


class Drafter(Protocol):
    """Guesses the tokens of one sequence. Called by the engine's thread only."""

    @property
    def trust(self) -> int:
        """Class of the last guess, 0 to 2: how often guesses are right is counted for each class."""

    def draft(self, limit: int) -> Sequence[int]:
        """Return at most `limit` tokens that may follow; none if there is no guess."""


class CostlyDrafter(Drafter, Protocol):
    """Takes time for each token that it guesses, so it is asked for as many as pay."""

    @property
    def token_s(self) -> float:
        """Seconds that the guess of one token takes."""


class ForcedTextDrafter:
    """Guesses the text that a grammar leaves no choice about, such as the keys of a JSON schema."""

    __slots__ = ("_grammar", "_said")
    trust = 2

    def __init__(self, said: list[int], grammar: GrammarCursor) -> None:
        """`said` are the tokens of the sequence, which grow."""
        self._said = said
        self._grammar = grammar

    def draft(self, limit: int) -> Sequence[int]:
        """Return the first tokens of the forced text."""
        return self._grammar.forced(self._said[-1])[:limit]


class NgramIndex:
    """Tokens in order, and the place after each run of `KEY_TOKENS`. Grows at the end only."""

    __slots__ = ("_indexed", "_places", "tokens")

    def __init__(self, tokens: list[int]) -> None:
        """Index `tokens`, which others lengthen."""
        self.tokens = tokens
        self._places: dict[tuple[int, ...], int] = {}
        self._indexed = KEY_TOKENS - 1

    def catch_up(self) -> None:
        """Index the next tokens; the last run stays out, because nothing follows it yet."""
        tokens, places = self.tokens, self._places
        stop = min(len(tokens), self._indexed + 1 + INDEXED_TOKENS_MAX, HISTORY_TOKENS_MAX)
        for place in range(self._indexed + 1, stop):
            places[tuple(tokens[place - KEY_TOKENS : place])] = place
            self._indexed = place

    def after(self, key: Sequence[int]) -> int:
        """Return the place after the newest indexed run of these tokens, or NO_PLACE."""
        return self._places.get(tuple(key), NO_PLACE)


class NgramDrafter:
    """Guesses that what followed the newest tokens before follows again."""

    __slots__ = ("_index", "_matched", "_place", "_read", "_said", "trust")

    def __init__(self, said: list[int], index: NgramIndex) -> None:
        """`said` are the tokens of the sequence, which grow; they may be those of the index."""
        self._said = said
        self._index = index
        self._read = len(said)
        self._place = NO_PLACE  # in the index, of the token that is expected next
        self._matched = 0
        self.trust = 0

    def draft(self, limit: int) -> Sequence[int]:
        """Follow the last place as long as it was right, else look for another one."""
        said, index = self._said, self._index
        source = index.tokens
        index.catch_up()
        place = self._place
        for at in range(self._read, len(said)):
            if place < 0 or place >= len(source) or source[place] != said[at]:
                place = NO_PLACE
                break
            place += 1
            self._matched += 1
        self._read = len(said)
        if place < 0:
            place = index.after(said[-KEY_TOKENS:])
            self._matched = 0
        self._place = place
        if place < 0:
            return ()
        self.trust = (self._matched >= _LONG_MATCH) + (self._matched >= _LONGER_MATCH)
        guess = source[place : place + limit]
        if source is said and guess:  # the end repeats itself
            period = len(said) - place
            while len(guess) < limit:
                guess.append(guess[-period])
        return guess


class AnswerPool:
    """Recent answers of each tenant. Tenants do not see each other's, nor how long a guess from them would be."""

    def __init__(self) -> None:
        """Nothing was said yet."""
        self._indexes: OrderedDict[str, NgramIndex] = OrderedDict()

    def index(self, salt: str) -> NgramIndex:
        """Return the index of a tenant; the least recently used tenant is forgotten."""
        found = self._indexes.get(salt)
        if found is None:
            found = self._indexes[salt] = NgramIndex([])
            if len(self._indexes) > TENANTS_MAX:
                self._indexes.popitem(last=False)
        self._indexes.move_to_end(salt)
        return found

    def add(self, salt: str, answer: Sequence[int]) -> None:
        """Add an answer that ended. The index of a full pool is replaced; sequences that use it keep the old one."""
        tokens = self.index(salt).tokens
        if len(tokens) + len(answer) > POOL_TOKENS_MAX:
            self._indexes[salt] = NgramIndex([*tokens[-POOL_TOKENS_MAX // 2 :], *answer[-POOL_TOKENS_MAX // 2 :]])
        else:
            tokens.extend(answer)
