"""Tools of Anthropic's bodies as functions: the client's own, and those that Anthropic defines without a schema."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from common.errors import InvalidRequest
from gateway.http.anthropic.bodies import AnthropicTool

# Names of MCP tools have the server's name in front; the original takes as many characters.
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
# `web_search_20250305`: the kind and the date of its version.
_DATED = re.compile(r"([a-z][a-z0-9_]{0,47}?)(?:_(\d{8}))?")
# Run by the original server. A client that offers one continues without it.
_SERVER_KINDS = frozenset(
    {
        "advisor",
        "code_execution",
        "mcp_toolset",
        "tool_search_tool_bm25",
        "tool_search_tool_regex",
        "web_fetch",
        "web_search",
    }
)
# Run by the client, in blocks of their own kind: without them the client could not act.
_REFUSED_KINDS = frozenset({"browser_toolset", "computer_toolset"})

_TEXT: dict[str, Any] = {"type": "string"}
_NUMBER: dict[str, Any] = {"type": "integer"}
_POINT: dict[str, Any] = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}
_FILE_FIELDS = {
    "path": _TEXT,
    "view_range": {**_POINT, "description": "First and last line to view; -1 is the last of the file"},
    "file_text": {**_TEXT, "description": "Content for create"},
    "old_str": {**_TEXT, "description": "Text to replace; it occurs exactly once"},
    "new_str": {**_TEXT, "description": "Replacement for old_str"},
    "insert_line": {**_NUMBER, "description": "Line behind which to insert"},
    "insert_text": {**_TEXT, "description": "Text for insert"},
}
_FILE_COMMANDS = ("view", "create", "str_replace", "insert")
_POINTER_ACTIONS = (
    *("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click", "double_click"),
    *("screenshot", "cursor_position"),
)
_POINTER_ACTIONS_2025 = ("left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "triple_click")
_CLIENT_KINDS = frozenset({"bash", "text_editor", "memory", "computer"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTools:
    """Functions for the template, and the types of those that were left out."""

    functions: tuple[dict[str, object], ...]
    left_out: tuple[str, ...]


def offered_tools(tools: Sequence[AnthropicTool]) -> OfferedTools:
    """Return the tools that the model can be offered.

    Raises:
        InvalidRequest: a tool without a valid name, or of a type that the client cannot do without.
    """
    functions: list[dict[str, object]] = []
    left_out: list[str] = []
    for index, tool in enumerate(tools):
        kind, version = _kind_of(tool)
        if kind in _REFUSED_KINDS:
            raise InvalidRequest(f"tools.{index}: tools of type {tool.type} are not supported", param="tools")
        if kind in _SERVER_KINDS:
            left_out.append(tool.type)
            continue
        if kind not in _CLIENT_KINDS and tool.type != "custom" and tool.input_schema is None:
            # A type that is not known yet, as the original names them, is one of its server's.
            if not version:
                text = f"tools.{index}: tools of type {tool.type[:64]} are not supported"
                raise InvalidRequest(text, param="tools")
            left_out.append(tool.type)
            continue
        if not _TOOL_NAME.fullmatch(tool.name):
            text = f"tools.{index}.name: must be 1 to 128 letters, digits, _ and -"
            raise InvalidRequest(text, param="tools")
        functions.append({"type": "function", "function": _function(tool, kind, version)})
    return OfferedTools(functions=tuple(functions), left_out=tuple(left_out))


def _kind_of(tool: AnthropicTool) -> tuple[str, str]:
    found = _DATED.fullmatch(tool.type)
    return (found[1], found[2] or "") if found else ("", "")


def _function(tool: AnthropicTool, kind: str, version: str) -> dict[str, object]:
    schema, description = tool.input_schema, tool.description
    if schema is None:
        match kind:
            case "bash":
                schema = _object({"command": _TEXT, "restart": {"type": "boolean"}}, "command")
                description = description or "Run a command in a shell that stays open; restart starts a new one."
            case "text_editor":
                schema = _editor_schema(version)
                description = description or "View, create and edit files."
            case "memory":
                commands = (*_FILE_COMMANDS, "delete", "rename")
                moved = {"old_path": _TEXT, "new_path": _TEXT}
                schema = _object({"command": _one_of(commands), **_FILE_FIELDS, **moved}, "command")
                description = description or "Keep files under /memories from one conversation to the next."
            case "computer":
                schema = _computer_schema(version)
                size = f"{tool.display_width_px or '?'} x {tool.display_height_px or '?'}"
                description = description or f"Use mouse, keyboard and screen of a computer of {size} pixels."
            case _:
                schema = {}
    function: dict[str, object] = {"name": tool.name, "description": description, "parameters": schema}
    return {**function, "strict": True} if tool.strict else function


def _editor_schema(version: str) -> dict[str, Any]:
    if version >= "20250429":
        return _object({"command": _one_of(_FILE_COMMANDS), **_FILE_FIELDS}, "command", "path")
    older = {name: field for name, field in _FILE_FIELDS.items() if name != "insert_text"}
    older["new_str"] = {**_TEXT, "description": "Replacement for old_str, or text for insert"}
    return _object({"command": _one_of((*_FILE_COMMANDS, "undo_edit")), **older}, "command", "path")


def _computer_schema(version: str) -> dict[str, Any]:
    newer = version >= "20250124"
    fields: dict[str, Any] = {
        "action": _one_of((*_POINTER_ACTIONS, *(_POINTER_ACTIONS_2025 if newer else ()))),
        "coordinate": {**_POINT, "description": "x and y in pixels"},
        "text": {**_TEXT, "description": "Text to type, or keys to press"},
    }
    if newer:
        directions = _one_of(("up", "down", "left", "right"))
        fields |= {"start_coordinate": _POINT, "scroll_direction": directions, "scroll_amount": _NUMBER}
        fields |= {"duration": {"type": "number", "description": "Seconds"}}
    return _object(fields, "action")


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _one_of(values: Sequence[str]) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}
