"""Metrics are named as Prometheus wants it, and docs/metrics.md shows what the code has."""

import re

from tools import metrics_catalogue
from tools.metrics_catalogue import DOCUMENT, MODULES, catalogue, entries, with_catalogue

ALL = [entry for module in MODULES.values() for entry in entries(module)]
# Endings that belong to parts of histograms and summaries, or to counters.
NOT_OF_GAUGES = ("_total", "_count", "_sum", "_bucket")
# Units that are no base units.
NO_BASE_UNIT = re.compile(r"_(ms|milliseconds|microseconds|minutes|hours|kb|mb|gb|kib|mib|gib|percent|number)(_|$)")
# What would grow with every request or every process.
UNBOUNDED = {"request_id", "user", "key", "tenant", "address", "pid", "prompt", "path", "placement_id", "error"}


def test_the_document_has_the_metrics_of_the_code() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert with_catalogue(text) == text, "run: python -m tools.metrics_catalogue"


def test_every_process_has_metrics_and_no_name_is_there_twice() -> None:
    assert all(entries(module) for module in MODULES.values())
    names = [entry.name for entry in ALL]
    assert len(names) == len(set(names))
    assert len(names) > 80


def test_names_follow_the_conventions() -> None:
    wrong = [
        entry.name
        for entry in ALL
        if not re.fullmatch(r"puna_[a-z0-9_]+", entry.name)
        or (entry.kind == "counter") != entry.name.endswith("_total")
        or (entry.kind != "counter" and entry.name.endswith(NOT_OF_GAUGES))
        or NO_BASE_UNIT.search(entry.name)
    ]
    assert wrong == []


def test_labels_are_bounded_and_every_metric_says_what_it_means() -> None:
    assert [entry.name for entry in ALL if UNBOUNDED & set(entry.labels)] == []
    assert [entry.name for entry in ALL if len(entry.text) < 12 or entry.text.endswith(".") or "|" in entry.text] == []


def test_a_metric_that_the_document_lacks_is_noticed() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    row = next(line for line in catalogue().splitlines() if "puna_gateway_requests_total" in line)
    assert with_catalogue(text.replace(row, "")) == text
    assert metrics_catalogue.main(["--check"]) == 0
