"""Predictions before a load: the measured report, and two formulas that need the file's header only. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts about a model that the formulas use."""

    file_bytes: int
    embedding_length: int
    kv_heads: int


def scaled_file(facts: ModelFacts) -> float:
    """File size and a fifth."""
    return facts.file_bytes * 1.2


def file_and_cache(facts: ModelFacts, *, context_tokens: int) -> float:
    """File size, a cache term and four percent."""
    return (facts.file_bytes + 2 * facts.embedding_length * facts.kv_heads * context_tokens) * 1.04


def shared_out(total_bytes: float, counts: Sequence[int], layers: int) -> tuple[int, ...]:
    """Share a formula's total among devices by their layers: it has no finer figures."""
    return tuple(round(total_bytes * count / layers) for count in counts)


def fits(needed: Sequence[int], free: Sequence[int]) -> bool:
    """Per device, never a sum."""
    return all(need <= room for need, room in zip(needed, free, strict=True))
