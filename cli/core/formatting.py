"""Figures as people read them. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

_STEP = 1000
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_SPANS = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


def format_bytes(count: int) -> str:
    """Decimal units with at most three digits, as disk and model sizes are given: "4.7 GB"."""
    value = float(count)
    for unit in _UNITS:
        if value < _STEP - 0.5 or unit == _UNITS[-1]:
            digits = 1 if unit != "B" and value < 9.95 else 0
            return f"{value:.{digits}f} {unit}"
        value /= _STEP
    raise AssertionError("the last unit takes every value")


def format_span(span_s: float) -> str:
    """Format a span in its largest whole unit: "4 minutes"; under a second "now"."""
    for unit_s, name in _SPANS:
        if span_s >= unit_s:
            count = int(span_s // unit_s)
            return f"{count} {name}{'' if count == 1 else 's'}"
    return "now"


def format_until(timestamp: str | None, *, now_unix_s: float) -> str:
    """Format an RFC 3339 time relative to now; absent and far-off times read "forever"."""
    if not timestamp:
        return "forever"
    distance_s = datetime.fromisoformat(timestamp).timestamp() - now_unix_s
    if distance_s > 10 * 365 * 86400:  # servers write a date beyond every life for "never"
        return "forever"
    return "now" if distance_s < 1 else f"in {format_span(distance_s)}"


def format_since(timestamp: str, *, now_unix_s: float) -> str:
    """Format the age of an RFC 3339 time."""
    distance_s = now_unix_s - datetime.fromisoformat(timestamp).timestamp()
    return "now" if distance_s < 1 else f"{format_span(distance_s)} ago"


def crash_text(row: Mapping[str, Any], *, now_unix_s: float) -> str:
    """Return the crashes in a row of /puna/v1/nodes or /puna/v1/explain in words, with the next try."""
    wait_s = float(row.get("retry_at_unix_ms") or 0) / 1000 - now_unix_s
    when = f"in {format_span(wait_s)}" if wait_s >= 1 else "with the next request"
    return f"crashed {row.get('crashes')} times in a row, next try {when}"


def lent_text(borrower: Mapping[str, Any]) -> str:
    """Return the borrower of a device from a row of /puna/v1/nodes or /puna/v1/explain."""
    return f"placement {borrower.get('placement')} of model {borrower.get('model')} on node {borrower.get('node')}"
