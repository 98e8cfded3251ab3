"""Find the first of several markers in text that is still arriving."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerMatch:
    """Text before the first marker, that marker ("" if there is none yet), and what is not decided."""

    before: str
    marker: str
    rest: str


def find_marker(text: str, markers: Sequence[str]) -> MarkerMatch:
    """Cut at the first complete marker; of several that begin at the same place the longest counts.

    Without one, `before` is what can no longer become part of a marker and `rest` the part that still can.
    """
    best = len(text)
    chosen = ""
    for marker in markers:
        index = text.find(marker)
        if index >= 0 and (index < best or (index == best and len(marker) > len(chosen))):
            best, chosen = index, marker
    held = _held_from(text, markers)
    if chosen and best <= held:
        longer = any(len(marker) > len(chosen) and marker.startswith(text[best:]) for marker in markers)
        if not longer:
            return MarkerMatch(before=text[:best], marker=chosen, rest=text[best + len(chosen) :])
        held = best
    return MarkerMatch(before=text[:held], marker="", rest=text[held:])


def _held_from(text: str, markers: Sequence[str]) -> int:
    """Return the start of the longest suffix that is a proper prefix of a marker."""
    longest = max((len(marker) for marker in markers), default=0)
    for start in range(max(0, len(text) - longest + 1), len(text)):
        if any(len(marker) > len(text) - start and marker.startswith(text[start:]) for marker in markers):
            return start
    return len(text)
