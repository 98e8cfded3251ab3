"""The catalogue of metrics in docs/metrics.md, written from the code between two markers.

`python -m tools.metrics_catalogue` writes it; `--check` only reports whether it is up to date.
"""

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from common.telemetry.device_metrics import DeviceGauges
from common.telemetry.metrics import Family, ScrapedGauges
from tools.generated import ROOT, between, write_or_check

DOCUMENT = ROOT / "docs" / "metrics.md"
BEGIN = "<!-- from the code: python -m tools.metrics_catalogue -->"
END = "<!-- end of the catalogue -->"
MODULES = {
    "Every process": "common.telemetry.metrics",
    "Gateway": "gateway.metrics",
    "Scheduler": "scheduler.metrics",
    "Discovery": "discovery.metrics",
    "Host": "runner.host.metrics",
    "Runner": "runner.metrics",
}
_KINDS: dict[type, str] = {Counter: "counter", Gauge: "gauge", Histogram: "histogram"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One metric as its page shows it; of a histogram the name without `_bucket`, `_sum` and `_count`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def entries(module_name: str) -> list[Entry]:
    """Return the metrics that a module defines, in its order."""
    found: list[Entry] = []
    for value in vars(importlib.import_module(module_name)).values():
        found += [one for one in _entries_of(value) if one not in found]
    return found


def catalogue() -> str:
    """All tables."""
    parts = []
    for title, module_name in MODULES.items():
        rows = [
            f"| `{one.name}` | {one.kind} | {', '.join(f'`{label}`' for label in one.labels) or '–'} | {one.text} |"
            for one in entries(module_name)
        ]
        parts.append("\n".join([f"### {title}", "", "| name | type | labels | meaning |", "|---|---|---|---|", *rows]))
    return "\n\n".join(parts)


def with_catalogue(document: str) -> str:
    """Return the document with the tables of the code.

    Raises:
        ValueError: it has no markers.
    """
    return between(document, BEGIN, END, catalogue())


def main(arguments: list[str]) -> int:
    """Write the document, or check it. 1: not up to date."""
    wanted = {DOCUMENT: with_catalogue(DOCUMENT.read_text(encoding="utf-8"))}
    return write_or_check(wanted, arguments, tool="metrics_catalogue")


def _entries_of(value: object) -> Iterator[Entry]:
    match value:
        case MetricWrapperBase():
            (family,) = value.describe()
            kind = _KINDS[type(value)]
            name = f"{family.name}_total" if kind == "counter" else family.name
            yield Entry(
                name=name, kind=kind, labels=tuple(value._labelnames), text=family.documentation
            )  # it names them nowhere else
        case DeviceGauges():
            yield from _entries_of(value.gauges)
        case ScrapedGauges():
            for scraped in value.families:
                yield from _entries_of(scraped)
        case Family():
            yield Entry(name=value.name, kind="gauge", labels=value.labels, text=value.text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
