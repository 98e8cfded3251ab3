"""The runner's core knows values only: neither the engine nor the server that use it."""

import ast
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[4] / "runner" / "core"


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
    return names


@pytest.mark.behaviour("B-107", "B-31")
@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(CORE)))
def test_core_modules_import_neither_engine_nor_server_nor_locks(path: Path) -> None:
    ours = {name for name in imported(path) if name.startswith("runner.")}
    assert {name for name in ours if not name.startswith("runner.core")} == set()
    assert not imported(path) & {"threading", "queue", "asyncio", "time", "random"}
