"""The loop of measure → plan → measure until the layout repeats. Pure, over reports that are already known.

The compute graph depends on the layout, and the layout on the graph. A report that is missing ends the run with
`Missing`; whoever has it measured runs the loop again from its beginning, which takes the same way and goes on.

1. A plan that was not tried and offloads no more than the last one: we know more now, fewer layers is progress.
2. A plan that offloads more: graphs came and went with the layers. What lies between is tried, most layers first.
3. Nothing of that, and the layout fits: done.
4. It does not fit: leave a tenth more of what is free, until there is nothing left to leave.

A plan with more layers that was never tried is tried itself, too: it is not known to be too large. And what the loop
has found is the ground for a last climb, as long as there are rounds: graphs that were large in one layout may be small
in a better one. Of what is as good then, something clearly faster is taken.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from scheduler.core.values.faults import Fault
from scheduler.core.values.layouts import Layout
from scheduler.core.values.memory import MemoryReport

BACKOFF_MAX = 1.0
NOT_ALLOCATED = "memory layout cannot be allocated"


class Planning(Protocol):
    """What the loop asks of whoever knows the devices."""

    def plan(self, report: MemoryReport | None, backoff: float, exactly: int | None = None) -> Layout | None:
        """A layout for these sizes, with `exactly` so many layers if given; None: the shape cannot be had like this."""

    def better(self, layout: Layout | None, reports: Mapping[Layout, MemoryReport]) -> Layout | None:
        """The next better layout that may fit after all, by what was measured; none of those that were."""

    def faster(self, layout: Layout, reports: Mapping[Layout, MemoryReport]) -> Layout | None:
        """The next that is as good as this one, and clearly faster."""

    def offloaded(self, layout: Layout) -> int:
        """What counts as more or less of a layout: layers on devices."""

    def worth(self, layout: Layout) -> tuple[int, ...]:
        """What is better is larger: blocks on devices first, then the output."""

    def fits(self, report: MemoryReport, layout: Layout) -> bool:
        """Whether every device and every pool has room for what was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """This layout must be measured before the loop can go on."""

    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Converged:
    """This layout fits as measured."""

    layout: Layout
    report: MemoryReport
    rounds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unallocatable:
    """Nothing was found; with the last layout that was measured."""

    message: str
    rounds: int
    layout: Layout | None = None
    report: MemoryReport | None = None
    fault: Fault | None = None


@dataclass(slots=True)
class _Rounds:
    """Measured layouts of one run."""

    measure: Callable[[Layout], MemoryReport | Fault | None]
    rounds_max: int
    reports: dict[Layout, MemoryReport] = field(default_factory=dict)

    def report(self, layout: Layout) -> MemoryReport | Fault | None:
        """A report; each one that was not looked at before is a round."""
        if layout in self.reports:
            return self.reports[layout]
        found = self.measure(layout)
        if isinstance(found, MemoryReport):
            self.reports[layout] = found
        return found

    @property
    def are_over(self) -> bool:
        """Whether the run has had its share."""
        return len(self.reports) >= self.rounds_max


def converge(
    planning: Planning,
    measure: Callable[[Layout], MemoryReport | Fault | None],
    *,
    given_layers: int | None = None,
    backoff_step: float = 0.1,
    rounds_max: int = 16,
) -> Converged | Missing | Unallocatable:
    """Run the loop. `measure` answers from what is known; None: not measured yet."""
    rounds = _Rounds(measure, rounds_max)
    found = _run(planning, rounds, given_layers, backoff_step)
    if given_layers is not None or isinstance(found, Missing) or not rounds.reports:
        return found
    return _climb(planning, rounds, found)


def _run(
    planning: Planning, rounds: _Rounds, given_layers: int | None, backoff_step: float
) -> Converged | Missing | Unallocatable:
    layout = planning.plan(None, 0.0)
    backoff, seen = 0.0, set[Layout]()
    if layout is None:
        return Unallocatable(message=NOT_ALLOCATED, rounds=0)
    while True:
        report = rounds.report(layout)
        if report is None:
            return Missing(layout=layout)
        if isinstance(report, Fault):
            return Unallocatable(message=report.message, rounds=len(rounds.reports), layout=layout, fault=report)
        seen.add(layout)
        following = planning.plan(report, backoff)
        more = 0 if following is None else planning.offloaded(following) - planning.offloaded(layout)
        if following is not None and more <= 0 and following not in seen and not rounds.are_over:
            layout = following
            continue
        if following is not None and more > 0 and given_layers is None:
            between = _try_between(planning, rounds, report, layout, following)
            if between is not None:
                return between
        if planning.fits(report, layout):
            return Converged(layout=layout, report=report, rounds=len(rounds.reports))
        backoff += backoff_step
        if given_layers is not None or following is None or backoff > BACKOFF_MAX or rounds.are_over:
            return _best_known(planning, rounds, layout, report, given_layers)


def _climb(
    planning: Planning, rounds: _Rounds, found: Converged | Unallocatable
) -> Converged | Missing | Unallocatable:
    """Whether a better layout fits after all, or a faster one that is as good."""
    if isinstance(found, Unallocatable) and found.fault is not None:
        return found
    found = _best_fitting(planning, rounds, found)
    while not rounds.are_over:
        layout = found.layout if isinstance(found, Converged) else None
        trial = planning.better(layout, rounds.reports)
        if trial is None and layout is not None:
            trial = planning.faster(layout, rounds.reports)
        if trial is None:
            break
        report = rounds.report(trial)
        if report is None:
            return Missing(layout=trial)
        if isinstance(report, Fault):
            break
        if planning.fits(report, trial):
            found = Converged(layout=trial, report=report, rounds=len(rounds.reports))
    return replace(found, rounds=len(rounds.reports))


def _best_fitting(planning: Planning, rounds: _Rounds, found: Converged | Unallocatable) -> Converged | Unallocatable:
    """The loop takes the last that fits; one on its way may have been better."""
    fitting = [one for one, known in rounds.reports.items() if planning.fits(known, one)]
    best = max(fitting, key=planning.worth, default=None)
    if best is None or (isinstance(found, Converged) and planning.worth(best) <= planning.worth(found.layout)):
        return found
    return Converged(layout=best, report=rounds.reports[best], rounds=len(rounds.reports))


def _try_between(
    planning: Planning, rounds: _Rounds, report: MemoryReport, layout: Layout, following: Layout
) -> Converged | Missing | None:
    """Layouts between the one that was measured and the one that swings above it."""
    for count in range(planning.offloaded(following), planning.offloaded(layout), -1):
        trial = planning.plan(report, 0.0, exactly=count)
        if trial is None or rounds.are_over:
            continue
        measured = rounds.report(trial)
        if measured is None:
            return Missing(layout=trial)
        if isinstance(measured, MemoryReport) and planning.fits(measured, trial):
            return Converged(layout=trial, report=measured, rounds=len(rounds.reports))
    return None


def _best_known(
    planning: Planning, rounds: _Rounds, layout: Layout, report: MemoryReport, given_layers: int | None
) -> Converged | Unallocatable:
    """The run is over: the best of what was measured and fits is better than nothing."""
    fitting = [one for one, known in rounds.reports.items() if planning.fits(known, one)]
    if fitting:
        best = max(fitting, key=planning.offloaded)
        return Converged(layout=best, report=rounds.reports[best], rounds=len(rounds.reports))
    message = NOT_ALLOCATED if given_layers is None else f"{NOT_ALLOCATED} with num_gpu = {given_layers}"
    return Unallocatable(message=message, rounds=len(rounds.reports), layout=layout, report=report)
