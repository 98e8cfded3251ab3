"""Checks of a conversation that hold in every dialect, whatever the model. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from common.errors import InvalidRequest
from common.spec.schema_limits import check_schema
from gateway.core.request.answers import Chat, Message

ROLES = frozenset({"system", "user", "assistant", "tool"})
MESSAGES_MAX = 2048
# Agents with many MCP servers bring hundreds. The values of a body bound the work for their schemas.
TOOLS_MAX = 1024
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def check_conversation(chat: Chat) -> None:
    """Refuse what no template could mean.

    Raises:
        InvalidRequest: too many messages or tools, a tool without a name or with a schema that is none, or the result
            of a call that was not made.
    """
    if len(chat.messages) > MESSAGES_MAX:
        raise InvalidRequest(f"a request can have {MESSAGES_MAX} messages", param="messages")
    _check_results(chat.messages)
    if len(chat.tools) > TOOLS_MAX:
        raise InvalidRequest(f"a request can have {TOOLS_MAX} tools", param="tools")
    for index, tool in enumerate(chat.tools):
        _check_tool(tool, f"tools[{index}]")


def template_kwargs(kwargs: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """Return the variables that a client passes to the model's template.

    Raises:
        InvalidRequest: anything but scalars.
    """
    for name, value in kwargs.items():
        if not isinstance(value, str | int | float | bool | None):
            raise InvalidRequest("chat_template_kwargs must be scalars", param=f"chat_template_kwargs.{name}")
    return {name: value for name, value in kwargs.items() if value is not None}


def _check_results(messages: Sequence[Message]) -> None:
    called = False
    for message in messages:
        called = called or bool(message.tool_calls)
        if message.role == "tool" and not called:
            raise InvalidRequest("a message with the result of a tool must follow a call of it", param="messages")


def _check_tool(tool: Mapping[str, object], place: str) -> None:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return  # what is no function is for the template to understand
    name = function.get("name")
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise InvalidRequest(f"{place} is no function with a valid name", param=place)
    parameters = function.get("parameters")
    if parameters is None:
        return
    if not isinstance(parameters, dict):
        raise InvalidRequest(f"{place} must have a JSON schema as its parameters", param=place)
    check_schema(parameters, place)
    if parameters.get("$ref") == "#":
        raise InvalidRequest(f"the schema in {place} is nothing but itself", param=place)
