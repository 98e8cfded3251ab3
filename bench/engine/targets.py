"""Bounds of the runner against llama-server, and the verdict of a run. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from bench.engine.figures import Comparison


class Measure(Enum):
    """Value that a target bounds."""

    RATIO = "ratio"  # ours divided by the peer's, paired
    DIFFERENCE = "difference"  # ours less the peer's
    OWN = "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A bound on one figure of one case. `bar` is its name in the table of speed bars."""

    bar: str
    model: str
    case: str
    metric: str
    bound: float
    at_least: bool
    measure: Measure = Measure.RATIO

    def value(self, entry: Comparison) -> float | None:
        """Return what is bounded; None: the peer has no such figure."""
        if self.measure is Measure.OWN:
            return entry.ours
        if self.measure is Measure.RATIO or entry.peer is None:
            return entry.ratio
        return entry.ours - entry.peer


_TRAINED = "gemma3-270m"
_FIRST_TOKENS = tuple(f"first-{prompt}-{count}" for prompt in (128, 640) for count in (1, 4, 16))
TARGETS = (
    *(
        Target(bar="S1", model=model, case=f"streams-{count}", metric="tokens_per_s", bound=bound, at_least=True)
        for model in ("57m", "1b", "1b-long", _TRAINED)
        for count, bound in ((1, 1.0), (4, 1.05), (16, 1.05))
    ),
    *(
        Target(bar="S2", model=model, case=case, metric="first_token_p50_ms", bound=1.0, at_least=False)
        for model in ("1b-first", _TRAINED)
        for case in _FIRST_TOKENS
    ),
    *(
        Target(
            bar="S2",
            model="57m",
            case=case,
            metric="first_token_p50_ms",
            bound=3.0,
            at_least=False,
            measure=Measure.DIFFERENCE,
        )
        for case in _FIRST_TOKENS
    ),
    *(
        Target(bar="S2", model=model, case="prefix-16", metric="first_token_p50_ms", bound=0.2, at_least=False)
        for model in ("57m", _TRAINED)
    ),
    Target(bar="S3", model="1b", case="load", metric="load_s", bound=1.0, at_least=False),
    *(
        Target(
            bar="S8",
            model="1b",
            case=f"streams-{count}",
            metric="gap_percent",
            bound=3.0,
            at_least=False,
            measure=Measure.OWN,
        )
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
        if entry is not None and (value := target.value(entry)) is not None:
            verdicts.append(Verdict(target=target, value=value))
    return verdicts
