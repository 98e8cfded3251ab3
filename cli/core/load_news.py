"""What POST /puna/v1/load says, as text. Pure."""

from collections.abc import Mapping
from typing import Any

DONE = frozenset({"ready"})


def load_text(news: Mapping[str, Any]) -> str:
    """One line of news."""
    match news.get("status"):
        case "queued":
            return f"waits, position {news.get('position')}"
        case "loading":
            return f"loading {float(news.get('fraction') or 0):.0%}"
        case status:
            return str(status)
