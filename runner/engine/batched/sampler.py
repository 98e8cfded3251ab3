"""Choose the next token of one sequence from its logits.

Bias, penalties, DRY and the sigma filter are numpy of our own; filters and the draw are llama.cpp's, in llama-server's
order. A grammar is asked about the chosen token only; where it refuses, all tokens are filtered and the choice is made
again with the same draw, as llama-server does.
"""

import ctypes
from collections.abc import Iterable

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from common.errors import InvalidRequest
from common.spec.sampling import Sampling
from runner.core.grammar.token_grammar import NO_TOKEN, NOTHING_ALLOWED, GrammarCursor
from runner.core.sequence.dry import Breakers, Dry
from runner.core.sequence.penalties import LogitBias, Penalties, within_sigma
from runner.core.sequence.reasoning_budget import ReasoningCursor
from runner.core.sequence.sampling import draw_seed, excludes_top_at
from runner.engine.bindings import library
from runner.engine.llama.context import Context

# Measured with 32,000 and 128,256 tokens; flat logits are the worst case of filters that sort.
_COST, _COST_OF_ALL = 1.3, 40.0
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data


class Sampler:
    """Only the engine thread may use it, after it was made.

    The draw for output position i gets its own seed from (seed, i), so that a sequence goes on the same way in another
    process.
    """

    __slots__ = ("_bias", "_chains", "_compact", "_dry", "_grammar", "_parameters", "_penalties", "_reasoning", "cost")

    def __init__(
        self,
        parameters: Sampling,
        *,
        suppressed: Iterable[int],
        context_tokens: int,
        earlier: Iterable[int],
        breakers: Breakers | None = None,
        grammar: GrammarCursor | None = None,
        reasoning: ReasoningCursor | None = None,
    ) -> None:
        """`earlier` are the ids that count as said (prompt and resumed); `suppressed` never come up."""
        earlier = tuple(earlier)
        bias = LogitBias(parameters.logit_bias, banned=suppressed)
        self._parameters = parameters
        self._bias = bias if bias else None
        self._penalties = (
            Penalties(parameters, context_tokens=context_tokens, earlier=earlier) if parameters.penalised else None
        )
        self._dry = (
            Dry(parameters, breakers or {}, context_tokens=context_tokens, earlier=earlier)
            if parameters.avoids_repeats
            else None
        )
        self._grammar = grammar
        self._reasoning = reasoning
        # Typical sampling takes the logarithm of every probability, so what is banned must not be among them.
        self._compact = not parameters.greedy and (parameters.top_n_sigma > 0.0 or parameters.typical_p < 1.0)
        # What a choice takes outside of the interpreter's lock, in nanoseconds for each token of the vocabulary; those
        # under grammars stay in the engine's thread.
        self.cost = 0.0 if parameters.greedy or grammar is not None else _COST if parameters.top_k > 0 else _COST_OF_ALL
        self._chains: list[int] = []  # without XTC, and with it
        if not parameters.greedy:
            self._chains.append(create_chain(parameters, excludes=False))
            if parameters.excludes_top:
                self._chains.append(create_chain(parameters, excludes=True))

    def sample(self, context: Context, index: int, position: int, *, gives_lock_away: bool = False) -> int:
        """Choose the token for output `position` from the logits at batch `index`, and count it; NO_TOKEN: none left.

        Raises:
            InvalidRequest: the sequence's grammar can no longer be followed.
        """
        if self._reasoning is not None and (forced := self._reasoning.forced()) is not None:
            self._count(forced)
            return forced
        logits = context.logits(index)
        if self._bias is not None:
            self._bias.apply(logits)
        if self._penalties is not None:
            self._penalties.apply(logits)
        if self._dry is not None:
            self._dry.apply(logits)
        if not self._chains:
            token_id = int(logits.argmax())
        elif self._compact:
            token_id = self._choose_among(np.flatnonzero(logits != -np.inf), logits, position)
        else:
            sample = library.sampler_sample_unlocked if gives_lock_away else library.sampler_sample
            token_id = sample(self._reseeded(position), context.pointer, index)
        if self._grammar is not None:
            token_id = self._constrained(self._grammar, token_id, logits, position)
        if token_id != NO_TOKEN:
            self._count(token_id)
        return token_id

    def close(self) -> None:
        """Free the chains; a second call does nothing."""
        while self._chains:
            library.sampler_free(self._chains.pop())

    def _constrained(self, grammar: GrammarCursor, token_id: int, logits: NDArray[np.float32], position: int) -> int:
        """Return the token itself if the grammar allows it, else the choice among those that it allows."""
        if token_id != NO_TOKEN and logits[token_id] != -np.inf and grammar.allows(token_id):
            return token_id
        ids = grammar.allowed()
        ids = ids[logits[ids] != -np.inf]
        if ids.size:
            return self._choose_among(ids, logits, position)
        if grammar.complete:
            return NO_TOKEN
        raise InvalidRequest(NOTHING_ALLOWED, param=grammar.param)

    def _choose_among(self, ids: NDArray[np.intp], logits: NDArray[np.float32], position: int) -> int:
        """Choose among some tokens; none of them is banned."""
        values = logits[ids]
        if not self._chains:
            return int(ids[values.argmax()])
        if self._parameters.top_n_sigma > 0.0:
            kept = within_sigma(values, self._parameters.top_n_sigma)
            ids, values = ids[kept], values[kept]
        if not ids.size:
            return NO_TOKEN
        candidates = np.zeros(ids.size, _CANDIDATE)
        candidates["id"] = ids
        candidates["logit"] = values
        array = llama.llama_token_data_array(
            data=candidates.ctypes.data_as(llama.llama_token_data_p), size=ids.size, selected=-1, sorted=False
        )
        library.sampler_apply(self._reseeded(position), ctypes.byref(array))
        assert 0 <= array.selected < array.size, "the chain ends with a draw"
        # Filters may have moved the beginning.
        return int(array.data[array.selected].id)

    def _count(self, token_id: int) -> None:
        if self._penalties is not None:
            self._penalties.accept(token_id)
        if self._dry is not None:
            self._dry.accept(token_id)
        if self._grammar is not None:
            self._grammar.accept(token_id)
        if self._reasoning is not None:
            self._reasoning.accept(token_id)

    def _reseeded(self, position: int) -> int:
        """Return the chain for this position with a fresh generator at its end.

        The C interface cannot set the position of an old one.
        """
        chain = self._chains[-1] if excludes_top_at(self._parameters, position) else self._chains[0]
        library.sampler_free(library.chain_remove(chain, library.chain_length(chain) - 1))
        library.chain_add(chain, library.sampler_dist(draw_seed(self._parameters.seed, position)))
        return chain


def create_chain(parameters: Sampling, *, excludes: bool) -> int:
    """top_k first: every later filter is 15 to 80 times slower on a whole vocabulary."""
    settings = llama.llama_sampler_chain_default_params()
    settings.no_perf = True
    chain: int = library.chain_create(settings)
    if parameters.top_k > 0:
        library.chain_add(chain, library.sampler_top_k(parameters.top_k))
    if parameters.typical_p < 1.0:
        library.chain_add(chain, library.sampler_typical(parameters.typical_p, 1))
    if parameters.top_p < 1.0:
        library.chain_add(chain, library.sampler_top_p(parameters.top_p, 1))
    if parameters.min_p > 0.0:
        library.chain_add(chain, library.sampler_min_p(parameters.min_p, 1))
    if excludes:
        # Whether it acts at a position is drawn by `excludes_top_at`; here it always does.
        library.chain_add(chain, library.sampler_xtc(1.0, parameters.xtc_threshold, 1, 0))
    library.chain_add(
        chain,
        library.sampler_temperature(parameters.temperature, parameters.dynatemp_range, parameters.dynatemp_exponent),
    )
    library.chain_add(chain, library.sampler_dist(0))
    return chain
