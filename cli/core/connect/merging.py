"""A client's text merged into the file that its user has. Pure.

Every other setting stays. What cannot be merged for certain is not merged at all.
"""

import json
import re
from collections.abc import Mapping
from difflib import unified_diff
from typing import Any

from cli.core.connect.client import Format, Setting
from cli.core.connect.line_merging import Unmergeable, merged_toml, merged_yaml

_INDENT = re.compile(r"\n(?P<indent>[ \t]+)\S")
# The name of the variable that holds a key is no secret.
_SECRET = re.compile(
    r"(?P<name>(key|token|secret|password|authorization)[\"']?\s*[:=]\s*)(?!\"PUNA_API_KEY\")(\"[^\"]*\"|[^\s,}]+)",
    re.IGNORECASE,
)
# Fields that name an element of a list; the first that an element has counts.
_NAMES = ("id", "name")


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
