"""Findings of `puna doctor`, read from its code: every call of `fail` and `warn` with its text and its advice."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("cli/core/doctor", "cli/commands", "cli/doctor")
OPEN = "…"  # where the code puts a name or a figure
_LEVELS = ("fail", "warn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One finding as it may come."""

    area: str
    level: str
    text: str
    advice: str


def findings() -> list[Found]:
    """All that ask for something to be done, by area, as the code has them."""
    found: list[Found] = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).glob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            shared = _assigned(tree.body)
            for function in ast.walk(tree):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name not in _LEVELS:
                    found += [one for one in _in_function(function, shared) if one not in found]
    return sorted(found, key=lambda one: one.area)


def finding_table() -> str:
    """Return the table of the page."""
    lines = ["| area | level | found | what to do |", "|---|---|---|---|"]
    lines += [f"| {one.area} | {one.level} | {_cell(one.text)} | {_cell(one.advice)} |" for one in findings()]
    return "\n".join(lines)


def _in_function(function: ast.FunctionDef | ast.AsyncFunctionDef, shared: dict[str, str]) -> list[Found]:
    found = []
    for call in ast.walk(function):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in _LEVELS:
            continue
        names = shared | _assigned(ast.walk(function), before=call.lineno)
        area, text, advice = (_text(argument, names) for argument in call.args)
        found.append(Found(area=area, level=call.func.id, text=text, advice=advice))
    return found


def _assigned(nodes: Iterable[ast.AST], *, before: int | None = None) -> dict[str, str]:
    """Names that are given a text, the last one before a line counts."""
    names: dict[str, str] = {}
    simple = [node for node in nodes if isinstance(node, ast.Assign) and len(node.targets) == 1]
    for node in sorted(simple, key=lambda one: one.lineno):
        target = node.targets[0]
        if before is not None and node.lineno > before:
            continue
        if isinstance(target, ast.Name):
            names[target.id] = _text(node.value, names)
        elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for part, value in zip(target.elts, node.value.elts, strict=True):
                if isinstance(part, ast.Name):
                    names[part.id] = _text(value, names)
    return names


def _text(value: ast.expr, names: dict[str, str]) -> str:
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return names.get(name, OPEN)
        case ast.JoinedStr(values=parts):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else _open(part, names) for part in parts)
        case ast.IfExp(body=one, orelse=other):
            return " / ".join(dict.fromkeys((_text(one, names), _text(other, names))))
        case _:
            return OPEN


def _open(part: ast.expr, names: dict[str, str]) -> str:
    """Return a placeholder of a formatted text: its own text if the function has one, else an open one."""
    known = _text(part.value, names) if isinstance(part, ast.FormattedValue) else OPEN
    return known if len(known) > 1 and " / " not in known else OPEN


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
