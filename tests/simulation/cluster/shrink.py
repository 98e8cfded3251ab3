"""Find the fewest steps of a scenario that still break the same rule."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.simulation.cluster.episode import Episode
from tests.simulation.cluster.scenario import Scenario, Step

RUNS_MAX = 200


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The smallest scenario that was found, and its violation."""

    scenario: Scenario
    violation: str
    runs: int

    def text(self) -> str:
        """Return the steps, one a line, as they can be written into a test."""
        lines = [f"seed {self.scenario.seed}: {self.violation}", f"{self.scenario.plan}"]
        return "\n".join([*lines, *(f"  {step}" for step in self.scenario.steps)])


def rule_of(violation: str) -> str:
    """Return what is broken, without times and names."""
    found = re.search(r"rule \d|poison|blame", violation)
    return found[0] if found else violation.partition(":")[0]


def shrink(
    scenario: Scenario,
    violation: str,
    *,
    runs_max: int = RUNS_MAX,
    violation_of: Callable[[Scenario], str] = lambda scenario: Episode(scenario).run().violation,
) -> Shrunk:
    """Leave out ever smaller parts of the steps while the same rule breaks (delta debugging).

    Source: Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002.
    """
    steps, runs, parts = scenario.steps, 0, 2
    rule = rule_of(violation)
    while len(steps) > 1 and runs < runs_max:
        size = max(1, len(steps) // parts)
        for start in range(0, len(steps), size):
            if runs >= runs_max:
                break
            fewer: tuple[Step, ...] = steps[:start] + steps[start + size :]
            runs += 1
            found = violation_of(replace(scenario, steps=fewer))
            if found and rule_of(found) == rule:
                steps, violation, parts = fewer, found, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(steps), parts * 2)
    return Shrunk(replace(scenario, steps=steps), violation, runs)
