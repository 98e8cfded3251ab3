"""Tables of the architecture, written from the code between markers: `python -m tools.architecture_tables`.

docs/architecture.md gets the services and the state machines, docs/reference.md every call and every message.
`--check` only says whether both are up to date.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from tools.proto_tables import call_table, message_tables, service_table
from tools.state_tables import state_tables

ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURE = ROOT / "docs" / "architecture.md"
REFERENCE = ROOT / "docs" / "reference.md"
TABLES: dict[Path, dict[str, Callable[[], str]]] = {
    ARCHITECTURE: {"services": service_table, "states": state_tables},
    REFERENCE: {"calls": call_table, "messages": message_tables},
}


def with_tables(page: Path, text: str) -> str:
    """A page with the tables of the code.

    Raises:
        ValueError: it lacks the markers of a table.
    """
    for name, write in TABLES[page].items():
        begin = f"<!-- {name}, from the code: python -m tools.architecture_tables -->"
        end = f"<!-- end of {name} -->"
        head, found, rest = text.partition(begin)
        _, ended, tail = rest.partition(end)
        if not found or not ended:
            raise ValueError(f"{page.name} lacks the markers {begin} and {end}")
        text = f"{head}{begin}\n\n{write()}\n\n{end}{tail}"
    return text


def main(arguments: list[str]) -> int:
    """Write, or check. 1: not up to date."""
    stale = 0
    for page in TABLES:
        before = page.read_text(encoding="utf-8")
        after = with_tables(page, before)
        if before != after and "--check" in arguments:
            print(f"{page.relative_to(ROOT)} is not up to date: python -m tools.architecture_tables", file=sys.stderr)
            stale = 1
        elif before != after:
            page.write_text(after, encoding="utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
