"""Files and parts of pages that are generated: written, or compared with `--check`."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def between(text: str, begin: str, end: str, content: str) -> str:
    """Return the text with the content between two markers.

    Raises:
        ValueError: the text lacks a marker.
    """
    head, found, rest = text.partition(begin)
    _, ended, tail = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"the page lacks the markers {begin} and {end}")
    return f"{head}{begin}\n\n{content}\n\n{end}{tail}"


def write_or_check(wanted: Mapping[Path, str], arguments: Sequence[str], *, tool: str) -> int:
    """Write the files that differ; with `--check` name them instead, and return 1."""
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not up to date: python -m tools.{tool}", file=sys.stderr)
        return int(bool(stale))
    for path in stale:
        path.write_text(wanted[path], encoding="utf-8")
    return 0
