"""Conversations of puna.v1.Inference as the gateway knows them."""

import base64
import re
from collections.abc import Iterable, Mapping

import orjson

from common.errors import InvalidRequest
from common.image_file import IMAGE_BYTES_MAX
from gateway.core.request.answers import Chat, Message, RawPrompt, Think, ToolCall
from gateway.core.request.conversation import ROLES, TOOLS_MAX
from gateway.core.request.images import PlacedImage, RequestImage, before_text
from gateway.core.request.tool_choice import any_of, only
from protos import inference_pb2

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
_LEVELS = {
    inference_pb2.THINK_LEVEL_LOW: Think.LOW,
    inference_pb2.THINK_LEVEL_MEDIUM: Think.MEDIUM,
    inference_pb2.THINK_LEVEL_HIGH: Think.HIGH,
    inference_pb2.THINK_LEVEL_MAX: Think.MAX,
}


def chat_from_proto(request: inference_pb2.ChatRequest) -> Chat:
    """Translate the conversation and its tools.

    Raises:
        InvalidRequest: a role, a tool or a choice that is none.
    """
    tools = _tools(request.tools)
    forced: tuple[str, ...] = ()
    if request.forced_tool:
        forced = only(request.forced_tool, tools, param="forced_tool")
    elif request.tool_mode == inference_pb2.TOOL_MODE_REQUIRED:
        forced = any_of(tools, param="tool_mode")
    elif request.tool_mode == inference_pb2.TOOL_MODE_NONE:
        tools = ()
    return Chat(
        messages=messages_from_proto(request.messages),
        tools=tools,
        forced_tools=forced,
        parallel_calls=request.parallel_tool_calls if request.HasField("parallel_tool_calls") else True,
    )


def counted_from_proto(request: inference_pb2.CountTokensRequest) -> Chat:
    """Translate a conversation whose tokens are to be counted.

    Raises:
        InvalidRequest: no messages, or a role or a tool that is none.
    """
    if not request.messages:
        raise InvalidRequest("messages must not be empty", param="messages")
    return Chat(messages=messages_from_proto(request.messages), tools=_tools(request.tools))


def fill_in_from_proto(request: inference_pb2.GenerateTextRequest) -> RawPrompt:
    """Translate a gap to be filled in.

    Raises:
        InvalidRequest: there is something that goes with no gap.
    """
    if request.system or request.images:
        raise InvalidRequest("suffix goes with neither system nor images", param="suffix")
    return RawPrompt(text=request.prompt, suffix=request.suffix)


def prompt_from_proto(request: inference_pb2.GenerateTextRequest) -> Chat:
    """Translate a prompt to the user's only message."""
    system = (Message(role="system", content=request.system),) if request.system else ()
    return Chat(messages=(*system, Message(role="user", content=request.prompt, images=_images(request.images))))


def think_from_proto(
    request: inference_pb2.ChatRequest | inference_pb2.GenerateTextRequest | inference_pb2.CountTokensRequest,
) -> Think | None:
    """Return the requested effort of reasoning; unknown levels of newer clients count as not set."""
    if (level := _LEVELS.get(request.think_level)) is not None:
        return level
    if not request.HasField("think"):
        return None
    return Think.ON if request.think else Think.OFF


def messages_from_proto(messages: Iterable[inference_pb2.ChatMessage]) -> tuple[Message, ...]:
    """Translate the turns of a conversation.

    Raises:
        InvalidRequest: a role or an image that is none.
    """
    return tuple(_message(message) for message in messages)


def _message(message: inference_pb2.ChatMessage) -> Message:
    if message.role not in ROLES:
        raise InvalidRequest(f'invalid message role: "{message.role[:64]}"', param="messages")
    return Message(
        role=message.role,
        content=message.content,
        thinking=message.reasoning,
        tool_calls=tuple(_call(call) for call in message.tool_calls),
        tool_name=message.tool_name,
        tool_call_id=message.tool_call_id,
        images=_images(message.images),
    )


def _images(images: Iterable[bytes]) -> tuple[PlacedImage, ...]:
    found = list(images)
    if any(len(image) > IMAGE_BYTES_MAX for image in found):
        raise InvalidRequest(f"an image has more than {IMAGE_BYTES_MAX} bytes", param="images")
    return before_text([RequestImage(base64.b64encode(image).decode()) for image in found])


def _call(call: inference_pb2.ToolCall) -> ToolCall:
    if not call.name:
        raise InvalidRequest("tool_calls must have a name", param="messages")
    return ToolCall(id=call.id, name=call.name, arguments=_json_object(call.arguments, "messages"))


def _tools(tools: Iterable[inference_pb2.Tool]) -> tuple[Mapping[str, object], ...]:
    found = tuple(tools)
    if len(found) > TOOLS_MAX:
        raise InvalidRequest(f"tools must be at most {TOOLS_MAX}", param="tools")
    return tuple(_tool(index, tool) for index, tool in enumerate(found))


def _tool(index: int, tool: inference_pb2.Tool) -> Mapping[str, object]:
    if not _TOOL_NAME.fullmatch(tool.name):
        raise InvalidRequest(f"tools[{index}] has no valid name", param=f"tools[{index}]")
    parameters = _json_object(tool.parameters, f"tools[{index}]")
    function: dict[str, object] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": parameters or {"type": "object", "properties": {}},
    }
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _json_object(text: str, param: str) -> dict[str, object]:
    try:
        value = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{param} must have JSON objects as parameters and arguments", param=param)
    return value
