"""Tools that an answer must call. Pure."""

from collections.abc import Mapping, Sequence

from common.errors import InvalidRequest


def tool_names(tools: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    """List names of functions, in order."""
    functions = [tool.get("function") for tool in tools]
    return tuple(str(function["name"]) for function in functions if isinstance(function, Mapping))


def any_of(tools: Sequence[Mapping[str, object]], *, param: str = "tool_choice") -> tuple[str, ...]:
    """Return the names of all tools, of which there must be some.

    Raises:
        InvalidRequest: there are none.
    """
    if not tools:
        raise InvalidRequest(f"{param} needs tools", param=param)
    return tool_names(tools)


def only(name: str, tools: Sequence[Mapping[str, object]], *, param: str = "tool_choice") -> tuple[str, ...]:
    """Return the name of one tool, which must be among them.

    Raises:
        InvalidRequest: there is none.
    """
    if name not in tool_names(tools):
        raise InvalidRequest(f"{param} names {name[:64]!r}, which is not among the tools", param=param)
    return (name,)


def openai_choice(choice: object, tools: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    """Return the tools that OpenAI's `tool_choice` forces; the Responses API writes a name one level higher.

    Raises:
        InvalidRequest: unknown, or of a tool that is not there.
    """
    match choice:
        case None | "none" | "auto":
            return ()
        case "required":
            return any_of(tools)
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return only(name, tools)
        case {"type": "allowed_tools"}:
            mode, names = _allowed(choice, tools)
            return names if mode == "required" else ()
        case _:
            text = "tool_choice must be none, auto, required, a function or allowed_tools"
            raise InvalidRequest(text, param="tool_choice")


def offered_tools(choice: object, tools: Sequence[Mapping[str, object]]) -> tuple[Mapping[str, object], ...]:
    """Return the tools that the model is shown under OpenAI's `tool_choice`.

    `allowed_tools` with mode `required` is held by the grammar of calls, so the prompt stays as it was; with mode
    `auto` no grammar holds the answer, so the other tools are left out.

    Raises:
        InvalidRequest: as `openai_choice`.
    """
    match choice:
        case "none":
            return ()
        case {"type": "allowed_tools"}:
            mode, names = _allowed(choice, tools)
            if mode == "auto":
                return tuple(tool for tool in tools if tool_names([tool])[0] in names)
    return tuple(tools)


def _allowed(choice: object, tools: Sequence[Mapping[str, object]]) -> tuple[str, tuple[str, ...]]:
    """Read the mode and the names of `allowed_tools`; chat writes both one level deeper than the Responses API."""
    match choice:
        case {"allowed_tools": {"mode": "auto" | "required" as mode, "tools": [_, *_] as allowed}} | {
            "mode": "auto" | "required" as mode,
            "tools": [_, *_] as allowed,
        }:
            if all(isinstance(one, Mapping) and one.get("type") == "function" for one in allowed):
                named = [name for one in allowed for name in openai_choice(one, tools)]
                return mode, tuple(dict.fromkeys(named))
    text = "tool_choice of type allowed_tools must have the mode auto or required, and functions as its tools"
    raise InvalidRequest(text, param="tool_choice")


def anthropic_choice(choice: Mapping[str, object], tools: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    """Parse Anthropic's `tool_choice`.

    Raises:
        InvalidRequest: unknown, or of a tool that is not there.
    """
    match choice:
        case {"type": "any"}:
            return any_of(tools)
        case {"type": "tool", "name": str(name)}:
            return only(name, tools)
        case _ if choice.get("type", "auto") in ("auto", "none"):
            return ()
        case _:
            raise InvalidRequest("tool_choice must be auto, any, none or a tool with its name", param="tool_choice")
