"""Bounds of the runner against llama-server, and the verdict of a run. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from bench.engine.figures import Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A bound on one figure of one case: on the ratio, or on our own value where `of_ratio` is False."""

    model: str
    case: str
    metric: str
    bound: float
    at_least: bool
    of_ratio: bool = True


TARGETS = (
    *(
        Target(model="1b", case=f"streams-{count}", metric="tokens_per_s", bound=1.0, at_least=True)
        for count in (1, 4, 16)
    ),
    *(
        Target(model="57m", case=f"streams-{count}", metric="tokens_per_s", bound=0.95, at_least=True)
        for count in (1, 4, 16)
    ),
    Target(model="57m", case="prefix-16", metric="first_token_p50_ms", bound=0.2, at_least=False),
    Target(model="1b", case="load", metric="load_s", bound=1.1, at_least=False),
    *(
        Target(model="1b", case=f"streams-{count}", metric="gap_percent", bound=3.0, at_least=False, of_ratio=False)
        for count in (1, 4, 16)
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A target and what was measured."""

    target: Target
    value: float

    @property
    def kept(self) -> bool:
        """Return True if the value is on the right side of the bound."""
        return self.value >= self.target.bound if self.target.at_least else self.value <= self.target.bound


def judge(comparisons: Iterable[Comparison]) -> list[Verdict]:
    """Return a verdict on each target whose case was measured."""
    values: dict[tuple[str, str, str], Comparison] = {
        (entry.model, entry.case, entry.metric): entry for entry in comparisons
    }
    verdicts = []
    for target in TARGETS:
        entry = values.get((target.model, target.case, target.metric))
        value = None if entry is None else (entry.ratio if target.of_ratio else entry.ours)
        if value is not None:
            verdicts.append(Verdict(target=target, value=value))
    return verdicts
