"""Tools of /v1/responses as the model knows them, and back."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from common.errors import InvalidRequest
from gateway.core.request.conversation import TOOLS_MAX
from gateway.core.request.input_patterns import input_pattern
from gateway.core.request.portable_patterns import NotRegular

_NAME_LENGTH_MAX = 128
_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{_NAME_LENGTH_MAX}}}")
_FUNCTION_KEYS = ("name", "description", "parameters", "strict")
_IGNORED_MAX = 32
_UNSAFE = re.compile(r"[^A-Za-z0-9_.:\[\]-]+")
_LABEL_LENGTH_MAX = 96


class ToolKind(StrEnum):
    """Types of tools that the client runs."""

    FUNCTION = "function"
    CUSTOM = "custom"
    LOCAL_SHELL = "local_shell"
    SHELL = "shell"
    APPLY_PATCH = "apply_patch"
    TOOL_SEARCH = "tool_search"


def _object(required: Sequence[str], **properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


_TEXTS = {"type": "array", "items": {"type": "string"}}
# The functions that stand for tools without a schema of their own.
_BUILT_IN: Mapping[ToolKind, Mapping[str, object]] = {
    ToolKind.LOCAL_SHELL: {
        "description": "Run a command on the user's machine and return its output.",
        "parameters": _object(
            ["command"],
            command={**_TEXTS, "description": "The program and its arguments"},
            working_directory={"type": "string"},
            timeout_ms={"type": "integer"},
        ),
    },
    ToolKind.SHELL: {
        "description": "Run shell commands on the user's machine and return their output.",
        "parameters": _object(
            ["commands"], commands=_TEXTS, timeout_ms={"type": "integer"}, max_output_length={"type": "integer"}
        ),
    },
    ToolKind.APPLY_PATCH: {
        "description": "Create, update or delete one file. Updates and new files are written as a diff (V4A).",
        "parameters": _object(
            ["type", "path"],
            type={"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            path={"type": "string"},
            diff={"type": "string", "description": "Lines with +, - or a space before them, in hunks after @@"},
        ),
    },
}


@dataclass(slots=True)
class Ignored:
    """Names for the header x-puna-ignored; texts of clients are cut to what a header may hold."""

    names: dict[str, None] = field(default_factory=dict)

    def add(self, name: str) -> None:
        """Name what has no effect."""
        label = _UNSAFE.sub("_", name)[:_LABEL_LENGTH_MAX]
        self.names[label if len(self.names) < _IGNORED_MAX else "..."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTool:
    """One tool. `name` and `namespace` are the client's, `model_name` is unique in the prompt."""

    kind: ToolKind
    name: str
    namespace: str
    model_name: str
    function: Mapping[str, object]  # as templates know it
    holds_format: bool = True  # a forced call is held to the format of its input, if it has one
    has_format: bool = False
    place: str = ""


@dataclass(slots=True)
class ToolTable:
    """The tools of a request, and what of them and of its items has no effect."""

    tools: list[ServedTool] = field(default_factory=list)
    ignored: Ignored = field(default_factory=Ignored)
    dropped: list[str] = field(default_factory=list)  # types
    _taken: set[str] = field(default_factory=set)

    def add_all(self, tools: object, place: str) -> None:
        """Add the tools of a list; those that this server cannot run are named in its `ignored`.

        Raises:
            InvalidRequest: one is no object with a type, has no valid name, or there are too many.
        """
        if not isinstance(tools, list):
            raise InvalidRequest(f"{place} must be a list of tools", param=place)
        for index, tool in enumerate(tools):
            self._add(tool, f"{place}[{index}]")
        if len(self.tools) > TOOLS_MAX:
            raise InvalidRequest(f"a request can have {TOOLS_MAX} tools", param=place)

    @property
    def functions(self) -> tuple[Mapping[str, object], ...]:
        """All tools as templates know them."""
        return tuple({"type": "function", "function": tool.function} for tool in self.tools)

    def of_model(self, model_name: str) -> ServedTool:
        """Return the tool that the model calls so; one that is not in the table is a plain function."""
        found = (tool for tool in self.tools if tool.model_name == model_name)
        return next(found, _unknown(model_name))

    def model_name(self, kind: ToolKind, name: str, namespace: str) -> str:
        """Return the name in the prompt for a tool of an earlier call, which may be gone by now."""
        found = self._find(kind, name, namespace)
        return found.model_name if found is not None else _joined(namespace, name)

    def choice(self, choice: object) -> object:
        """Return `tool_choice` with the names that the model knows, as `openai_choice` reads it.

        Raises:
            InvalidRequest: it forces a tool that is not served, or is not there.
        """
        match choice:
            case "required" if self.dropped and not self.tools:
                raise self._not_served(", ".join(sorted(set(self.dropped))))
            case {"type": "allowed_tools", "mode": mode, "tools": list(allowed)}:
                named = [self._chosen(one) for one in allowed]
                for one, name in zip(allowed, named, strict=True):
                    if name is None:
                        self.ignored.add(f"tool_choice.{one['type']}")
                served = [{"type": "function", "name": name} for name in named if name]
                if allowed and not served:
                    raise self._not_served(", ".join(sorted(str(one.get("type"))[:64] for one in allowed)))
                return {"type": "allowed_tools", "mode": mode, "tools": served}
            case {"type": "allowed_tools"} | str() | None:
                return choice
            case {"type": str(kind)}:
                name = self._chosen(choice)
                if name is None:
                    raise self._not_served(kind[:64])
                return {"type": "function", "name": name}
        return choice

    def _chosen(self, choice: object) -> str | None:
        """Return the model's name of a tool that a choice names; None for a type that is not served."""
        match choice:
            case {"type": "function", "function": {"name": str(name)}}:
                return self._named(ToolKind.FUNCTION, name, "")
            case {"type": "function" | "custom" as kind, "name": str(name), **rest}:
                return self._named(ToolKind(kind), name, str(rest.get("namespace") or ""))
            case {"type": "function" | "custom"}:
                raise InvalidRequest("tool_choice must have the name of its tool", param="tool_choice")
            case {"type": str(kind)}:
                own = next((tool for tool in self.tools if tool.kind == kind), None)
                return own.model_name if own is not None else None
        raise InvalidRequest("the tools of tool_choice must be objects with a type", param="tool_choice")

    def _named(self, kind: ToolKind, name: str, namespace: str) -> str:
        found = self._find(kind, name, namespace)
        if found is None and not namespace:
            inside = [tool for tool in self.tools if tool.kind is kind and name in (tool.name, tool.model_name)]
            found = inside[0] if len(inside) == 1 else None
        if found is None:
            text = f"tool_choice names {name[:64]!r}, which is not among the tools"
            raise InvalidRequest(text, param="tool_choice")
        return found.model_name

    def _find(self, kind: ToolKind, name: str, namespace: str) -> ServedTool | None:
        wanted = kind, name, namespace
        return next((tool for tool in self.tools if (tool.kind, tool.name, tool.namespace) == wanted), None)

    def _not_served(self, kinds: str) -> InvalidRequest:
        text = f"tool_choice forces a tool of type {kinds}, which this server does not run"
        return InvalidRequest(text, param="tool_choice")

    def _add(self, tool: Any, place: str) -> None:
        match tool:
            case {"type": "function"}:
                function = {key: tool[key] for key in _FUNCTION_KEYS if tool.get(key) is not None}
                self._serve(ToolKind.FUNCTION, function, "", place)
            case {"type": "custom"}:
                self._serve_custom(tool, "", place)
            case {"type": "namespace", "name": str(namespace), "tools": list(inner)} if _NAME.fullmatch(namespace):
                self._add_namespace(namespace, str(tool.get("description") or ""), inner, place)
            case {"type": "namespace"}:
                raise InvalidRequest(f"{place} is no namespace with a valid name and tools", param=place)
            case {"type": "local_shell" | "apply_patch" as kind}:
                self._serve_built_in(ToolKind(kind), place)
            case {"type": "shell"} if _is_local(tool.get("environment")):
                self._serve_built_in(ToolKind.SHELL, place)
            case {"type": "tool_search", "execution": "client"}:
                function = {key: tool[key] for key in _FUNCTION_KEYS if tool.get(key) is not None}
                self._serve(ToolKind.TOOL_SEARCH, {**function, "name": "tool_search"}, "", place)
            case {"type": str(kind)}:
                self.dropped.append(kind[:64])
                self.ignored.add(f"{place}.{kind}")
            case _:
                raise InvalidRequest(f"{place} is no tool with a type", param=place)

    def _add_namespace(self, namespace: str, description: str, inner: list[Any], place: str) -> None:
        """Add the tools of a namespace; its description stands before that of its first tool."""
        for index, tool in enumerate(inner):
            where = f"{place}.tools[{index}]"
            head = f"{description}\n\n" if description and not index else ""
            match tool:
                case {"type": "function"}:
                    function = {key: tool[key] for key in _FUNCTION_KEYS if tool.get(key) is not None}
                    function["description"] = f"{head}{tool.get('description') or ''}"
                    self._serve(ToolKind.FUNCTION, function, namespace, where)
                case {"type": "custom"}:
                    described = {**tool, "description": f"{head}{tool.get('description') or ''}"}
                    self._serve_custom(described, namespace, where)
                case {"type": str(kind)}:
                    self.ignored.add(f"{where}.{kind}")
                case _:
                    raise InvalidRequest(f"{where} is no tool with a type", param=where)

    def _serve_built_in(self, kind: ToolKind, place: str) -> None:
        self._serve(kind, {"name": str(kind), **_BUILT_IN[kind]}, "", place)

    def _serve_custom(self, tool: Mapping[str, Any], namespace: str, place: str) -> None:
        """Serve a tool of free text as a function of one string, which is held to the format in forced calls."""
        description = tool.get("description") or ""
        format_ = tool.get("format") or {"type": "text"}
        if not isinstance(description, str) or not isinstance(format_, dict):
            raise InvalidRequest(f"{place} must have a text as description, and an object as format", param=place)
        text: dict[str, object] = {"type": "string", "description": "The whole input, as plain text"}
        has_format = format_.get("type") != "text"
        holds_format = True
        try:
            if has_format:
                text["pattern"] = input_pattern(format_)
        except NotRegular:
            holds_format = False
        if isinstance(definition := format_.get("definition"), str):
            description += f"\n\nThe input matches this grammar ({format_.get('syntax')}):\n{definition}"
        function = {
            "name": tool.get("name"),
            "description": description.strip(),
            "parameters": _object(["input"], input=text),
        }
        self._serve(ToolKind.CUSTOM, function, namespace, place, has_format=has_format, holds_format=holds_format)

    def _serve(
        self,
        kind: ToolKind,
        function: Mapping[str, object],
        namespace: str,
        place: str,
        *,
        has_format: bool = False,
        holds_format: bool = True,
    ) -> None:
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise InvalidRequest(f"{place} is no {kind} with a valid name", param=place)
        if self._find(kind, name, namespace) is not None:
            self.ignored.add(f"{place}.{name}")
            return
        model_name = self._free_name(_joined(namespace, name))
        self.tools.append(
            ServedTool(
                kind=kind,
                name=name,
                namespace=namespace,
                model_name=model_name,
                function={**function, "name": model_name},
                has_format=has_format,
                holds_format=holds_format,
                place=place,
            )
        )

    def _free_name(self, wanted: str) -> str:
        """Return the name, or the next one that no other tool has."""
        name, number = wanted[:_NAME_LENGTH_MAX], 1
        while name in self._taken:
            number += 1
            tail = f"_{number}"
            name = wanted[: _NAME_LENGTH_MAX - len(tail)] + tail
        self._taken.add(name)
        return name


def _joined(namespace: str, name: str) -> str:
    """Return the name in the prompt of a tool in a namespace."""
    if not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def _is_local(environment: object) -> bool:
    """Return True if a shell runs where the client is."""
    return environment is None or (isinstance(environment, Mapping) and environment.get("type") == "local")


def _unknown(name: str) -> ServedTool:
    return ServedTool(kind=ToolKind.FUNCTION, name=name, namespace="", model_name=name, function={"name": name})
