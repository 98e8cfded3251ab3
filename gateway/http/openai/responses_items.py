"""Input items of /v1/responses as turns of a conversation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from common.errors import InvalidRequest
from gateway.core.request.answers import Message, ToolCall
from gateway.core.request.images import URLS_REFUSED, PlacedImage, RequestImage
from gateway.http.openai.requests import call_arguments, joined_parts
from gateway.http.openai.responses_compaction import summary_message, unpacked
from gateway.http.openai.responses_tools import ToolKind, ToolTable

ITEMS_MAX = 2048
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
# Calls that servers of other providers ran themselves, and their news: they have no text that a model could read.
_WITHOUT_TEXT = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "image_generation_call",
        "computer_call",
        "computer_call_output",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
        "configuration_update",
        "program",
        "program_output",
    }
)
# Names of calls in OpenAI's errors.
_CALL_NOUNS = {
    "function_call": "function call",
    "custom_tool_call": "custom tool call",
    "local_shell_call": "local shell call",
    "shell_call": "shell call",
    "apply_patch_call": "apply patch call",
    "tool_search": "tool search call",
    "tool_search_call": "tool search call",
}
# Calls of tools that the client runs: where their arguments stand, and those that the model wrote.
_ACTIONS = {
    "local_shell_call": (ToolKind.LOCAL_SHELL, "action", ("command", "working_directory", "timeout_ms")),
    "shell_call": (ToolKind.SHELL, "action", ("commands", "timeout_ms", "max_output_length")),
    "apply_patch_call": (ToolKind.APPLY_PATCH, "operation", ("type", "path", "diff")),
}
COMPACTION_TRIGGER = "compaction_trigger"
ADDITIONAL_TOOLS = "additional_tools"
# Items that bring tools along; they are offered from the beginning of the prompt on.
_WITH_TOOLS = (ADDITIONAL_TOOLS, "tool_search_output")


@dataclass(frozen=True, slots=True)
class ReadItems:
    """Messages of a request's items."""

    messages: tuple[Message, ...]
    compacts: bool = False  # the answer is a summary of it


def read_items(items: object, table: ToolTable) -> ReadItems:
    """Read the `input` of a request.

    Raises:
        InvalidRequest: an item or a part of a type that is not known, or calls and results that do not belong together.
    """
    if isinstance(items, str):
        return ReadItems((Message(role="user", content=items),))
    if not isinstance(items, list) or not 1 <= len(items) <= ITEMS_MAX:
        raise InvalidRequest(f"input must be a string or 1 to {ITEMS_MAX} items", param="input")
    reader = _Reader(table)
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("type") in _WITH_TOOLS:
            table.add_all(item.get("tools"), f"input[{index}].tools")
    for index, item in enumerate(items):
        reader.add(item, f"input[{index}]")
    return reader.conversation()


@dataclass(slots=True)
class _Reader:
    """Adds items one by one; what one answer said in several items is one turn again."""

    table: ToolTable
    _messages: list[Message] = field(default_factory=list)
    _ids: set[str] = field(default_factory=set)
    _calls: dict[str, tuple[str, str]] = field(default_factory=dict)  # id: type and the model's name of its tool
    _answered: set[str] = field(default_factory=set)
    _call_of_item: dict[str, str] = field(default_factory=dict)  # by which results of local shells name their call
    _compacts: bool = False

    def add(self, item: object, where: str) -> None:
        """Take an item.

        Raises:
            InvalidRequest: see `read_items`.
        """
        if not isinstance(item, dict):
            raise InvalidRequest(f"{where} must be an object", param=where)
        kind = item.get("type") or ("message" if "role" in item else "item_reference" if "id" in item else "")
        if not isinstance(kind, str) or not kind:
            raise InvalidRequest(f"{where} is no item with a type", param=where)
        if kind not in ("item_reference", "local_shell_call_output"):  # whose ids are those of other items
            self._note_id(item.get("id"))
        if (take := self._takers().get(kind)) is not None:
            take(item, where)
        elif kind == ADDITIONAL_TOOLS:
            pass  # they are in the table
        elif kind in _WITHOUT_TEXT:
            self.table.ignored.add(f"{where}.{kind}")
        else:
            raise InvalidRequest(f"{where}: items of type {kind[:64]} are not supported", param=where)

    def conversation(self) -> ReadItems:
        """Return all turns.

        Raises:
            InvalidRequest: a call has no result.
        """
        for id_, (kind, _) in self._calls.items():
            if id_ not in self._answered:
                raise InvalidRequest(f"No tool output found for {_CALL_NOUNS[kind]} {id_[:64]}.", param="input")
        return ReadItems(tuple(self._messages), self._compacts)

    def _takers(self) -> Mapping[str, Callable[[dict[str, Any], str], None]]:
        return {
            "message": self._message,
            "reasoning": self._reasoning,
            "function_call": self._function_call,
            "custom_tool_call": self._custom_call,
            **dict.fromkeys(_ACTIONS, self._action_call),
            "tool_search_call": self._tool_search_call,
            "tool_search_output": self._tool_search_output,
            "function_call_output": self._output,
            "custom_tool_call_output": self._output,
            "local_shell_call_output": self._output,
            "shell_call_output": self._shell_output,
            "apply_patch_call_output": self._apply_patch_output,
            "mcp_call": self._mcp_call,
            "code_interpreter_call": self._code_call,
            "compaction": self._compaction,
            "compaction_summary": self._compaction,
            COMPACTION_TRIGGER: self._trigger,
            "item_reference": self._reference,
        }

    def _note_id(self, id_: object) -> None:
        if not isinstance(id_, str) or not id_:
            return
        if id_ in self._ids:
            text = f"Duplicate item found with id {id_[:64]}. Remove duplicate items from your input and try again."
            raise InvalidRequest(text, param="input")
        self._ids.add(id_)

    def _message(self, item: dict[str, Any], where: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise InvalidRequest(f'invalid message role: "{str(role)[:64]}"', param=where)
        text, images = _content(item.get("content"), where)
        message = Message(role=_ROLES[role], content=text, images=images)
        if role == "assistant":
            self._say(message)
        else:
            self._messages.append(message)

    def _reasoning(self, item: dict[str, Any], where: str) -> None:
        text = unpacked("reasoning", item.get("encrypted_content"))
        if text is None:
            text = _joined_texts(item.get("content")) or _joined_texts(item.get("summary"))
            if not text and item.get("encrypted_content"):
                self.table.ignored.add(f"{where}.encrypted_content")
        if text:
            self._say(Message(role="assistant", thinking=text))

    def _function_call(self, item: dict[str, Any], where: str) -> None:
        name = self.table.model_name(ToolKind.FUNCTION, _text(item, "name", where), str(item.get("namespace") or ""))
        self._call(item, where, name, call_arguments(_text(item, "arguments", where)))

    def _custom_call(self, item: dict[str, Any], where: str) -> None:
        name = self.table.model_name(ToolKind.CUSTOM, _text(item, "name", where), str(item.get("namespace") or ""))
        self._call(item, where, name, {"input": _text(item, "input", where)})

    def _action_call(self, item: dict[str, Any], where: str) -> None:
        kind, key, names = _ACTIONS[item["type"]]
        self._call(item, where, self._built_in(kind), _object(item, key, names, where))

    def _tool_search_call(self, item: dict[str, Any], where: str) -> None:
        if item.get("execution") != "client":
            self.table.ignored.add(f"{where}.tool_search_call")
            return
        self._call(item, where, self._built_in(ToolKind.TOOL_SEARCH), _object(item, "arguments", None, where))

    def _tool_search_output(self, item: dict[str, Any], where: str) -> None:
        if item.get("execution") != "client":
            self.table.ignored.add(f"{where}.tool_search_output")
            return
        names = [tool.model_name for tool in self.table.tools if tool.place.startswith(f"{where}.tools[")]
        self._result(item, where, orjson.dumps({"tools": names}).decode())

    def _built_in(self, kind: ToolKind) -> str:
        return self.table.model_name(kind, kind, "")

    def _output(self, item: dict[str, Any], where: str) -> None:
        text, images = _content(item.get("output"), where)
        self._result(item, where, text, images)

    def _shell_output(self, item: dict[str, Any], where: str) -> None:
        outputs = item.get("output")
        if not isinstance(outputs, list) or not all(isinstance(one, dict) for one in outputs):
            raise InvalidRequest(f"{where}.output must be a list of objects", param=where)
        self._result(item, where, "\n".join(_shell_text(output) for output in outputs))

    def _apply_patch_output(self, item: dict[str, Any], where: str) -> None:
        status = _text(item, "status", where)
        self._result(item, where, f"{status}: {item['output']}" if isinstance(item.get("output"), str) else status)

    def _mcp_call(self, item: dict[str, Any], where: str) -> None:
        """Take a call that another server ran, together with its result."""
        name = f"{_text(item, 'server_label', where)}__{_text(item, 'name', where)}"
        arguments = call_arguments(_text(item, "arguments", where))
        result = item.get("output") if isinstance(item.get("output"), str) else _as_text(item.get("error"))
        self._foreign(item, where, ToolCall(id="", name=name, arguments=arguments), str(result))

    def _code_call(self, item: dict[str, Any], where: str) -> None:
        arguments = {"code": item["code"] if isinstance(item.get("code"), str) else ""}
        text = _joined_texts(item.get("outputs"), "logs")
        self._foreign(item, where, ToolCall(id="", name="code_interpreter", arguments=arguments), text)

    def _foreign(self, item: dict[str, Any], where: str, call: ToolCall, result: str) -> None:
        id_ = item.get("id") if isinstance(item.get("id"), str) else where
        self._say(Message(role="assistant", tool_calls=(replace(call, id=str(id_)),)))
        self._messages.append(Message(role="tool", content=result, tool_name=call.name, tool_call_id=str(id_)))

    def _compaction(self, item: dict[str, Any], where: str) -> None:
        summary = unpacked("summary", item.get("encrypted_content"))
        if summary is None:
            self.table.ignored.add(f"{where}.compaction")
        else:
            self._messages.append(summary_message(summary))

    def _trigger(self, _item: dict[str, Any], _where: str) -> None:
        self._compacts = True

    def _reference(self, item: dict[str, Any], where: str) -> None:
        """Leave out a reference: nothing is stored that it could name."""
        self.table.ignored.add(f"{where}.item_reference:{item.get('id')}")

    def _call(self, item: dict[str, Any], where: str, name: str, arguments: str | dict[str, Any]) -> None:
        id_ = item.get("call_id") or item.get("id")
        if not isinstance(id_, str):
            raise InvalidRequest(f"{where}.call_id must be a string", param=where)
        if id_ in self._calls:
            raise InvalidRequest(f"{where}: the call_id {id_[:64]} is that of an earlier call", param=where)
        self._calls[id_] = (item["type"], name)
        self._call_of_item[str(item.get("id"))] = id_
        self._say(Message(role="assistant", tool_calls=(ToolCall(id=id_, name=name, arguments=arguments),)))

    def _result(self, item: dict[str, Any], where: str, text: str, images: tuple[PlacedImage, ...] = ()) -> None:
        id_ = item.get("call_id") or self._call_of_item.get(str(item.get("id")), item.get("id"))
        if not isinstance(id_, str):
            raise InvalidRequest(f"{where}.call_id must be a string", param=where)
        kind = str(item["type"]).removesuffix("_output")
        if id_ not in self._calls:
            text = f"No tool call found for {_CALL_NOUNS[kind]} output with call_id {id_[:64]}."
            raise InvalidRequest(text, param="input")
        if id_ in self._answered:
            raise InvalidRequest(f"{where}: the call {id_[:64]} has a result already", param=where)
        self._answered.add(id_)
        name = self._calls[id_][1]
        self._messages.append(Message(role="tool", content=text, images=images, tool_name=name, tool_call_id=id_))

    def _say(self, said: Message) -> None:
        """Add to the turn of the assistant; what cannot stand behind what it said already begins another."""
        last = self._messages[-1] if self._messages and self._messages[-1].role == "assistant" else None
        if last is None or ((said.content or said.thinking) and (last.content or last.tool_calls)):
            self._messages.append(said)
            return
        self._messages[-1] = Message(
            role="assistant",
            content=last.content + said.content,
            images=last.images + said.images,
            thinking=last.thinking + said.thinking,
            tool_calls=last.tool_calls + said.tool_calls,
        )


def _text(item: Mapping[str, Any], key: str, where: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise InvalidRequest(f"{where}.{key} must be a string", param=where)
    return value


def _object(item: Mapping[str, Any], key: str, names: tuple[str, ...] | None, where: str) -> dict[str, Any]:
    """Return the fields of an object that a model wrote as arguments; None: all of them."""
    value = item.get(key)
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where}.{key} must be an object", param=where)
    return {name: value[name] for name in value if (names is None or name in names) and value[name] is not None}


def _as_text(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else orjson.dumps(value).decode()


def _shell_text(output: Mapping[str, Any]) -> str:
    """Return what one command of a shell wrote, and how it ended."""
    texts = [output[key] for key in ("stdout", "stderr") if isinstance(output.get(key), str) and output[key]]
    match output.get("outcome"):
        case {"type": "exit", "exit_code": int(code)}:
            texts.append(f"(exit code {code})")
        case {"type": "timeout"}:
            texts.append("(timed out)")
    return "\n".join(texts)


def _joined_texts(parts: object, key: str = "text") -> str:
    texts = [part.get(key) for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return "\n".join(text for text in texts if isinstance(text, str))


def _content(content: object, where: str) -> tuple[str, tuple[PlacedImage, ...]]:
    if isinstance(content, str):
        return content, ()
    if not isinstance(content, list):
        raise InvalidRequest(f"{where} must have a string or parts as content", param=where)
    return joined_parts([_part(part, where) for part in content])


def _part(part: object, where: str) -> str | RequestImage:
    match part:
        case {"type": "input_text" | "output_text" | "text" | "summary_text" | "reasoning_text", "text": str(text)}:
            return text
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": "input_image", "image_url": str(url)}:
            if url.startswith(("http:", "https:")):
                raise InvalidRequest(URLS_REFUSED, param=where)
            return RequestImage(url)
        case {"type": str(kind)}:
            text = f"{where}: content parts of type {kind[:64]} are not supported, or not complete"
            raise InvalidRequest(text, param=where)
        case _:
            raise InvalidRequest(f"{where} has a content part without a type", param=where)
