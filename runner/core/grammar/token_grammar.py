"""A grammar over the tokens of one vocabulary, and where one answer is in it, on llguidance."""

from collections.abc import Callable, Sequence

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray

from common.errors import InvalidRequest
from runner.core.grammar.token_tree import TokenTree, compile_grammar, error_text

# The answer is over, and no end token may say so.
NO_TOKEN = -1
NOTHING_ALLOWED = "no token of the model that may come up goes on with the grammar"
# Processor time of one answer: so much at once, and so much more with every token. With 128,000 tokens a mask takes 0.3
# to 10 ms, a check microseconds.
CPU_S_AT_START = 0.5
CPU_S_PER_TOKEN = 0.01
FORCED_BYTES_MAX = 256  # of text that is guessed at once


class GrammarTooComplex(InvalidRequest):
    """Following the grammar takes more work than one token may cost."""


class TokenGrammar:
    """Shared part of all answers under one grammar; may be used in any thread."""

    def __init__(
        self,
        text: str,
        tree: TokenTree,
        *,
        end_tokens: frozenset[int],
        excluded: frozenset[int] = frozenset(),
        cpu_s: Callable[[], float],
        param: str = "grammar",
    ) -> None:
        """`text` is in llguidance's Lark notation; `param` is the field of the request.

        Tokens that are `excluded` or end an answer are no part of its text, whatever their bytes. `cpu_s` returns the
        processor time of the calling thread.

        Raises:
            InvalidRequest: it cannot be compiled, or no answer matches it.
        """
        self.end_tokens = end_tokens
        self.cpu_s = cpu_s
        self.param = param
        self.excluded = excluded
        self.tree = tree
        self._matcher = compile_grammar(text, tree)
        if self._matcher.is_error():
            raise InvalidRequest(f"{param} cannot be used: {error_text(self._matcher)}", param=param)
        mask = np.frombuffer(self.matcher().compute_bitmask(), np.uint8)
        included = np.arange(8 * mask.size) < tree.size
        included[[*excluded, *end_tokens]] = False
        self.included = np.packbits(included, bitorder="little")  # a bit for each token that may be a part of the text
        if not self._matcher.is_accepting() and not (mask & self.included).any():
            raise InvalidRequest(f"{param} cannot be used: no answer matches it", param=param)

    def matcher(self) -> LLMatcher:
        """Return a matcher at the beginning of an answer."""
        return self._matcher.deep_copy()


class GrammarCursor:
    """Position of one answer in its grammar. Only one thread uses it after its creation."""

    __slots__ = ("_ends", "_is_lost", "_left_s", "_matcher", "_shared")

    def __init__(self, shared: TokenGrammar, *, resumed: Sequence[int] = (), ends: bool = True) -> None:
        """`resumed` tokens are part of the answer already; with `ends` False an end token never comes up."""
        self._shared = shared
        self._ends = ends
        self._left_s = CPU_S_AT_START
        self._matcher = shared.matcher()
        said = [token_id for token_id in resumed if token_id not in shared.end_tokens]
        # Reported by the next call: a sequence is made where nothing may fail.
        self._is_lost = bool(said) and not (shared.excluded.isdisjoint(said) and self._matcher.consume_tokens(said))

    @property
    def param(self) -> str:
        """The field of the request that the grammar came in."""
        return self._shared.param

    @property
    def complete(self) -> bool:
        """True if the answer may end here."""
        return self._matcher.is_accepting()

    def allows(self, token_id: int) -> bool:
        """Return True if the token may come next.

        Raises:
            GrammarTooComplex: finding out takes too much work.
        """
        if token_id in self._shared.end_tokens:
            return self._ends and self.complete
        started_s = self._shared.cpu_s()
        allowed = token_id not in self._shared.excluded and self._matcher.validate_tokens([token_id]) == 1
        self._spend(started_s)
        return allowed

    def allowed(self) -> NDArray[np.intp]:
        """Ids of all tokens that may come next; none where the answer is over and may not say so.

        Raises:
            GrammarTooComplex: finding out takes too much work.
        """
        started_s = self._shared.cpu_s()
        ids = self._open(self._matcher)
        self._spend(started_s)
        if self._ends and self.complete:
            ids = np.concatenate([ids, np.array(sorted(self._shared.end_tokens), np.intp)])
        return ids

    def forced(self, before: int) -> list[int]:
        """Return the likely tokens of the text that has to come next; `before` is the newest token of the sequence.

        The text is certain, its tokens are not. The last one is left out where it may be a part of a longer one.
        Neither the position nor the budget of the answer changes.
        """
        text = self._matcher.compute_ff_bytes()
        tree = self._shared.tree
        ids = tree.split(before, text[:FORCED_BYTES_MAX]) if text else []
        ids = ids[: self._matcher.validate_tokens(ids)] if ids else []
        if ids:
            *others, last = ids
            # Measured: after 10 kB of an answer a copy takes 1.7 ms, and looking for forced text 1 µs.
            matcher = self._matcher.deep_copy()
            matcher.consume_tokens(others)
            if any(len(tree.pieces[token_id]) > len(tree.pieces[last]) for token_id in self._open(matcher)):
                return others
        return ids

    def accept(self, token_id: int) -> None:
        """Go on with a token that is allowed.

        Raises:
            GrammarTooComplex: it takes too much work.
        """
        if token_id not in self._shared.end_tokens:
            started_s = self._shared.cpu_s()
            self._matcher.consume_token(token_id)
            self._left_s = min(self._left_s + CPU_S_PER_TOKEN, CPU_S_AT_START)
            self._spend(started_s)

    def _open(self, matcher: LLMatcher) -> NDArray[np.intp]:
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        return np.flatnonzero(np.unpackbits(mask & self._shared.included, bitorder="little"))

    def _spend(self, started_s: float) -> None:
        self._left_s -= self._shared.cpu_s() - started_s
        if self._is_lost:
            raise GrammarTooComplex("the resumed answer does not match the grammar", param="resume_token_ids")
        if self._matcher.is_error():
            raise GrammarTooComplex(
                f"the grammar is too complex to follow: {error_text(self._matcher)}", param=self.param
            )
        if self._left_s < 0.0:
            raise GrammarTooComplex("the grammar is too ambiguous to follow", param=self.param)
