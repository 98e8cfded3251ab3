"""A bar: rounds of faults under load, and figures that are judged from the rounds alone. Pure."""

import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.bars.open_loop import total

TAIL_VALUES_MIN = 500
TIMED_UNITS = ("s", "ms", "×", "%")

Round = dict[str, Any]  # fault, proven, figures, load: JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A bound and its measured value; no value is a miss."""

    name: str
    asked: str
    measured: float | None
    met: bool
    is_timed: bool = False  # other work on the machine makes it worse: times and rates, by their unit
    is_too_small: bool = False  # a single value is beyond the bound, and too few were measured to tell its quantile


def at_most(
    name: str,
    values: Sequence[float],
    limit: float,
    unit: str = "",
    *,
    share: float = 1.0,
    is_timed: bool | None = None,
) -> Figure:
    """The quantile `share` of the values, the maximum by default."""
    found = quantile(values, share)
    is_met = found is not None and found <= limit
    beyond = sum(value > limit for value in values)
    return Figure(
        name=name,
        asked=f"≤ {limit:g} {unit}".strip(),
        measured=found,
        met=is_met,
        is_timed=unit in TIMED_UNITS if is_timed is None else is_timed,
        is_too_small=not is_met and beyond == 1 and len(values) * (1 - share) < 1 and share < 1,
    )


def at_least(name: str, value: float | None, limit: float, unit: str = "", *, is_timed: bool | None = None) -> Figure:
    return Figure(
        name=name,
        asked=f"≥ {limit:g} {unit}".strip(),
        measured=value,
        met=value is not None and value >= limit,
        is_timed=unit in TIMED_UNITS if is_timed is None else is_timed,
    )


def quantile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that `share` of the values do not exceed; None: there are none."""
    ordered = sorted(values)
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)], 4) if ordered else None


def tail(values: Sequence[float]) -> float:
    """Return the share whose quantile is compared: in a sample, the 99th percentile is the worst value."""
    return 0.99 if len(values) >= TAIL_VALUES_MIN else 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One of the bars of reliability. Sizes are numbers of faults, or seconds where `unit` says so."""

    number: int
    key: str
    title: str
    full: int
    sample: int
    unit: str
    minutes: int  # about so long at full strength
    is_throughout: bool = False  # beside all others, from their beginning to their end
    clusters: int = 1  # that share the rounds at full strength, where processors are enough: they wait most of the time
    per_round: int = 1  # of `unit`; 0: one round is the whole
    run: Callable[[Path, Sequence[int], int], AsyncIterator[Round]]  # directory, numbers of the rounds, size
    judge: Callable[[list[Round]], list[Figure]]
    needs: Callable[[], str] = field(default=lambda: "")  # why it cannot run here; empty: it can
    has_load: bool = True  # False: other tests show the bar, and prove their faults themselves

    def left(self, rounds: Sequence[Round], size: int) -> list[int]:
        """Return the numbers of the rounds that are not done."""
        done = {one.get("number") for one in rounds}
        return [number for number in range(-(-size // self.per_round)) if number not in done] if self.per_round else []


def judged(bar: Bar, rounds: list[Round], *, size: int, disturbance: str = "") -> dict[str, Any]:
    """Return the report of a bar. Met: every fault was proven, every accepted request ended once with its own bytes."""
    load = total([one["load"] for one in rounds if "load" in one])
    faults = [one for one in rounds if one.get("fault")]
    figures = bar.judge(rounds)
    figures += [
        at_least("faults proven to have happened", sum(one["proven"] for one in faults), max(1, len(faults))),
        at_most("accepted requests that did not end exactly once", [load["accepted"] - load["ended_once"]], 0),
        at_most("answers with lost, doubled or other tokens", [load["wrong_bytes"]], 0),
        at_least("answers in the load", load["ok"], 1),
    ] * bar.has_load
    return {
        "bar": bar.number,
        "title": bar.title,
        "size": size,
        "unit": bar.unit,
        "full_size": bar.full,
        "met": all(figure.met for figure in figures),
        "not_measurable": _not_measurable(figures, disturbance),
        "figures": [{name: getattr(figure, name) for name in Figure.__slots__} for figure in figures],
        "faults": {"injected": len(faults), "proven": sum(one["proven"] for one in faults)},
        "requests": {
            **{name: load[name] for name in ("asked", "accepted", "ended_once", "ok", "refused", "wrong_bytes")},
            "other": dict(load["other"]),
            "resumes": load["resumes"],
            "first_ms_p50": quantile(load["first_ms"], 0.5),
            "first_ms_p99": quantile(load["first_ms"], 0.99),
            "gap_ms_p99": quantile(load["gap_ms"], 0.99),
        },
    }


def _not_measurable(figures: Sequence[Figure], disturbance: str) -> str:
    """Return why missed figures show nothing: times beside other work, a quantile of too few values; empty: they do."""
    missed = [one for one in figures if not one.met]
    if missed and all(one.is_too_small for one in missed):
        return "the sample is too small"
    return disturbance if all(one.is_timed or one.is_too_small for one in missed) else ""


def shares(numbers: Sequence[int], clusters: int) -> list[list[int]]:
    """Divide rounds among clusters; each takes those of a stretch, in which kinds of faults alternate."""
    each = -(-len(numbers) // clusters)
    return [list(numbers[begin : begin + each]) for begin in range(0, len(numbers), each)] if numbers else [[]]


def failures(rounds: list[Round], what: str) -> list[Figure]:
    """Requests that failed, and those that were refused in time, which a lack of processors alone may cause."""
    load = total([one["load"] for one in rounds if "load" in one])
    return [
        at_most(f"{what} failed", [sum(load["other"].values())], 0),
        at_most(f"{what} refused", [load["refused"]], 0, is_timed=True),
    ]


def answered(load: dict[str, Any], what: str, share: float) -> list[Figure]:
    """Share of the requests that were answered, in percent, and of those that were refused in time."""
    taken, refused = load["asked"] - load["refused"], 100 * load["refused"] / max(1, load["asked"])
    return [
        at_least(f"{what}: requests answered", round(100 * load["ok"] / max(1, taken), 3), share, "%", is_timed=False),
        at_most(f"{what}: requests refused", [round(refused, 3)], round(100 - share, 3), "%"),
    ]
