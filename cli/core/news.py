"""Progress events of a pull, a create or a load, as lines and bars. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cli.core.formatting import format_bytes, format_span

DONE = frozenset({"ready"})
_DIGEST_DIGITS = 12


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Progress of one blob."""

    key: str
    text: str
    done_bytes: int
    total_bytes: int


def store_text(news: Mapping[str, Any]) -> str:
    """Return the status; at the end of a pull, with the nodes that manifest or files came from."""
    peers = ", ".join(news.get("peers") or ())
    return str(news.get("status", "")) + (f", from {peers}" if peers else "")


def bar_of(news: Mapping[str, Any]) -> Bar | None:
    """Return the bar of the event's blob; None: it names no blob, or the size is not known."""
    total = int(news.get("total") or 0)
    if not news.get("digest") or total == 0:
        return None
    done = min(int(news.get("completed") or 0), total)
    return Bar(key=str(news["digest"]), text=str(news.get("status", "")), done_bytes=done, total_bytes=total)


@dataclass(slots=True)
class PlainNews:
    """Lines for a pipe: each status once, and each blob when it begins and when it is there."""

    _said: str = ""
    _whole: set[str] = field(default_factory=set)

    def lines(self, news: Mapping[str, Any]) -> Iterable[str]:
        """Yield the lines to print for one event of the server."""
        status, bar = store_text(news), bar_of(news)
        if status != self._said and (bar is None or bar.key not in self._whole):
            self._said = status
            yield f"{status} ({format_bytes(bar.total_bytes)})" if bar is not None else status
        if bar is not None and bar.done_bytes == bar.total_bytes and bar.key not in self._whole:
            self._whole.add(bar.key)
            yield f"{short_digest(bar.key)} is there"


def short_digest(digest: str) -> str:
    """As people compare digests."""
    return digest.removeprefix("sha256:")[:_DIGEST_DIGITS]
