"""Which tools an answer must call. Pure."""

from collections.abc import Mapping, Sequence

from common.errors import InvalidRequest


def tool_names(tools: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    """Names of functions, in order."""
    functions = [tool.get("function") for tool in tools]
    return tuple(str(function["name"]) for function in functions if isinstance(function, Mapping))


def any_of(tools: Sequence[Mapping[str, object]], *, param: str = "tool_choice") -> tuple[str, ...]:
    """All of them.

    Raises:
        InvalidRequest: there are none.
    """
    if not tools:
        raise InvalidRequest(f"{param} needs tools", param=param)
    return tool_names(tools)


def only(name: str, tools: Sequence[Mapping[str, object]], *, param: str = "tool_choice") -> tuple[str, ...]:
    """The one of that name.

    Raises:
        InvalidRequest: there is none.
    """
    if name not in tool_names(tools):
        raise InvalidRequest(f"{param} names {name[:64]!r}, which is not among the tools", param=param)
    return (name,)


def openai_choice(choice: object, tools: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    """OpenAI's `tool_choice`; the Responses API writes a function's name one level higher.

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
        case _:
            raise InvalidRequest("tool_choice must be none, auto, required or a function", param="tool_choice")


def anthropic_choice(choice: Mapping[str, object], tools: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    """Anthropic's `tool_choice`.

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
