"""docs/compatibility.md from the lines of a run. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.conformance.table import Case

NPM_DIALECTS = ("openai", "ollama")
# What follows is written by `make clients` and kept here.
CLIENTS_HEADING = "## Real clients without a network"
_MODES = ("whole", "stream")
_HEAD = """\
# Official clients

What unchanged official clients get from Puna, as runs of `make conformance` up to {date} saw it: real clusters
with the demo model and models of the zoo, the Python packages with their synchronous and asynchronous clients,
and the npm packages. This page is written by those runs. The cases are functions in `tests/conformance`.

- `whole`, `stream`: the case went well without and with a stream, with every client of the column.
- `no`: what went wrong. `not run`: no run has come to it. `–` and a reason: this client cannot send it; without one:
  of npm, the packages `openai` and `ollama` are tried.
- *Errors*: the client raises the exception that its documentation promises ([what each means](troubleshooting.md)).
  Those that take a broken machine (a lost runner, a client that leaves, a registry, a bug) are for other tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One case with one client in one mode. `why` is empty where it went well, `lacks` where the client can do it."""

    case: str
    release: str  # whose column
    client: str  # "sync", "async" or "node"
    mode: str
    version: str
    why: str = ""
    lacks: str = ""


def split_page(page: str) -> tuple[str, str]:
    """Return what `make conformance` writes, and what `make clients` writes."""
    cases, heading, clients = page.partition(CLIENTS_HEADING)
    return cases, heading + clients


def document(cases: Iterable[Case], lines: Iterable[Line], *, date: str, missing: Mapping[str, str]) -> str:
    """Return the whole page. `missing` has the reasons for empty columns."""
    by_cell: dict[tuple[str, str], list[Line]] = defaultdict(list)
    versions: dict[str, dict[str, str]] = defaultdict(dict)
    columns: list[str] = []
    for line in lines:
        by_cell[line.case, line.release].append(line)
        versions[line.release][line.case.partition(":")[0]] = line.version
        if line.release not in columns:
            columns.append(line.release)
    sections: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        sections[case.section].append(case)
    text = _head(columns, versions, date, missing)
    for section, members in sections.items():
        text += ["", f"## {section}", "", f"| Case | {' | '.join(columns)} | |", f"|---|{'---|' * len(columns)}---|"]
        for case in members:
            cells = [_cell(by_cell.get((case.id, column), []), case, column) for column in columns]
            text.append(f"| {case.name} | {' | '.join(cells)} | {_remark(case)} |")
    return "\n".join(text) + "\n"


def _head(
    columns: list[str], versions: Mapping[str, Mapping[str, str]], date: str, missing: Mapping[str, str]
) -> list[str]:
    text = [*_HEAD.format(date=date).splitlines(), "", "| Clients | Versions |", "|---|---|"]
    for column in columns:
        found = sorted(versions[column].items())
        text += [f"| {column} | {', '.join(f'{name} {version}' for name, version in found)} |"]
    return text + [f"| {column} | not run: {why} |" for column, why in missing.items()]


def _cell(lines: list[Line], case: Case, column: str) -> str:
    is_npm = not column.startswith("Python")
    if is_npm and (case.not_npm or case.dialect not in NPM_DIALECTS):
        return f"– {case.not_npm}".strip()
    if not lines:
        return "not run"
    failed = [line for line in lines if line.why]
    if failed:
        where = ", ".join(f"{line.client} {line.mode}" for line in failed)
        return f"no ({where}): {_one_line(failed[0].why)}"
    if lacking := next((line.lacks for line in lines if line.lacks), ""):
        return f"– {lacking}"
    return ", ".join(mode for mode in _MODES if any(line.mode == mode for line in lines))


def _remark(case: Case) -> str:
    return f"one mode: {case.why_not}" if case.why_not else ""


def _one_line(text: str) -> str:
    return " ".join(text.replace("|", "/").split())[:120]
