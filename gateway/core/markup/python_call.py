"""Llama's built-in tools: `tool.call(key="value", other=3)`."""

import ast
import json

from gateway.core.markup.events import CallArguments, CallBegan, Event


def python_call(text: str) -> tuple[Event, ...] | None:
    """The call of a text without its last bracket; None if it is none. Nothing is evaluated but literals."""
    try:
        tree = ast.parse(text.strip() + ")", mode="eval").body
        if not isinstance(tree, ast.Call) or tree.args or not isinstance(tree.func, ast.Attribute | ast.Name):
            return None
        arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in tree.keywords if keyword.arg}
        raw = json.dumps(arguments)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    target = tree.func
    if isinstance(target, ast.Attribute):
        if target.attr != "call" or not isinstance(target.value, ast.Name):
            return None
        target = target.value
    return CallBegan(target.id), CallArguments(raw)
