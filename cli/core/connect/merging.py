"""A client's text merged into the file that its user has. Pure.

Every other setting stays. What cannot be merged for certain is not merged at all. TOML and YAML are changed line by
line, so that comments and order stay: there is no writer for either in the standard library. A file of a form that this
does not know is refused.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import unified_diff
from typing import Any

from cli.core.connect.client import Format, Setting

_INDENT = re.compile(r"\n(?P<indent>[ \t]+)\S")
# The name of the variable that holds a key is no secret.
_SECRET = re.compile(
    r"(?P<name>(key|token|secret|password|authorization)[\"']?\s*[:=]\s*)(?!\"PUNA_API_KEY\")(\"[^\"]*\"|[^\s,}]+)",
    re.IGNORECASE,
)
# Fields that name an element of a list; the first that an element has counts.
_NAMES = ("id", "name")
BEGIN, END = "# puna connect: begin", "# puna connect: end"
_TABLE = re.compile(r"^\[(?P<name>[^\[\]]+)\]\s*(#.*)?$")
_YAML_KEY = re.compile(r"^(?P<key>[\w.-]+)\s*:(?P<rest>\s.*|)$")
_COMMENT_OR_NOTHING = re.compile(r"^\s*(#.*)?$")
_EMPTY_LIST = re.compile(r"^\s*\[\s*\]\s*(#.*)?$")


def merged(setting: Setting, text: str, existing: str | None) -> str:
    """Return the file's new content; `existing` is None where there is no file yet.

    Raises:
        Unmergeable: the file is not of its format, or has a form that is not changed; the text says why.
    """
    base = setting.head if existing is None or not existing.strip() else existing
    match setting.format:
        case Format.JSON:
            return _merged_json(text, base)
        case Format.TOML:
            return merged_toml(text, base)
        case Format.YAML:
            return merged_yaml(text, base)
        case _:
            raise AssertionError(f"{setting.title} is no file")


def changes(before: str, after: str) -> list[str]:
    """Return the lines that differ as a unified diff without its head. Values that look like secrets are left out."""
    lines = list(unified_diff(before.splitlines(), after.splitlines(), n=1, lineterm=""))[2:]
    return [_SECRET.sub(r"\g<name>…", line) for line in lines]


def _merged_json(text: str, existing: str) -> str:
    try:
        before = json.loads(existing) if existing else {}
    except ValueError as error:
        raise Unmergeable("it has comments, or is not JSON") from error
    if not isinstance(before, dict):
        raise Unmergeable("it is not a JSON object")
    after = _deep(before, json.loads(text), path="")
    if after == before:
        return existing
    found = _INDENT.search(existing)
    return json.dumps(after, indent=found["indent"] if found else 2, ensure_ascii=False) + "\n"


def _deep(before: Mapping[str, Any], ours: Mapping[str, Any], *, path: str) -> dict[str, Any]:
    result = dict(before)
    for key, value in ours.items():
        where, old = f"{path}.{key}" if path else key, before.get(key)
        if isinstance(value, dict | list) and old is not None and not isinstance(old, type(value)):
            raise Unmergeable(f"{where} is of another type there")
        if isinstance(value, dict):
            result[key] = _deep(old or {}, value, path=where)
        elif isinstance(value, list):
            result[key] = _with_elements(old or [], value)
        else:
            result[key] = value
    return result


def _with_elements(before: list[Any], ours: list[Any]) -> list[Any]:
    """Return the list with our elements, each in the place of the one with its name if there is one."""
    names = {_name(element): element for element in ours}
    kept = [names.pop(_name(element), element) for element in before]
    return [*kept, *names.values()]


def _name(element: Any) -> str:
    if isinstance(element, dict):
        for field in _NAMES:
            if isinstance(element.get(field), str):
                return f"{field}={element[field]}"
    return json.dumps(element, sort_keys=True)


class Unmergeable(ValueError):
    """The file stays as it is; the text says why."""


def merged_toml(text: str, existing: str) -> str:
    """Return a TOML file with our keys at its top, and our tables in place of those of the same name.

    Raises:
        Unmergeable: it is not TOML, or has these keys in a form that is not one line each.
    """
    before, ours = _toml(existing), tomllib.loads(text)
    top, tables = _toml_parts(text)
    lines = existing.splitlines()
    for name, table in tables.items():
        lines = _with_table(lines, name, table)
    after = "\n".join(_with_top_keys(lines, top)) + "\n"
    expected = _replaced(before, ours, tables)
    try:
        if tomllib.loads(after) == expected:
            return existing if before == expected else after
    except tomllib.TOMLDecodeError:
        pass
    raise Unmergeable("its TOML has these keys in a form that is not changed")


def merged_yaml(text: str, existing: str) -> str:
    """Return a YAML file with our keys; elements of lists are between two comments, and replaced together.

    Raises:
        Unmergeable: it is not a plain block mapping.
    """
    lines = existing.splitlines()
    _check_block_mapping(lines)
    for key, entry in _yaml_entries(text.splitlines()):
        lines = _with_list(lines, key, entry[1:]) if len(entry) > 1 else _with_scalar(lines, key, entry[0])
    return "\n".join(lines) + "\n"


def _toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Unmergeable(f"it is not TOML: {error}") from error


def _toml_parts(text: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the lines above the first table, and each table's lines with its header, without blank ones."""
    top: list[str] = []
    tables: dict[str, list[str]] = {}
    part = top
    for line in text.splitlines():
        if found := _TABLE.match(line):
            part = tables.setdefault(found["name"], [])
        if line:
            part.append(line)
    return top, tables


def _with_table(lines: list[str], name: str, table: list[str]) -> list[str]:
    start = next((at for at, line in enumerate(lines) if _is_table(line, name)), None)
    if start is None:
        return [*lines, *([""] if lines and lines[-1] else []), *table]
    following = range(start + 1, len(lines))
    stop = next((at for at in following if lines[at].lstrip().startswith("[")), len(lines))
    # Blank lines and comments right above the next table belong to that one.
    while stop > start + 1 and _COMMENT_OR_NOTHING.match(lines[stop - 1]):
        stop -= 1
    return [*lines[:start], *table, *lines[stop:]]


def _is_table(line: str, name: str) -> bool:
    found = _TABLE.match(line.strip())
    return found is not None and found["name"].strip() == name


def _with_top_keys(lines: list[str], top: list[str]) -> list[str]:
    result, added = list(lines), []
    stop = next((at for at, line in enumerate(result) if line.lstrip().startswith("[")), len(result))
    for line in top:
        key = line.partition("=")[0].strip()
        same = re.compile(rf"^\s*{re.escape(key)}\s*=")
        at = next((at for at in range(stop) if same.match(result[at])), None)
        if at is None:
            added.append(line)
        else:
            result[at] = line
    return [*added, *([""] if added and result else []), *result]


def _replaced(before: dict[str, Any], ours: dict[str, Any], tables: dict[str, list[str]]) -> dict[str, Any]:
    """Return what the merged file must say: our keys, our tables whole, everything else as it was."""
    heads = {name.split(".")[0] for name in tables}
    expected = {**before, **{key: value for key, value in ours.items() if key not in heads}}
    for name in tables:
        *parents, last = name.split(".")
        level, source = expected, ours
        for parent in parents:
            inner = level.get(parent, {})
            if not isinstance(inner, dict):
                raise Unmergeable(f"{parent} is no table there")
            level[parent] = dict(inner)
            level, source = level[parent], source[parent]
        level[last] = source[last]
    return expected


def _check_block_mapping(lines: list[str]) -> None:
    for number, line in enumerate(lines, 1):
        known = line == "---" and number == 1
        if line and line[0] not in " #-" and not _YAML_KEY.match(line):
            raise Unmergeable(f"line {number} is not of the form `key: value`")
        if line.startswith("---") and not known:
            raise Unmergeable(f"line {number} begins a second document")
        if line.lstrip(" ").startswith("\t"):
            raise Unmergeable(f"line {number} is indented with a tab")


def _yaml_entries(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each key at the left margin, and its lines."""
    starts = [at for at, line in enumerate(lines) if _YAML_KEY.match(line)]
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield lines[start].partition(":")[0], lines[start:stop]


def _place(lines: list[str], key: str) -> int | None:
    found = [at for at, line in enumerate(lines) if (match := _YAML_KEY.match(line)) and match["key"] == key]
    if len(found) > 1:
        raise Unmergeable(f"{key} is there twice")
    return found[0] if found else None


def _with_scalar(lines: list[str], key: str, entry: str) -> list[str]:
    at = _place(lines, key)
    if at is None:
        return [*lines, entry]
    if at + 1 < len(lines) and lines[at + 1].startswith((" ", "-")):
        raise Unmergeable(f"{key} has more than one line")
    return [*lines[:at], entry, *lines[at + 1 :]]


def _with_list(lines: list[str], key: str, elements: list[str]) -> list[str]:
    at = _place(lines, key)
    if at is None:
        return [*lines, f"{key}:", *_marked(elements, indent=2)]
    rest = lines[at].partition(":")[2]
    if _EMPTY_LIST.match(rest):
        lines = [*lines[:at], f"{key}:", *lines[at + 1 :]]
    elif not _COMMENT_OR_NOTHING.match(rest):
        raise Unmergeable(f"{key} is written on one line")
    stop = next((end for end in range(at + 1, len(lines)) if _YAML_KEY.match(lines[end])), len(lines))
    inside = lines[at + 1 : stop]
    first = next((line for line in inside if line.lstrip().startswith("- ")), None)
    indent = 2 if first is None else len(first) - len(first.lstrip())
    if first is None and any(not _COMMENT_OR_NOTHING.match(line) for line in inside):
        raise Unmergeable(f"{key} is no list")
    return [*lines[: at + 1], *_marked(elements, indent=indent), *_without_marked(inside), *lines[stop:]]


def _marked(elements: list[str], *, indent: int) -> list[str]:
    """Return the elements, whose own indentation is 2, at another one and between the two comments."""
    margin = " " * indent
    return [margin + BEGIN, *(margin + line[2:] for line in elements), margin + END]


def _without_marked(lines: list[str]) -> list[str]:
    texts = [line.strip() for line in lines]
    if BEGIN not in texts:
        return lines
    start = texts.index(BEGIN)
    if END not in texts[start:]:
        raise Unmergeable(f"the comment {END!r} is missing")
    return [*lines[:start], *lines[texts.index(END, start) + 1 :]]
