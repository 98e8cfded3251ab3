"""Choose the next token of one sequence from its logits."""

from collections.abc import Iterable

import llama_cpp.llama_cpp as llama

from runner.core.penalties import LogitBias, Penalties
from runner.core.sampling import SamplingParameters, draw_seed
from runner.engine import library
from runner.engine.context import Context


class Sampler:
    """Bias and penalties in numpy, filters and the draw in llama.cpp, in llama-server's order.

    Only the engine thread may use it. The draw for output position i gets its own seed from (seed, i), so that a
    sequence goes on the same way in another process.
    """

    __slots__ = ("_bias", "_chain", "_draw_index", "_penalties", "_seed")

    def __init__(
        self,
        parameters: SamplingParameters,
        *,
        suppressed: Iterable[int],
        context_tokens: int,
        earlier: Iterable[int],
    ) -> None:
        """`earlier` are the ids that count as said (prompt and resumed); `suppressed` never come up."""
        bias = LogitBias(parameters.logit_bias, banned=suppressed)
        self._bias = bias if bias else None
        self._penalties = (
            Penalties(parameters, context_tokens=context_tokens, earlier=earlier) if parameters.penalised else None
        )
        self._seed = parameters.seed
        self._chain: int | None = None
        self._draw_index = 0
        if not parameters.greedy:
            self._create_chain(parameters)

    def sample(self, context: Context, index: int, position: int) -> int:
        """Choose the token for output `position` from the logits at batch `index`, and count it."""
        logits = context.logits(index)
        if self._bias is not None:
            self._bias.apply(logits)
        if self._penalties is not None:
            self._penalties.apply(logits)
        if self._chain is None:
            token_id = int(logits.argmax())
        else:
            self._reseed(draw_seed(self._seed, position))
            token_id = library.sampler_sample(self._chain, context.pointer, index)
        if self._penalties is not None:
            self._penalties.accept(token_id)
        return token_id

    def close(self) -> None:
        """Free the chain; a second call does nothing."""
        if self._chain is not None:
            library.sampler_free(self._chain)
            self._chain = None

    def _create_chain(self, parameters: SamplingParameters) -> None:
        """top_k first: every later filter is 15 to 80 times slower on a whole vocabulary."""
        settings = llama.llama_sampler_chain_default_params()
        settings.no_perf = True
        chain = library.chain_create(settings)
        if parameters.top_k > 0:
            library.chain_add(chain, library.sampler_top_k(parameters.top_k))
        if parameters.typical_p < 1.0:
            library.chain_add(chain, library.sampler_typical(parameters.typical_p, 1))
        if parameters.top_p < 1.0:
            library.chain_add(chain, library.sampler_top_p(parameters.top_p, 1))
        if parameters.min_p > 0.0:
            library.chain_add(chain, library.sampler_min_p(parameters.min_p, 1))
        library.chain_add(chain, library.sampler_temperature(parameters.temperature))
        library.chain_add(chain, library.sampler_dist(0))
        self._chain = chain
        self._draw_index = library.chain_length(chain) - 1

    def _reseed(self, seed: int) -> None:
        """Put a fresh generator at the end of the chain: the C interface cannot set the position of an old one."""
        library.sampler_free(library.chain_remove(self._chain, self._draw_index))
        library.chain_add(self._chain, library.sampler_dist(seed))
