"""Shared code has one definition."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("cli", "common", "discovery", "gateway", "runner", "scheduler")
CLOCK = ROOT / "common" / "clock.py"
# Powers of a thousand next to a name that ends in a unit of time: a conversion of somebody's own.
FACTOR = re.compile(r"(?<![\w.])(1e6|1e9|1_000_000|1_000_000_000|10\*\*6|10\*\*9)(?![\w.])")
UNIT = re.compile(r"(_|\b)(ms|ns)\b")


def sources() -> list[Path]:
    return [path for service in SERVICES for path in sorted((ROOT / service).rglob("*.py"))]


@pytest.mark.behaviour("B-120")
def test_no_message_enum_or_service_is_defined_twice() -> None:
    names = [
        name
        for path in sorted((ROOT / "protos").glob("*.proto"))
        for name in re.findall(r"^(?:message|enum|service) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(names) > 50
    assert [name for name, count in Counter(names).items() if count > 1] == []


@pytest.mark.behaviour("B-120")
def test_milliseconds_become_durations_in_one_place() -> None:
    own = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources()
        if path != CLOCK
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if FACTOR.search(line) and UNIT.search(line.partition("#")[0])
    ]
    assert own == []
