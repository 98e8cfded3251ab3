"""Rates from counters: what the page's charts show. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCounters:
    """Readings that only grow while the gateway lives. `tokens` of answers, by model."""

    at_s: float
    ended: int = 0
    tokens: Mapping[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPoint:
    """One point of the charts: averages over the interval between two readings."""

    requests_per_s: float
    tokens_per_s: float
    prompt_tokens_per_s: float
    first_token_ms: float | None  # mean of those that came; None: none came
    model_tokens_per_s: Mapping[str, float]


def figures_between(before: PageCounters, after: PageCounters, first_tokens_s: Sequence[float]) -> ChartPoint:
    """Return the figures between two readings; the second is the later one."""
    span_s = after.at_s - before.at_s
    assert span_s > 0
    grown = {model: count - before.tokens.get(model, 0) for model, count in after.tokens.items()}
    return ChartPoint(
        requests_per_s=round((after.ended - before.ended) / span_s, 2),
        tokens_per_s=round(sum(grown.values()) / span_s, 1),
        prompt_tokens_per_s=round((after.prompt_tokens - before.prompt_tokens) / span_s, 1),
        first_token_ms=round(sum(first_tokens_s) / len(first_tokens_s) * 1000, 1) if first_tokens_s else None,
        model_tokens_per_s={model: round(count / span_s, 1) for model, count in grown.items() if count > 0},
    )
