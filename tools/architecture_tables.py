"""Tables of the architecture, written from the code between markers: `python -m tools.architecture_tables`.

docs/architecture/states.md gets the state machines, docs/reference.md every service, call and message.
`--check` only reports whether both are up to date.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from tools.generated import ROOT, between, write_or_check
from tools.proto_tables import call_table, message_tables, service_table
from tools.state_tables import state_tables

STATES = ROOT / "docs" / "architecture" / "states.md"
REFERENCE = ROOT / "docs" / "reference.md"
TABLES: dict[Path, dict[str, Callable[[], str]]] = {
    STATES: {"states": state_tables},
    REFERENCE: {"services": service_table, "calls": call_table, "messages": message_tables},
}


def with_tables(page: Path, text: str) -> str:
    """Return the page with the tables of the code.

    Raises:
        ValueError: it lacks the markers of a table.
    """
    for name, write in TABLES[page].items():
        begin = f"<!-- {name}, from the code: python -m tools.architecture_tables -->"
        text = between(text, begin, f"<!-- end of {name} -->", write())
    return text


def main(arguments: list[str]) -> int:
    """Write the pages, or check them. 1: not up to date."""
    wanted = {page: with_tables(page, page.read_text(encoding="utf-8")) for page in TABLES}
    return write_or_check(wanted, arguments, tool="architecture_tables")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
