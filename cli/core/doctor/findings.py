"""One line of `puna doctor`. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is. `SKIP`: it could not be looked at, or there is nothing to look at."""

    OK = "ok"
    SKIP = "skip"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found, and what to do about it; `advice` is empty where nothing is to be done."""

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
    """It works, but not as it should."""
    return Finding(area=area, level=Level.WARN, text=text, advice=advice)


def fail(area: str, text: str, advice: str) -> Finding:
    """It does not work."""
    return Finding(area=area, level=Level.FAIL, text=text, advice=advice)


def has_failed(findings: Iterable[Finding]) -> bool:
    """Whether the exit status is 1."""
    return any(one.level is Level.FAIL for one in findings)


def summary(findings: Iterable[Finding]) -> str:
    """The last line."""
    levels = [one.level for one in findings]
    failed, warned = levels.count(Level.FAIL), levels.count(Level.WARN)
    if not failed and not warned:
        return "nothing to complain about"
    parts = [f"{failed} failed"] * bool(failed) + [f"{warned} to look at"] * bool(warned)
    return ", ".join(parts)
