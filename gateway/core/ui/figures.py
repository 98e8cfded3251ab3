"""Rates from counters for the page's charts, and the remaining time of loads. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

# Less progress than this says nothing about the pace.
_PROGRESS_MIN = 0.02


@dataclass(slots=True)
class LoadPaces:
    """First observation of each load. A load that restarted from less begins anew."""

    _first: dict[str, tuple[float, float]] = field(default_factory=dict)  # key: (seconds, fraction)

    def seconds_left(self, key: str, fraction: float, now_s: float) -> float | None:
        """Estimate the seconds until the load is done, at its pace so far; None: too early."""
        began_s, began = self._first.setdefault(key, (now_s, fraction))
        if fraction < began:
            self._first[key] = (now_s, fraction)
            return None
        moved = fraction - began
        if moved < _PROGRESS_MIN or now_s <= began_s:
            return None
        return round((1 - fraction) * (now_s - began_s) / moved, 1)

    def keep_only(self, keys: Collection[str]) -> None:
        """Forget loads that are over."""
        for key in self._first.keys() - set(keys):
            del self._first[key]


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
