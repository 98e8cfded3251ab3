"""Choose the replica of a request: filter, score from 0 to 1, pick the best."""

from collections.abc import Iterable
from dataclasses import dataclass

# The longest held prefix wins unless its replica is clearly busier: one unit of prefix outweighs half a unit of load.
_PREFIX_WEIGHT = 2.0
_IDLE_WEIGHT = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One replica as a request sees it."""

    key: str
    context_tokens: int
    slots_total: int
    slots_free: int
    work: int
    held_prefix_fraction: float = 0.0  # of this request's prompt, 0..1
    layers_on_devices: int = 0  # the output counts as one
    layers_total: int = 0
    has_suspect: bool = False  # runs a request that may have crashed a runner


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a request asks of a replica."""

    context_tokens: int | None = None
    avoided: frozenset[str] = frozenset()  # replicas that failed this request
    require_gpu: bool = False
    num_gpu: int | None = None
    is_suspect: bool = False  # may have crashed a runner: shares a replica with no other suspect

    def suits(self, *, context_tokens: int, layers_on_devices: int, layers_total: int) -> bool:
        """Whether a replica was loaded so that it can serve the request."""
        if self.context_tokens is not None and context_tokens < self.context_tokens:
            return False
        if self.require_gpu and layers_on_devices < layers_total:
            return False
        return self.num_gpu is None or layers_on_devices == min(self.num_gpu, layers_total)


def is_able(candidate: Candidate, need: Need) -> bool:
    """True if the replica could serve the request once it has a free slot."""
    return candidate.key not in need.avoided and need.suits(
        context_tokens=candidate.context_tokens,
        layers_on_devices=candidate.layers_on_devices,
        layers_total=candidate.layers_total,
    )


def choose_replica(candidates: Iterable[Candidate], need: Need) -> str | None:
    """The key of the best replica with a free slot, or None: every able one is busy, or none is able."""
    able = [c for c in candidates if is_able(c, need) and c.slots_free > 0 and not (need.is_suspect and c.has_suspect)]
    if not able:
        return None
    return max(able, key=lambda c: (_score(c), -c.work, c.key)).key


def _score(candidate: Candidate) -> float:
    idle_fraction = candidate.slots_free / candidate.slots_total if candidate.slots_total else 0.0
    return _PREFIX_WEIGHT * candidate.held_prefix_fraction + _IDLE_WEIGHT * idle_fraction
