"""Comparisons as Markdown. Pure."""

from collections.abc import Sequence

from bench.engine.figures import METRICS, OWN_METRICS, Comparison
from bench.engine.targets import Measure, Verdict

_FORMATS = {metric.name: (metric.title, metric.digits) for metric in (*METRICS, *OWN_METRICS)}


def comparison_table(comparisons: Sequence[Comparison], *, ours: str, peer: str) -> list[str]:
    """Return a table with a row per figure, case by case."""
    lines = [f"| model | case | figure | {ours} | {peer} | ratio |", "|---|---|---|---:|---:|---:|"]
    for entry in comparisons:
        title, digits = _FORMATS[entry.metric]
        peer_text = "" if entry.peer is None else f"{entry.peer:.{digits}f}"
        ratio_text = "" if entry.ratio is None else f"{entry.ratio:.2f}"
        lines.append(
            f"| {entry.model} | {entry.case} | {title} | {entry.ours:.{digits}f} | {peer_text} | {ratio_text} |"
        )
    return lines


def target_table(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a table with a row per target."""
    lines = ["| bar | target | measured | bound | kept |", "|---|---|---:|---:|---|"]
    for verdict in verdicts:
        target = verdict.target
        title, _ = _FORMATS[target.metric]
        sign = "≥" if target.at_least else "≤"
        what = f"{target.model} {target.case}, {title}"
        if target.measure is not Measure.OWN:
            what += f", {target.measure.value}"
        kept = "yes" if verdict.kept else "no"
        lines.append(f"| {target.bar} | {what} | {verdict.value:.2f} | {sign} {target.bound:g} | {kept} |")
    return lines
