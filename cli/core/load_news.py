"""Progress events of POST /puna/v1/load, as text. Pure."""

from collections.abc import Mapping
from typing import Any

from cli.core.formatting import format_span

DONE = frozenset({"ready"})


def load_text(news: Mapping[str, Any]) -> str:
    """One line of news."""
    match news.get("status"):
        case "queued":
            return f"waits, position {news.get('position')}" + _expected(news)
        case "loading":
            return f"loading {float(news.get('fraction') or 0):.0%}" + _expected(news)
        case status:
            return str(status)


def _expected(news: Mapping[str, Any]) -> str:
    """Describe the step that the load waits for and the time that is left, as far as they are known."""
    first = f", for {news['waits_for']}" if news.get("waits_for") else ""
    eta_s = news.get("eta_s")
    return f"{first}, about {format_span(float(eta_s))} left" if eta_s is not None and eta_s >= 1 else first
