"""Choose the replica of a request: filter, predict what each would cost, take the cheapest.

What a replica holds of the prompt it need not evaluate; what runs there already slows the answer down.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gateway.core.dispatch.prompt_prefixes import NO_PREFIXES, PromptPrefixes

# Text of most languages and tokenizers.
_BYTES_PER_TOKEN = 4
# Of a replica that has not evaluated a prompt yet, and knows of none that has.
_PROMPT_TOKENS_PER_S = 500.0
# A prompt that was moved to host RAM comes back about so many times faster than it is computed.
_PARKED_SPEEDUP = 16
# Seconds that an answer takes longer in a full replica than in an idle one: a held prefix has to save as much.
_FULL_COST_S = 0.2


@dataclass(frozen=True, slots=True)
class KeptState:
    """A saved state that a replica can restore, by the names of the beginnings of its prompt."""

    names: frozenset[int]
    restore_s: float  # as the replica predicts it, from measured speeds


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCandidate:
    """One replica as a request sees it."""

    key: str
    context_tokens: int
    slots_total: int
    slots_free: int
    work: int
    held: frozenset[int] = frozenset()  # names of the beginnings of prompts in its slots
    parked: frozenset[int] = frozenset()  # likewise of prompts in its host RAM
    kept: tuple[KeptState, ...] = ()  # in the tiers of its node
    prompt_tokens_per_s: float = 0.0  # 0: not known
    layers_on_devices: int = 0  # the output counts as one
    layers_total: int = 0
    has_suspect: bool = False  # runs a request that may have crashed a runner


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaNeed:
    """Requirements of a request for a replica."""

    context_tokens: int | None = None
    avoided: frozenset[str] = frozenset()  # replicas that failed this request
    require_gpu: bool = False
    num_gpu: int | None = None
    is_suspect: bool = False  # may have crashed a runner: shares a replica with no other suspect
    prefixes: PromptPrefixes = NO_PREFIXES  # of its prompt

    def suits(self, *, context_tokens: int, layers_on_devices: int, layers_total: int) -> bool:
        """Return True if a replica was loaded so that it can serve the request."""
        if self.context_tokens is not None and context_tokens < self.context_tokens:
            return False
        if self.require_gpu and layers_on_devices < layers_total:
            return False
        return self.num_gpu is None or layers_on_devices == min(self.num_gpu, layers_total)


def is_able(candidate: ReplicaCandidate, need: ReplicaNeed) -> bool:
    """Return True if the replica could serve the request once it has a free slot."""
    return candidate.key not in need.avoided and need.suits(
        context_tokens=candidate.context_tokens,
        layers_on_devices=candidate.layers_on_devices,
        layers_total=candidate.layers_total,
    )


def choose_replica(candidates: Iterable[ReplicaCandidate], need: ReplicaNeed) -> str | None:
    """Return the key of the best replica with a free slot, or None: every able one is busy, or none is able."""
    able = [c for c in candidates if is_able(c, need) and c.slots_free > 0 and not (need.is_suspect and c.has_suspect)]
    if not able:
        return None
    if len(able) == 1:
        return able[0].key
    known = [c.prompt_tokens_per_s for c in able if c.prompt_tokens_per_s]
    usual = sum(known) / len(known) if known else _PROMPT_TOKENS_PER_S
    return max(able, key=lambda c: (-cost_s(c, need.prefixes, usual_tokens_per_s=usual), -c.work, c.key)).key


def cost_s(candidate: ReplicaCandidate, prefixes: PromptPrefixes, *, usual_tokens_per_s: float) -> float:
    """Predict the seconds that a request takes more there than at an idle replica that holds its whole prompt.

    `usual_tokens_per_s`: of prompts, for a replica whose own speed is not known.
    """
    held_bytes: float = prefixes.held_bytes(candidate.held)
    if candidate.parked:
        held_bytes = max(held_bytes, prefixes.held_bytes(candidate.parked) * (1 - 1 / _PARKED_SPEEDUP))
    busy_fraction = 1 - candidate.slots_free / candidate.slots_total if candidate.slots_total else 1.0
    # Running requests take part in every step in which the prompt is evaluated.
    byte_s = (1 + busy_fraction) / (candidate.prompt_tokens_per_s or usual_tokens_per_s) / _BYTES_PER_TOKEN
    prompt_s = (prefixes.size_bytes - held_bytes) * byte_s
    for state in candidate.kept:  # a replica restores only if that is faster
        prompt_s = min(prompt_s, state.restore_s + (prefixes.size_bytes - prefixes.held_bytes(state.names)) * byte_s)
    return prompt_s + _FULL_COST_S * busy_fraction


def saved_bytes(prefixes: PromptPrefixes, states: Iterable[KeptState]) -> int:
    """Return the bytes of a prompt that one of several states has."""
    return max((prefixes.held_bytes(state.names) for state in states), default=0)
