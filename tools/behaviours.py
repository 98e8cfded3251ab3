"""`python -m tools.behaviours [PART]`: every promised behaviour with its tests and their result.

Fails if an id of the part has no passing test, or a test names an id that is not promised.
"""

import argparse
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest
from rich.console import Console
from rich.markup import escape
from rich.table import Table

CATALOGUE = Path(__file__).resolve().parent.parent / "tests" / "behaviours.toml"
MARKER = "behaviour"


class Collector:
    """pytest plugin: runs the tests of the wanted ids only and notes how each went."""

    def __init__(self, wanted: set[str]) -> None:
        self.wanted = wanted
        self.named: set[str] = set()
        self.tests: dict[str, set[str]] = defaultdict(set)
        self.outcomes: dict[str, str] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep the tests that show a wanted behaviour."""
        kept: list[pytest.Item] = []
        dropped: list[pytest.Item] = []
        for item in items:
            ids = {str(name) for mark in item.iter_markers(MARKER) for name in mark.args}
            self.named |= ids
            for name in ids & self.wanted:
                self.tests[name].add(item.nodeid)
            (kept if ids & self.wanted else dropped).append(item)
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test's worst phase as its result."""
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = report.outcome

    def result_of(self, name: str) -> str:
        """Return the result of one id: "passed", "failed", "skipped" or "no test"."""
        outcomes = {self.outcomes.get(test, "failed") for test in self.tests.get(name, ())}
        if not outcomes:
            return "no test"
        return "failed" if "failed" in outcomes else "passed" if "passed" in outcomes else "skipped"


def main() -> int:
    """Exit status 0 only if every behaviour of the part is shown."""
    catalogue: dict[str, dict[str, str]] = tomllib.loads(CATALOGUE.read_text())
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", default="all", choices=["all", *catalogue])
    part = parser.parse_args().part
    parts = list(catalogue) if part == "all" else [part]
    titles = {name: title for each in parts for name, title in catalogue[each].items()}
    collector = Collector(set(titles))
    status = pytest.main(["-q", "--no-header", "-p", "no:cacheprovider"], plugins=[collector])
    console = Console()
    console.print(_table(titles, collector))
    unknown = collector.named - {name for each in catalogue.values() for name in each}
    missing = [name for name in titles if collector.result_of(name) != "passed"]
    console.print(
        f"{len(titles) - len(missing)} of {len(titles)} behaviours shown; not shown: {', '.join(missing) or '-'}"
    )
    if unknown:
        console.print(f"tests name unknown behaviours: {', '.join(sorted(unknown))}")
    return int(bool(missing or unknown or status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)))


def _table(titles: dict[str, str], collector: Collector) -> Table:
    table = Table("id", "behaviour", "result", "tests", box=None)
    for name, title in titles.items():
        tests = sorted(test.rpartition("::")[2] for test in collector.tests.get(name, ()))
        # Parameters in the names of tests, such as [/api/chat], are no markup.
        table.add_row(name, escape(title), collector.result_of(name), escape("\n".join(tests)))
    return table


if __name__ == "__main__":
    sys.exit(main())
