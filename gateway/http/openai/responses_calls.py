"""Calls of tools as output items of /v1/responses, written while the model writes them."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from common.ids import random_id
from gateway.core.request.answers import CallDelta
from gateway.http.openai.responses_tools import ServedTool, ToolKind

ID_LENGTH = 24
Item = dict[str, Any]
# An event of the item: its type without "response.", and its fields.
ItemEvent = tuple[str, dict[str, object]]
_ITEM_TYPES = {
    ToolKind.LOCAL_SHELL: ("local_shell_call", "lsh_"),
    ToolKind.SHELL: ("shell_call", "sh_"),
    ToolKind.APPLY_PATCH: ("apply_patch_call", "apc_"),
    ToolKind.TOOL_SEARCH: ("tool_search_call", "tsc_"),
}
_PATCH_TYPES = ("create_file", "update_file", "delete_file")
# Whole characters of a JSON string; the half of a pair of surrogates waits for the other half.
_CHARACTERS = re.compile(
    r"""(?:[^"\\]
         |\\["\\/bfnrt]
         |\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}
         |\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}
        )*""",
    re.VERBOSE,
)
_INPUT = re.compile(r'\s*\{\s*"input"\s*:\s*"')


@dataclass(slots=True)
class _FunctionItem:
    """A function: its arguments are passed on as they come."""

    item: Item

    @property
    def shown(self) -> Item:
        """The item before the model has written anything of it."""
        return self.item | {"arguments": ""}

    def add(self, arguments: str) -> Iterable[ItemEvent]:
        """Take a piece of the arguments."""
        if arguments:
            self.item["arguments"] += arguments
            yield "function_call_arguments.delta", {"delta": arguments}

    def close(self) -> Iterable[ItemEvent]:
        """End the call; `item` is complete behind it."""
        fields = {"name": self.item["name"], "arguments": self.item["arguments"]}
        yield "function_call_arguments.done", fields


@dataclass(slots=True)
class _CustomItem:
    """A tool of free text: what the model writes as JSON is passed on as the text that it is."""

    item: Item
    _raw: str = ""
    _read: int = 0  # characters of `_raw` whose text is out; 0: the string has not begun

    @property
    def shown(self) -> Item:
        """The item before the model has written anything of it."""
        return self.item | {"input": ""}

    def add(self, arguments: str) -> Iterable[ItemEvent]:
        """Take a piece of the arguments."""
        self._raw += arguments
        if not self._read:
            opening = _INPUT.match(self._raw)
            self._read = opening.end() if opening else 0
        if self._read:
            whole = _CHARACTERS.match(self._raw, self._read)
            assert whole is not None, "no character at all matches"
            self._read = whole.end()
            yield from self._say(json.loads(f'"{whole[0]}"', strict=False))

    def close(self) -> Iterable[ItemEvent]:
        """End the call; `item` is complete behind it."""
        if not self._read:
            yield from self._say(_free_text(self._raw))
        elif self._raw[self._read : self._read + 1] != '"':  # a string that breaks off, or is none of JSON's
            yield from self._say(self._raw[self._read :])
        yield "custom_tool_call_input.done", {"input": self.item["input"]}

    def _say(self, text: str) -> Iterable[ItemEvent]:
        if text:
            self.item["input"] += text
            yield "custom_tool_call_input.delta", {"delta": text}


@dataclass(slots=True)
class _ActionItem:
    """A tool whose arguments are an object of the item; it is complete only at its end."""

    item: Item
    kind: ToolKind
    _raw: list[str] = field(default_factory=list)

    @property
    def shown(self) -> Item:
        """The item before the model has written anything of it."""
        return self.item | _action(self.kind, {})

    def add(self, arguments: str) -> Iterable[ItemEvent]:
        """Take a piece of the arguments."""
        self._raw.append(arguments)
        return ()

    def close(self) -> Iterable[ItemEvent]:
        """End the call; `item` is complete behind it."""
        self.item |= _action(self.kind, _read_object("".join(self._raw)))
        return ()


# `item` is what the answer holds of a call; `shown` is how it is announced.
CallItem = _FunctionItem | _CustomItem | _ActionItem


def call_item(tool: ServedTool, call: CallDelta) -> CallItem:
    """Return the item of a call that begins."""
    match tool.kind:
        case ToolKind.FUNCTION:
            return _FunctionItem(_item("function_call", "fc_", tool, call) | {"arguments": ""})
        case ToolKind.CUSTOM:
            return _CustomItem(_item("custom_tool_call", "ctc_", tool, call) | {"input": ""})
    kind, prefix = _ITEM_TYPES[tool.kind]
    item = {"type": kind, "id": random_id(prefix, ID_LENGTH), "call_id": call.id, "status": "in_progress"}
    return _ActionItem(item, tool.kind)


def _item(kind: str, prefix: str, tool: ServedTool, call: CallDelta) -> Item:
    namespace = {"namespace": tool.namespace} if tool.namespace else {}
    return {
        "type": kind,
        "id": random_id(prefix, ID_LENGTH),
        "call_id": call.id,
        "name": tool.name,
        **namespace,
        "status": "in_progress",
    }


def _read_object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _free_text(arguments: str) -> str:
    """Return the text of arguments in another form: one string of any name, or the arguments as they are."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    match value:
        case str():
            return value
        case {"input": str(text)}:
            return text
        case dict() if len(value) == 1 and isinstance(text := next(iter(value.values())), str):
            return text
    return arguments


def _action(kind: ToolKind, arguments: Mapping[str, Any]) -> Item:
    """Return what a client runs, in the types that it relies on whatever the model wrote."""
    if kind is ToolKind.TOOL_SEARCH:
        return {"execution": "client", "arguments": dict(arguments)}
    if kind is ToolKind.APPLY_PATCH:
        wanted = arguments.get("type")
        operation = {
            "type": wanted if wanted in _PATCH_TYPES else "update_file",
            "path": str(arguments.get("path", "")),
        }
        if operation["type"] != "delete_file":
            operation["diff"] = str(arguments.get("diff", ""))
        return {"operation": operation}
    timeout_ms = _count(arguments.get("timeout_ms"))
    if kind is ToolKind.SHELL:
        commands = _texts(arguments.get("commands"))
        length = _count(arguments.get("max_output_length"))
        return {"action": {"commands": commands, "timeout_ms": timeout_ms, "max_output_length": length}}
    folder = arguments.get("working_directory")
    command = arguments.get("command")
    return {
        "action": {
            "type": "exec",
            "command": ["sh", "-c", command] if isinstance(command, str) else _texts(command),
            "env": {},
            "timeout_ms": timeout_ms,
            "user": None,
            "working_directory": folder if isinstance(folder, str) else None,
        }
    }


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [str(one) for one in value] if isinstance(value, list) else []


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
