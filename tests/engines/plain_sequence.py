"""A sequence in the plain loop."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from common.errors import InvalidRequest
from runner.core.grammar.token_grammar import NO_TOKEN, NOTHING_ALLOWED, GrammarCursor
from runner.core.sequence.dry import Dry
from runner.core.sequence.endings import Ending, EndRules, generated_tokens_max
from runner.core.sequence.penalties import LogitBias, Penalties, within_sigma
from runner.core.sequence.reasoning_budget import ReasoningCursor
from runner.core.sequence.requests import GenerationRequest, PreparedPrompt
from runner.engine.contract.engine import SequenceTimes

# Chooses a token from a row float32[vocabulary] in which what may not come up is minus infinity.
Pick = Callable[[NDArray[np.float32]], int]


@dataclass(slots=True, eq=False, kw_only=True)
class PlainSequence:
    """One request from submit to freed. Only the engine thread touches it after `submit`."""

    id: int
    request: GenerationRequest
    prepared: PreparedPrompt
    rules: EndRules
    bias: LogitBias
    penalties: Penalties | None
    dry: Dry | None
    grammar: GrammarCursor | None
    reasoning: ReasoningCursor | None = None
    pending: list[int] = field(default_factory=list)  # inputs that are not in the cache yet
    generating: bool = False  # the one pending input is the token sampled last
    passed_tokens: int = 0  # inputs that overtook it, in steps that left it out
    paused: bool = False
    slot_id: int = -1
    cached_tokens: int = 0
    submitted_ns: int = field(default_factory=time.monotonic_ns)
    slot_ns: int = 0
    first_batch_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0

    def weigh(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """A copy of the raw row float32[vocabulary] with bias and penalties, from which the token is chosen."""
        weighed = logits.copy()
        self.bias.apply(weighed)
        if self.penalties is not None:
            self.penalties.apply(weighed)
        if self.dry is not None:
            self.dry.apply(weighed)
        return weighed

    def choose(self, weighed: NDArray[np.float32], pick: Pick) -> int:
        """The next token as `pick` chooses it, by the rejection scheme of grammars; NO_TOKEN: none is left.

        Raises:
            InvalidRequest: the grammar can no longer be followed.
        """
        if self.reasoning is not None and (forced := self.reasoning.forced()) is not None:
            return forced
        token_id = pick(self._near_the_top(weighed))
        if self.grammar is None or (weighed[token_id] != -np.inf and self.grammar.allows(token_id)):
            return token_id
        ids = self.grammar.allowed()
        allowed = np.full_like(weighed, -np.inf)
        allowed[ids] = weighed[ids]
        if (allowed != -np.inf).any():
            return pick(self._near_the_top(allowed))
        if self.grammar.complete:
            return NO_TOKEN
        raise InvalidRequest(NOTHING_ALLOWED, param=self.grammar.param)

    def _near_the_top(self, weighed: NDArray[np.float32]) -> NDArray[np.float32]:
        sigmas = self.request.sampling.top_n_sigma
        finite = weighed != -np.inf
        if sigmas <= 0.0 or not finite.any():
            return weighed
        kept = weighed.copy()
        kept[finite] = np.where(within_sigma(weighed[finite], sigmas), weighed[finite], -np.inf)
        return kept

    def count(self, token_id: int) -> Ending | None:
        """A token was chosen: note the time, and say whether it is the last one."""
        if self.penalties is not None:
            self.penalties.accept(token_id)
        if self.dry is not None:
            self.dry.accept(token_id)
        if self.grammar is not None:
            self.grammar.accept(token_id)
        if self.reasoning is not None:
            self.reasoning.accept(token_id)
        self.last_token_ns = time.monotonic_ns()
        self.first_token_ns = self.first_token_ns or self.last_token_ns
        return self.rules.count(token_id)

    @property
    def cached_prompt_tokens(self) -> int:
        """Return the number of prompt tokens taken from the cache. After a resume it may include answer tokens."""
        return min(self.cached_tokens, self.prepared.prompt_tokens)

    def times(self) -> SequenceTimes | None:
        """Return the measured times; None if the sequence never had a slot."""
        if self.slot_id < 0:
            return None
        return SequenceTimes(
            queue_ns=self.slot_ns - self.submitted_ns,
            prompt_ns=self.first_token_ns - self.first_batch_ns if self.first_token_ns else 0,
            generate_ns=self.last_token_ns - self.first_token_ns,
            prompt_tokens=self.prepared.prompt_tokens,
            cached_tokens=self.cached_prompt_tokens,
            evaluated_tokens=len(self.prepared.inputs) - self.cached_tokens,
            slot_id=self.slot_id,
        )


def new_sequence(
    sequence_id: int,
    request: GenerationRequest,
    prepared: PreparedPrompt,
    *,
    end_tokens: frozenset[int],
    suppressed: frozenset[int],
    repeats_max: int,
) -> PlainSequence:
    """A sequence for a checked request. `repeats_max` 0 lets it say one token for ever."""
    sampling, earlier = request.sampling, (*request.prompt.inputs, *request.resumed)
    context_tokens = prepared.context_tokens
    return PlainSequence(
        id=sequence_id,
        request=request,
        prepared=prepared,
        rules=EndRules(
            end_tokens=frozenset() if request.ignore_eos else end_tokens,
            limit=generated_tokens_max(request.max_tokens, prepared.context_tokens),
            repeats_max=0 if request.ignore_eos else repeats_max,
            resumed=request.resumed,
        ),
        bias=LogitBias(sampling.logit_bias, banned=suppressed),
        penalties=Penalties(sampling, context_tokens=context_tokens, earlier=earlier) if sampling.penalised else None,
        dry=Dry(sampling, request.breakers, context_tokens=context_tokens, earlier=earlier)
        if sampling.avoids_repeats
        else None,
        grammar=None
        if request.grammar is None
        else GrammarCursor(request.grammar, resumed=request.resumed, ends=not request.ignore_eos),
        reasoning=None if request.reasoning is None else ReasoningCursor(request.reasoning, resumed=request.resumed),
    )
