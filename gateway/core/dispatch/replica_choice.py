"""Choose the replica of a request: filter, predict what each would cost, take the cheapest.

What a replica holds of the prompt it need not evaluate; what runs there already slows the answer down. Every figure of
a prediction was measured: by the replica, or where it has not computed anything yet, by the others of its model. A
prompt that none holds goes where least is held, so that it takes the place of nothing that may be wanted again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import fmean

from common.spec.bands import Band
from common.spec.pace import UNKNOWN_PACE, RunnerPace
from gateway.core.dispatch.prompt_prefixes import NO_PREFIXES, NOTHING_HELD, SLOTS, Holdings, PromptPrefixes

# While no replica of a model has computed anything, they differ only by what is left to compute.
_UNMEASURED = RunnerPace(token_s=1.0, bytes_per_token=1.0)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Time that a request takes at a replica more than its tokens take alone."""

    first_token_s: float
    slowdown_s: float  # of the answer, by what runs there already
    place: str = ""  # what its prompt goes on from: `SLOTS`, or a tier; empty: everything is computed

    @property
    def cost_s(self) -> float:
        """Return what a choice compares."""
        return self.first_token_s + self.slowdown_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCandidate:
    """One replica as a request sees it."""

    key: str
    context_tokens: int
    slots_total: int
    slots_free: int
    slots_open: tuple[int, ...] = ()  # busy ones that a request of each band would be given, the highest band first
    work: int
    holdings: Holdings = NOTHING_HELD
    pace: RunnerPace = UNKNOWN_PACE
    layers_on_devices: int = 0  # the output counts as one
    layers_total: int = 0
    has_suspect: bool = False  # runs a request that may have crashed a runner

    def taken(self) -> "ReplicaCandidate":
        """Return it with one more request."""
        slots_open = self.slots_open if self.slots_free else tuple(max(slots - 1, 0) for slots in self.slots_open)
        return replace(self, slots_free=max(self.slots_free - 1, 0), slots_open=slots_open, work=self.work + 1)


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


def choose_replica(candidates: Iterable[ReplicaCandidate], need: ReplicaNeed, band: Band = Band.LOW) -> str | None:
    """Return the key of the best replica with a slot, or None: every able one is busy, or none is able.

    Where no slot is free, one that pauses a request of a lower band counts as having one.
    """
    usable = [c for c in candidates if is_able(c, need) and not (need.is_suspect and c.has_suspect)]
    able = [c for c in usable if c.slots_free > 0] or [c for c in usable if any(c.slots_open[band : band + 1])]
    if not able:
        return None
    if len(able) == 1:
        return able[0].key
    paces = known_paces(able)
    predicted = {one.key: predict(one, need.prefixes, pace=paces[one.key]) for one in able}
    return max(able, key=lambda one: (-predicted[one.key].cost_s, -one.work, -len(one.holdings.slots), one.key)).key


def known_paces(candidates: Sequence[ReplicaCandidate]) -> dict[str, RunnerPace]:
    """Return the pace of each replica, by key; a figure that one lacks is the mean of those that have it.

    One that has computed nothing counts as fast as the fastest, as else it would get nothing to compute.
    """
    paces = [one.pace for one in candidates]
    fastest = min((one for one in paces if one.token_s), key=lambda one: one.token_s, default=_UNMEASURED)
    sizes = [one.bytes_per_token for one in paces if one.bytes_per_token]
    bytes_per_token = fmean(sizes or [_UNMEASURED.bytes_per_token])
    answer_tokens = fmean([one.answer_tokens for one in paces if one.answer_tokens] or [0.0])
    return {
        one.key: replace(
            one.pace,
            call_s=one.pace.call_s if one.pace.token_s else fastest.call_s,
            token_s=one.pace.token_s or fastest.token_s,
            bytes_per_token=one.pace.bytes_per_token or bytes_per_token,
            answer_tokens=one.pace.answer_tokens or answer_tokens,
        )
        for one in candidates
    }


def predict(candidate: ReplicaCandidate, prefixes: PromptPrefixes, *, pace: RunnerPace) -> Prediction:
    """Predict the first token of a request there, from the cheapest of what it holds of the prompt."""
    busy = candidate.slots_total - candidate.slots_free

    def computed_s(held_bytes: int) -> float:
        """Return the time to compute the rest; the last token is computed in any case, as its logits are wanted."""
        tokens = max(1.0, (prefixes.size_bytes - held_bytes) / pace.bytes_per_token)
        # What runs takes part in every call.
        calls = ceil(tokens / max(1, pace.batch_tokens - busy)) if pace.batch_tokens else 1
        return tokens * pace.token_s + calls * (pace.call_s + busy * pace.token_s)

    held_bytes = prefixes.held_bytes(candidate.holdings.slots)
    ways = [(computed_s(held_bytes), SLOTS if held_bytes else "")]
    for tier, kept in candidate.holdings.tiers.items():  # a replica restores only if that is faster
        ways += [(restore_s + computed_s(end), tier) for end, restore_s in prefixes.restores(kept)]
    first_token_s, place = min(ways, key=lambda way: way[0])
    return Prediction(first_token_s, pace.answer_tokens * busy * pace.token_s, place)
