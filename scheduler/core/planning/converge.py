"""The loop of measure → plan → measure until the layout repeats. Pure, over reports that are already known.

The compute graph depends on the layout, and the layout on the graph. A report that is missing ends the run with
`Missing`; the caller has it measured and runs the loop again from its beginning, which takes the same way and goes on.

1. A plan that was not tried and offloads no more than the last one: we know more now, fewer layers is progress.
2. A plan that offloads more: graphs came and went with the layers. What lies between is tried, most layers first.
3. Nothing of that, and the layout fits: done.
4. It does not fit: leave a tenth more of what is free, until there is nothing left to leave.

A plan with more layers that was never tried is tried itself, too: it is not known to be too large. And what the loop
has found is the start of a last climb, as long as there are rounds: graphs that were large in one layout may be small
in a better one. Of what is as good then, something clearly faster is taken.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from common.spec.layout import Layout
from scheduler.core.planning.candidates import Placement
from scheduler.core.planning.fitting import Fitting
from scheduler.core.planning.refinement import Refinement
from scheduler.core.sizes.rooms import BACKOFF_STEP
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import MemoryReport

MEASURE_ROUNDS_MAX = 16

BACKOFF_MAX = 1.0
NOT_ALLOCATED = "memory layout cannot be allocated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """This layout must be measured before the loop can go on."""

    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Unallocatable:
    """Nothing was found; with the last layout that was measured."""

    message: str
    rounds: int = 0
    layout: Layout | None = None
    report: MemoryReport | None = None
    fault: Fault | None = None


@dataclass(slots=True)
class _Rounds:
    """Measured layouts of one run."""

    measure: Callable[[Layout], MemoryReport | Fault | None]
    reports: dict[Layout, MemoryReport] = field(default_factory=dict)

    def report(self, layout: Layout) -> MemoryReport | Fault | None:
        """Return a report; each layout that is new counts as a round."""
        if layout in self.reports:
            return self.reports[layout]
        found = self.measure(layout)
        if isinstance(found, MemoryReport):
            self.reports[layout] = found
        return found

    def fitting(self, fitting: Fitting) -> list[Layout]:
        """Return the measured layouts that fit."""
        return [layout for layout, report in self.reports.items() if fitting.fits(report, layout)]

    @property
    def are_over(self) -> bool:
        """Return True if the run has used its share of rounds."""
        return len(self.reports) >= MEASURE_ROUNDS_MAX


def converge(
    fitting: Fitting, measure: Callable[[Layout], MemoryReport | Fault | None]
) -> Placement | Missing | Unallocatable:
    """Run the loop. `measure` answers from what is known; None: not measured yet."""
    rounds = _Rounds(measure)
    found = _run(fitting, rounds)
    if fitting.given_layers is None and not isinstance(found, Missing) and rounds.reports:
        found = _climb(fitting, rounds, found)
    match found:
        case Layout():
            return fitting.placement(found, rounds.reports[found], rounds=len(rounds.reports))
        case Unallocatable():
            return replace(found, rounds=len(rounds.reports))
    return found


def _run(fitting: Fitting, rounds: _Rounds) -> Layout | Missing | Unallocatable:
    layout = fitting.plan(None, 0.0)
    backoff, seen = 0.0, set[Layout]()
    if layout is None:
        return Unallocatable(message=NOT_ALLOCATED)
    while True:
        report = rounds.report(layout)
        if report is None:
            return Missing(layout=layout)
        if isinstance(report, Fault):
            return Unallocatable(message=report.message, layout=layout, fault=report)
        seen.add(layout)
        following = fitting.plan(report, backoff)
        more = 0 if following is None else fitting.offloaded(following) - fitting.offloaded(layout)
        if following is not None and more <= 0 and following not in seen and not rounds.are_over:
            layout = following
            continue
        if following is not None and more > 0 and fitting.given_layers is None:
            between = _try_between(fitting, rounds, report, layout, following)
            if between is not None:
                return between
        if fitting.fits(report, layout):
            return layout
        backoff += BACKOFF_STEP
        if fitting.given_layers is not None or following is None or backoff > BACKOFF_MAX or rounds.are_over:
            return _best_known(fitting, rounds, layout, report)


def _climb(fitting: Fitting, rounds: _Rounds, found: Layout | Unallocatable) -> Layout | Missing | Unallocatable:
    """Try a better layout, or a faster one that is as good."""
    if isinstance(found, Unallocatable) and found.fault is not None:
        return found
    found = _best_fitting(fitting, rounds, found)
    while not rounds.are_over:
        layout = found if isinstance(found, Layout) else None
        refinement = Refinement(fitting, rounds.reports)
        trial = refinement.better(layout)
        if trial is None and layout is not None:
            trial = refinement.faster(layout)
        if trial is None:
            break
        report = rounds.report(trial)
        if report is None:
            return Missing(layout=trial)
        if isinstance(report, Fault):
            break
        if fitting.fits(report, trial):
            found = trial
    return found


def _best_fitting(fitting: Fitting, rounds: _Rounds, found: Layout | Unallocatable) -> Layout | Unallocatable:
    """Return the best layout that fits: the loop takes the last one, and an earlier one may be better."""
    best = max(rounds.fitting(fitting), key=fitting.worth, default=None)
    if best is None or (isinstance(found, Layout) and fitting.worth(best) <= fitting.worth(found)):
        return found
    return best


def _try_between(
    fitting: Fitting, rounds: _Rounds, report: MemoryReport, layout: Layout, following: Layout
) -> Layout | Missing | None:
    """Try layouts between the measured one and the next one, which swings above it."""
    for count in range(fitting.offloaded(following), fitting.offloaded(layout), -1):
        trial = fitting.plan(report, 0.0, exactly=count)
        if trial is None or rounds.are_over:
            continue
        measured = rounds.report(trial)
        if measured is None:
            return Missing(layout=trial)
        if isinstance(measured, MemoryReport) and fitting.fits(measured, trial):
            return trial
    return None


def _best_known(fitting: Fitting, rounds: _Rounds, layout: Layout, report: MemoryReport) -> Layout | Unallocatable:
    """End the run with the best layout that was measured and fits, if there is one."""
    best = max(rounds.fitting(fitting), key=fitting.offloaded, default=None)
    if best is not None:
        return best
    given = fitting.given_layers
    message = NOT_ALLOCATED if given is None else f"{NOT_ALLOCATED} with num_gpu = {given}"
    return Unallocatable(message=message, layout=layout, report=report)
