"""Report of the grid: errors and wrong decisions of each way to predict. Pure.

Two questions that must not be mixed. Is the count right? Then a device with as much room as was counted takes the
model: that is judged without any margin. And what does it cost to keep one? Whatever has room, but less than the margin
more, is refused; how much that is depends on the size of the device, so it is reported by size (`planner.py`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from scheduler.core.sizes.margins import MARGIN_BYTES_MIN
from tools.placement_grid.planner import kept_bytes
from tools.placement_grid.predictions import MIB, fits
from tools.placement_grid.run import Cell

# What has to hold for the measured report.
ERROR_SHARE_MAX, ERROR_BYTES_MAX = 0.02, 32 * MIB
FALSE_REFUSALS_MAX = 0.01
CONFIGURATIONS_MIN = 200  # of the whole grid

PLANNER = 2  # of `scores`: what a cluster keeps that has lived through the loads before

Predict = Callable[[Cell], Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Score of one way to predict. Errors are of one device in one configuration."""

    name: str
    decisions: int
    said_fits: int
    failed_after_fits: int
    false_refusals: int
    error_p50_bytes: int
    error_p99_bytes: int
    error_max_bytes: int
    beyond_bar: int  # errors above both two percent and 32 MiB

    @property
    def false_refusal_share(self) -> float:
        """Of all decisions."""
        return self.false_refusals / self.decisions if self.decisions else 0.0


def score(
    name: str, cells: Iterable[Cell], predict: Predict, margin: Callable[[Cell], Sequence[int]] | None = None
) -> Score:
    """Judge a way to predict. The margin counts for the decision on each device, not for the error."""
    judged = [cell for cell in cells if cell.real]
    errors: list[int] = []
    beyond = said = failed = refused = 0
    for cell in judged:
        needed = predict(cell)
        for need, real in zip(needed, cell.real, strict=True):
            error = abs(need - real)
            errors.append(error)
            beyond += error > max(ERROR_SHARE_MAX * real, ERROR_BYTES_MAX)
        kept = margin(cell) if margin is not None else [0] * len(needed)
        says_fits = fits([need + more for need, more in zip(needed, kept, strict=True)], cell.free)
        said += says_fits
        failed += says_fits and not cell.loaded
        refused += not says_fits and cell.loaded
    errors.sort()
    return Score(
        name=name,
        decisions=len(judged),
        said_fits=said,
        failed_after_fits=failed,
        false_refusals=refused,
        error_p50_bytes=_quantile(errors, 0.5),
        error_p99_bytes=_quantile(errors, 0.99),
        error_max_bytes=errors[-1] if errors else 0,
        beyond_bar=beyond,
    )


def scores(cells: Sequence[Cell]) -> list[Score]:
    """Return the scores, the measured report first."""
    learned = kept_bytes(cells)
    return [
        score("measured", cells, lambda cell: cell.measured),
        score(
            "planner, margin of 16 MiB",
            cells,
            lambda cell: cell.measured,
            lambda cell: [MARGIN_BYTES_MIN] * len(cell.measured),
        ),
        score(
            "planner, margin learned on the way",
            cells,
            lambda cell: cell.measured,
            lambda cell: learned[cell.configuration.number],
        ),
        score("file x 1.2", cells, lambda cell: cell.by_file),
        score("file + 2 embd kv_heads ctx + 4 %", cells, lambda cell: cell.by_file_and_cache),
    ]


def complaints(cells: Sequence[Cell]) -> list[str]:
    """Return the broken parts of the promise; empty if it holds."""
    measured = scores(cells)[0]
    found = [f"{cell.configuration.name}: {cell.failure}" for cell in cells if cell.failure]
    # The p99 may lie beyond the bar for one in a hundred.
    if measured.beyond_bar > 0.01 * sum(len(cell.real) for cell in cells):
        found.append(f"{measured.beyond_bar} errors above 2 % and 32 MiB")
    if measured.failed_after_fits:
        found.append(f"{measured.failed_after_fits} loads failed after a promise")
    if measured.false_refusal_share >= FALSE_REFUSALS_MAX:
        found.append(f"{measured.false_refusals} false refusals of {measured.decisions}")
    lived = scores(cells)[PLANNER]
    if lived.failed_after_fits:
        found.append(f"{lived.failed_after_fits} loads failed after the planner's promise")
    if lived.false_refusal_share >= FALSE_REFUSALS_MAX:
        found.append(f"{lived.false_refusals} false refusals of {lived.decisions} by the planner")
    return found


def bars(cells: Sequence[Cell]) -> dict[str, dict[str, object]]:
    """Return each promise, its result, and the verdict."""
    found = scores(cells)
    measured, lived = found[0], found[PLANNER]
    parts = sum(len(cell.real) for cell in cells)
    return {
        "configurations": _bar(len(cells), CONFIGURATIONS_MIN, len(cells) >= CONFIGURATIONS_MIN),
        "errors_above_2_percent_and_32_mib": _bar(
            measured.beyond_bar, int(0.01 * parts), measured.beyond_bar <= 0.01 * parts
        ),
        "failed_after_fits": _bar(measured.failed_after_fits, 0, not measured.failed_after_fits),
        "false_refusal_share": _bar(
            measured.false_refusal_share, FALSE_REFUSALS_MAX, measured.false_refusal_share < FALSE_REFUSALS_MAX
        ),
        "planner_failed_after_fits": _bar(lived.failed_after_fits, 0, not lived.failed_after_fits),
        "planner_false_refusal_share": _bar(
            lived.false_refusal_share, FALSE_REFUSALS_MAX, lived.false_refusal_share < FALSE_REFUSALS_MAX
        ),
    }


def _bar(value: float, bar: float, met: bool) -> dict[str, object]:
    return {"value": round(value, 4), "bar": bar, "outcome": "met" if met else "missed"}


def table(found: Sequence[Score]) -> str:
    """For people."""
    columns = f"{'says fits':>9} {'failed':>7} {'false refusals':>15} {'p50 MiB':>8} {'p99 MiB':>8} {'max MiB':>8}"
    head = f"{'prediction':36} {columns}"
    rows = [
        f"{one.name:36} {one.said_fits:>9} {one.failed_after_fits:>7}"
        f" {one.false_refusals:>7} ({one.false_refusal_share:5.1%})"
        f" {one.error_p50_bytes / MIB:>8.2f} {one.error_p99_bytes / MIB:>8.2f} {one.error_max_bytes / MIB:>8.2f}"
        for one in found
    ]
    return "\n".join([head, *rows])


def _quantile(ordered: Sequence[int], share: float) -> int:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0
