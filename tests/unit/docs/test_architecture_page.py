"""The pages of the architecture name every package, and every module of the scheduler's core, and none that is gone."""

import re
from pathlib import Path

from tools.docs_markdown import ROOT

ARCHITECTURE = ROOT / "docs" / "architecture.md"
# A map fits on one printed page; details are in the pages of the services.
MAP_LINES_MAX = 90
CORE = ROOT / "scheduler" / "core"


def modules(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py")} - {"__init__"}


def pages() -> str:
    parts = [ARCHITECTURE, *sorted((ROOT / "docs" / "architecture").glob("*.md"))]
    return "\n".join(part.read_text(encoding="utf-8") for part in parts)


def test_the_map_is_one_page() -> None:
    assert len(ARCHITECTURE.read_text(encoding="utf-8").splitlines()) <= MAP_LINES_MAX


def test_every_package_of_gateway_runner_and_scheduler_is_named() -> None:
    text = pages()
    packages = [
        path.parent
        for service in ("gateway", "runner", "scheduler")
        for path in sorted((ROOT / service).glob("*/**/__init__.py"))
    ]
    assert len(packages) > 40
    # In full in the text, or as the table of its service, of the host or of the scheduler's core has it.
    tables = [ROOT, ROOT / "gateway", ROOT / "runner", ROOT / "runner" / "host", ROOT / "scheduler", CORE]

    def is_named(package: Path) -> bool:
        names = (package.relative_to(table) for table in tables if table in package.parents)
        return any(f"`{name}/" in text for name in names)

    assert [str(package.relative_to(ROOT)) for package in packages if not is_named(package)] == []


def test_the_modules_of_the_schedulers_core_are_those_of_the_table() -> None:
    text = pages()
    rows = re.findall(r"^\| (?:`(\w+)/`|\(top\)) \| [^|]+ \| (.+) \|$", text, re.MULTILINE)
    told = {CORE / folder: set(re.findall(r"`(\w+)`", names)) for folder, names in rows if (CORE / folder).is_dir()}
    real = {folder: modules(folder) for folder in (CORE, *(path.parent for path in CORE.glob("*/__init__.py")))}
    assert told == real
