"""Calls in notations other than JSON.

Gemma's: `call:name{city:<|"|>Paris<|"|>,days:3}`, whose values may be JSON as well. Python's: Llama's built-in tools,
`tool.call(key="value")`, and lists, `[tool(key="value")]`.
"""

import ast
import json
import re
import warnings

from gateway.core.output_parsers.events import CallArguments, CallBegan, Event

_ERRORS = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)
_JSON_WORDS = {"true": True, "false": False, "null": None}
_NAME = re.compile(r"\s*call:\s*([A-Za-z0-9_.-]{1,256})\s*")
_QUOTE = '<|"|>'
_KEY = re.compile(r"\s*([^:{}\[\],\"]+?)\s*:")
_WORD = re.compile(r"[^,{}\[\]\"]+")
_SPACE = re.compile(r"\s*")
_DEPTH_MAX = 64
_DECODER = json.JSONDecoder()


def python_call(text: str) -> tuple[Event, ...] | None:
    """Parse the call of a text without its last bracket; None if it is none. Only literals are evaluated."""
    try:
        tree = ast.parse(text.strip() + ")", mode="eval").body
        if not isinstance(tree, ast.Call) or tree.args or not isinstance(tree.func, ast.Attribute | ast.Name):
            return None
        arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in tree.keywords if keyword.arg}
        raw = json.dumps(arguments)
    except _ERRORS:
        return None
    target = tree.func
    if isinstance(target, ast.Attribute):
        if target.attr != "call" or not isinstance(target.value, ast.Name):
            return None
        target = target.value
    return CallBegan(target.id), CallArguments(raw)


def python_calls(text: str) -> tuple[Event, ...] | None:
    """Parse the calls of a list, as Python or as JSON objects; None if it is none. Only literals are evaluated."""
    events: list[Event] = []
    try:
        calls = _json_calls(text)
        if calls is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes that Python does not know
                tree = ast.parse(text.strip(), mode="eval").body
            calls = [_call(element) for element in (tree.elts if isinstance(tree, ast.List) else [tree])]
        for name, arguments in calls:
            events += (CallBegan(name), CallArguments(json.dumps(arguments, allow_nan=False)))
    except _ERRORS:
        return None
    return tuple(events) or None


def _json_calls(text: str) -> list[tuple[str, object]] | None:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    found: list[tuple[str, object]] = []
    for value in values if isinstance(values, list) else [values]:
        match value:
            case {"name": str(name), "arguments": dict(arguments)}:
                found.append((name, arguments))
            case _:
                return None
    return found


def _call(element: ast.expr) -> tuple[str, object]:
    if not isinstance(element, ast.Call) or element.args or not isinstance(element.func, ast.Name):
        raise ValueError("no call by name")
    return element.func.id, {keyword.arg: _literal(keyword.value) for keyword in element.keywords if keyword.arg}


def _literal(element: ast.expr) -> object:
    """Evaluate a literal; words of JSON are accepted, too."""
    for node in ast.walk(element):
        if isinstance(node, ast.Name) and node.id not in _JSON_WORDS:
            raise ValueError("a name is no literal")
    return ast.literal_eval(_Words().visit(element))


class _Words(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:  # the name is ast's
        return ast.Constant(_JSON_WORDS[node.id])


class _NoValueError(ValueError):
    """The text is not in this notation."""


def gemma_call(text: str) -> tuple[Event, ...] | None:
    """Parse the call between its markers; None if it is none."""
    named = _NAME.match(text)
    if named is None:
        return None
    try:
        arguments, end = _value(text, named.end(), 0)
        if not isinstance(arguments, dict) or text[end:].strip():
            return None
        return CallBegan(named[1]), CallArguments(json.dumps(arguments, allow_nan=False))
    except (ValueError, IndexError):
        return None


def _value(text: str, at: int, depth: int) -> tuple[object, int]:
    """Parse the value at a place; return it with its end."""
    at = _skip(text, at)
    if depth > _DEPTH_MAX:
        raise _NoValueError
    if text.startswith(_QUOTE, at):
        end = text.index(_QUOTE, at + len(_QUOTE))
        return text[at + len(_QUOTE) : end], end + len(_QUOTE)
    match text[at]:
        case "{":
            return _object(text, at + 1, depth)
        case "[":
            return _array(text, at + 1, depth)
        case '"':
            return _DECODER.raw_decode(text, at)
    word = _WORD.match(text, at)
    if word is None:
        raise _NoValueError
    return json.loads(word[0]), word.end()


def _object(text: str, at: int, depth: int) -> tuple[dict[str, object], int]:
    found: dict[str, object] = {}
    at = _skip(text, at)
    while text[at] != "}":
        key: object
        if text.startswith(_QUOTE, at) or text[at] == '"':
            key, at = _value(text, at, depth)
            at = text.index(":", at) + 1
        else:
            bare = _KEY.match(text, at)
            if bare is None:
                raise _NoValueError
            key, at = bare[1], bare.end()
        found[str(key)], at = _value(text, at, depth + 1)
        at = _behind_comma(text, at, "}")
    return found, at + 1


def _array(text: str, at: int, depth: int) -> tuple[list[object], int]:
    found: list[object] = []
    at = _skip(text, at)
    while text[at] != "]":
        value, at = _value(text, at, depth + 1)
        found.append(value)
        at = _behind_comma(text, at, "]")
    return found, at + 1


def _behind_comma(text: str, at: int, end: str) -> int:
    at = _skip(text, at)
    if text[at] == ",":
        return _skip(text, at + 1)
    if text[at] != end:
        raise _NoValueError
    return at


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None, "it matches nothing, too"
    return found.end()
