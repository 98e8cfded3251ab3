"""Calls as Python writes them: Llama's built-in tools, `tool.call(key="value")`, and lists, `[tool(key="value")]`."""

import ast
import json
import warnings

from gateway.core.output_parsers.events import CallArguments, CallBegan, Event

_ERRORS = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)
_JSON_WORDS = {"true": True, "false": False, "null": None}


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
