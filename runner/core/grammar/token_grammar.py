"""A grammar over the tokens of one vocabulary, and where one answer is in it. Pure, numpy only."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from runner.core.grammar.token_trie import TokenTrie
from runner.core.grammar.walk import DEAD, STATES_MAX, Grammar, GrammarTooComplex, StateId, WorkBudget

# The answer is over, and no end token may say so.
NO_TOKEN = -1
NOTHING_ALLOWED = "no token of the model that may come up goes on with the grammar"
# What one answer may cost, in places visited, each about a microsecond: so much at once, and so much more with every
# token. Schemas with forty properties take 2,000 at once and 600 a token the first time, and nothing the second;
# one with 150 optional properties takes 23,000 at once.
WORK_AT_START = 50_000
WORK_PER_TOKEN = 2_000
# Sets of allowed tokens that are kept for each grammar.
KEPT_BYTES_MAX = 16 * 1024 * 1024
# Sets with fewer tokens than one in so many are kept as a list, others as bits.
_SPARSE = 32


class TokenGrammar:
    """Shared part of all answers under one grammar. Made in any thread, then used by the engine thread only."""

    def __init__(
        self,
        grammar: Grammar,
        trie: TokenTrie,
        *,
        pieces: list[bytes],
        end_tokens: frozenset[int],
        param: str = "grammar",
    ) -> None:
        """`trie` holds every token that may be part of an answer; `param` is the field of the request."""
        self.grammar = grammar
        self.pieces = pieces
        self.end_tokens = end_tokens
        self.param = param
        self._trie = trie
        self._kept: dict[StateId, NDArray[np.int32] | NDArray[np.uint8]] = {}
        self._kept_bytes = 0
        self._kept_resets = 0
        self._inside = trie.inside(len(pieces))

    def holds(self, token_id: int) -> bool:
        """Return True if the token may be part of an answer at all."""
        return bool(self._inside[token_id])

    def allowed(self, state: StateId, budget: WorkBudget) -> NDArray[np.intp]:
        """Ids of the tokens that may follow, sorted; end tokens are not among them.

        Raises:
            GrammarTooComplex: finding out takes too much work.
        """
        if self._kept_resets != self.grammar.resets or self._kept_bytes > KEPT_BYTES_MAX:
            self._kept.clear()
            self._kept_bytes = 0
            self._kept_resets = self.grammar.resets
        kept = self._kept.get(state)
        if kept is None:
            ids = self._trie.allowed(self.grammar, state, budget)
            kept = ids if ids.size * _SPARSE < len(self.pieces) else self._as_bits(ids)
            self._kept[state] = kept
            self._kept_bytes += kept.nbytes
        if kept.dtype == np.int32:
            return kept.astype(np.intp)
        return np.flatnonzero(np.unpackbits(kept.view(np.uint8), count=len(self.pieces)))

    def _as_bits(self, ids: NDArray[np.int32]) -> NDArray[np.uint8]:
        flags = np.zeros(len(self.pieces), bool)
        flags[ids] = True
        return np.packbits(flags)


class GrammarCursor:
    """Position of one answer in its grammar. Only the engine thread uses it after its creation."""

    __slots__ = ("_budget", "_ends", "_replay", "_resets", "_said", "_shared", "_state")

    def __init__(self, shared: TokenGrammar, *, resumed: Iterable[int] = (), ends: bool = True) -> None:
        """`resumed` tokens are part of the answer already; with `ends` False an end token never comes up."""
        self._shared = shared
        self._ends = ends
        self._budget = WorkBudget(WORK_AT_START)
        self._said = bytearray()
        self._replay = tuple(resumed)
        self._resets = -1  # the grammar's states were never asked for
        self._state = DEAD

    @property
    def param(self) -> str:
        """The field of the request that the grammar came in."""
        return self._shared.param

    @property
    def complete(self) -> bool:
        """True if the answer may end here."""
        return self._shared.grammar.may_end(self._here())

    def allows(self, token_id: int) -> bool:
        """Return True if the token may come next.

        Raises:
            GrammarTooComplex: finding out takes too much work.
        """
        shared = self._shared
        state = self._here()
        if token_id in shared.end_tokens:
            return self._ends and shared.grammar.may_end(state)
        if not shared.holds(token_id):
            return False
        return shared.grammar.advance(state, shared.pieces[token_id], self._budget) != DEAD

    def allowed(self) -> NDArray[np.intp]:
        """Ids of all tokens that may come next; none where the answer is over and may not say so.

        Raises:
            GrammarTooComplex: finding out takes too much work.
        """
        shared = self._shared
        state = self._here()
        ids = shared.allowed(state, self._budget)
        if self._ends and shared.grammar.may_end(state):
            ids = np.concatenate([ids, np.array(sorted(shared.end_tokens), np.intp)])
        return ids

    def accept(self, token_id: int) -> None:
        """Go on with a token that is allowed."""
        self._budget.left = min(self._budget.left + WORK_PER_TOKEN, WORK_AT_START)
        if token_id in self._shared.end_tokens:
            return
        piece = self._shared.pieces[token_id]
        self._state = self._shared.grammar.advance(self._here(), piece, self._budget)
        assert self._state != DEAD, "a token that is not allowed was accepted"
        self._said += piece

    def _here(self) -> StateId:
        """Return the state, found again if the grammar forgot its states."""
        grammar = self._shared.grammar
        if grammar.states > STATES_MAX:
            grammar.forget()
        if self._resets != grammar.resets:
            if self._replay:
                self._budget.left += WORK_PER_TOKEN * len(self._replay)
                tokens, self._replay = self._replay, ()
                ends = self._shared.end_tokens
                self._said += b"".join(self._shared.pieces[one] for one in tokens if one not in ends)
            start = grammar.start(self._budget)
            self._state = grammar.advance(start, bytes(self._said), self._budget)
            self._resets = grammar.resets
            if self._state == DEAD:
                raise GrammarTooComplex("the resumed answer does not match the grammar", param="resume_token_ids")
        return self._state
