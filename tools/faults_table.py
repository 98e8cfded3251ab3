"""docs/reliability.md, written from the newest report of `make faults`: `python -m tools.faults_table [--check]`."""

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

from tools.generated import ROOT, write_or_check
from tools.tidy_report import MARKDOWN_LINE_MAX

DOCUMENT = ROOT / "docs" / "reliability.md"
RESULTS = ROOT / "bench" / "results"
HEAD = """\
# Reliability

Bars of reliability, what was asked and what was measured. `make faults` runs them: faults are injected into a real
cluster under an open-loop load, and each fault is proven to have happened. An interrupted run continues where it was.
It takes about three hours on two quiet cores: the bars run one by one, those that wait most of the time in several
clusters, one more than there are processors at most; the soak runs throughout.
`FAULTS="--bars redis_down"` runs one bar, `--share 0.1` a tenth of its size. Bars 15 to 19 run the tests and attacks
that show them. The tests run a sample of every other bar but the soak (`tests/faults/test_bars.py`). `make soak` runs
bar 20 alone; SOAK="--seconds 600" makes it shorter.

The slope test of the soak: of each minute after the warm-up (a fifth of the time, two minutes of a process), the least
memory and the least number of descriptors of a process count, where it had as many children as in most minutes. Its
slope is the median of the slopes between all pairs of minutes; a process is judged if its minutes span half of that
time. In less than two hours the slope of the memory is shown and not judged.

In every bar, each accepted request must end exactly once, no answer may lose, double or change a token, and every
fault must be proven; otherwise the bar is missed. A bar is *not measurable* when only times are missed while processes
of others took the processors.

Not shown by these: faults of real devices, latency of wide networks, more than a few nodes. Runners use the timed
engine of the tests, not a language model; kills with the real engine are in `tests/faults`.

This page is generated: `python -m tools.faults_table`.
"""


def newest_report() -> Path | None:
    """Return the newest report; None before the first."""
    return max(RESULTS.glob("*-faults.json"), default=None)


def document(report: dict[str, Any], name: str) -> str:
    """Return the whole page."""
    machine = report["machine"]
    about = (
        f"Measured on {machine['cores']} cores ({machine['processor']}), commit `{report['commit'][:10]}`: "
        f"[{name}](../bench/results/{name})."
    )
    lines = [HEAD, textwrap.fill(about, MARKDOWN_LINE_MAX, break_long_words=False, break_on_hyphens=False), ""]
    lines += ["| bar | what | size | faults proven | requests answered | result |", "|---:|---|---|---|---|---|"]
    lines += [_row(bar) for bar in report["bars"]]
    lines += ["", "## Figures", "", "| bar | figure | asked | measured | |", "|---:|---|---|---:|---|"]
    for bar in report["bars"]:
        lines += [_figure(bar["bar"], figure) for figure in bar.get("figures", ())]
    return "\n".join(lines) + "\n"


def _row(bar: dict[str, Any]) -> str:
    if why := bar.get("not_run"):
        return f"| {bar['bar']} | {bar['title']} | – | – | – | not run: {why} |"
    faults, requests = bar["faults"], bar["requests"]
    size = f"{bar['size']} {bar['unit']}" + ("" if bar["size"] >= bar["full_size"] else f" of {bar['full_size']}")
    result = "met" if bar["met"] else f"not measurable: {bar['not_measurable']}" if bar["not_measurable"] else "missed"
    proven = f"{faults['proven']} of {faults['injected']}" if faults["injected"] else "–"
    answered = f"{requests['ok']} of {requests['asked']}" if requests["asked"] else "–"
    return f"| {bar['bar']} | {bar['title']} | {size} | {proven} | {answered} | {result} |"


def _figure(number: int, figure: dict[str, Any]) -> str:
    measured = "–" if figure["measured"] is None else f"{figure['measured']:g}"
    return f"| {number} | {figure['name']} | {figure['asked']} | {measured} | {'' if figure['met'] else 'missed'} |"


def main(arguments: list[str]) -> int:
    """Write the page, or compare it."""
    path = newest_report()
    if path is None:
        print("no report in bench/results: make faults", file=sys.stderr)
        return 1
    page = document(json.loads(path.read_text(encoding="utf-8")), path.name)
    return write_or_check({DOCUMENT: page}, arguments, tool="faults_table")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
