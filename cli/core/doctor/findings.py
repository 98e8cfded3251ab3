"""One line of `puna doctor`. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """Severity of a finding. `SKIP`: the check could not run, or it had nothing to check."""

    OK = "ok"
    SKIP = "skip"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A result of one check; `advice` is empty if no action is needed."""

    area: str
    level: Level
    text: str
    advice: str = ""


def ok(area: str, text: str) -> Finding:
    """All is well."""
    return Finding(area=area, level=Level.OK, text=text)


def skip(area: str, text: str) -> Finding:
    """Not looked at."""
    return Finding(area=area, level=Level.SKIP, text=text)


def warn(area: str, text: str, advice: str) -> Finding:
    """Return a finding about something that works with restrictions."""
    return Finding(area=area, level=Level.WARN, text=text, advice=advice)


def fail(area: str, text: str, advice: str) -> Finding:
    """Return a finding about something that does not work."""
    return Finding(area=area, level=Level.FAIL, text=text, advice=advice)


def has_failed(findings: Iterable[Finding]) -> bool:
    """Return True if a finding failed; the exit status is then 1."""
    return any(one.level is Level.FAIL for one in findings)


def summary(findings: Iterable[Finding]) -> str:
    """Return the last line of the report."""
    levels = [one.level for one in findings]
    failed, warned = levels.count(Level.FAIL), levels.count(Level.WARN)
    if not failed and not warned:
        return "nothing to complain about"
    parts = [f"{failed} failed"] * bool(failed) + [f"{warned} to look at"] * bool(warned)
    return ", ".join(parts)
