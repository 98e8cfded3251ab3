"""The table of real clients in docs/compatibility.md: written here, kept by `make conformance`. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from tools.conformance.document import CLIENTS_HEADING, split_page

_HEAD = f"""{CLIENTS_HEADING}

Programs and libraries that people point at Puna, unchanged and at pinned versions, each with one real task
(`make clients`): cluster and client share a network namespace that has a loopback interface and nothing else, and
the model is a scripted one behind the real engine (`tools/clients/scripted_model.py`). Rows of clients that a run
left out are of an earlier run.

- *Result*: `whole`, `stream`: the task went well without and with a stream, as far as the client has both.
- An agent writes a program to disk, runs it and says what it printed, on three turns of one conversation. At least
  95 % of each prompt must be cached at the next request, without the generation prompt that spells what the scripted
  model says. The remark has the lowest share.

| Client | Version | API | Task | Result | Remark |
|---|---|---|---|---|---|"""
_TEXT_MAX = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One task of one client in one mode. `why` is empty where it went well."""

    client: str
    version: str
    dialect: str
    task: str
    stream: bool
    why: str = ""
    remark: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what names a line of the table."""
        return self.client, self.dialect, self.task


Key = tuple[str, str, str]


def with_rows(page: str, rows: Iterable[Row], keys: Iterable[Key]) -> str:
    """Return the page with new lines for these rows; `keys` are all lines that there may be, in order."""
    others, section = split_page(page)
    lines = {key: line for line in section.splitlines() if (key := _key(line))}
    groups: dict[Key, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.key, []).append(row)
    lines |= {key: _line(group) for key, group in groups.items()}
    table = [lines.get(key, f"| {key[0]} |  | {key[1]} | {key[2]} | not run |  |") for key in keys]
    return "\n".join([others.rstrip("\n"), "", _HEAD, *table]) + "\n"


def _key(line: str) -> Key | None:
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    return (cells[0], cells[2], cells[3]) if line.startswith("| ") and len(cells) == 6 else None


def _line(group: list[Row]) -> str:
    failed = [row for row in group if row.why]
    went_well = ", ".join("stream" if row.stream else "whole" for row in group if not row.why)
    result = "; ".join(filter(None, [went_well, *(f"no ({_mode(row)}): {_one_line(row.why)}" for row in failed)]))
    remark = "; ".join(dict.fromkeys(_one_line(row.remark) for row in group if row.remark))
    first = group[0]
    return f"| {first.client} | {first.version} | {first.dialect} | {first.task} | {result} | {remark} |"


def _mode(row: Row) -> str:
    return "stream" if row.stream else "whole"


def _one_line(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:_TEXT_MAX]
