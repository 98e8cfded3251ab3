"""Conversations of the gRPC service as the gateway knows them."""

import base64
import json

import pytest

from common.errors import InvalidRequest
from gateway.converters.chats import chat_from_proto, prompt_from_proto, think_from_proto
from gateway.core.request.answers import Think, ToolCall
from gateway.core.request.images import decode_image
from protos import inference_pb2 as pb

PNG = b"\x89PNG\r\n\x1a\nrest"
LOOK = pb.Tool(name="look", parameters='{"type": "object"}', strict=True)
USER = pb.ChatMessage(role="user", content="x")


def test_every_part_of_a_conversation_arrives() -> None:
    call = pb.ToolCall(id="call_1", name="look", arguments='{"at": "x"}')
    request = pb.ChatRequest(
        messages=[
            pb.ChatMessage(role="user", content="What?", images=[PNG]),
            pb.ChatMessage(role="assistant", reasoning="hm", tool_calls=[call]),
            pb.ChatMessage(role="tool", content="a cat", tool_name="look", tool_call_id="call_1"),
        ],
        tools=[LOOK, pb.Tool(name="now")],
        parallel_tool_calls=False,
    )
    chat = chat_from_proto(request)
    user, assistant, tool = chat.messages
    assert [decode_image(placed.image) for placed in user.images] == [PNG]
    assert assistant.thinking == "hm"
    assert assistant.tool_calls == (ToolCall(id="call_1", name="look", arguments={"at": "x"}),)
    assert (tool.content, tool.tool_name, tool.tool_call_id) == ("a cat", "look", "call_1")
    assert [json.loads(json.dumps(one))["function"]["name"] for one in chat.tools] == ["look", "now"]
    assert (chat.parallel_calls, chat.forced_tools) == (False, ())


@pytest.mark.parametrize(
    ("fields", "tools", "forced"),
    [
        ({}, 1, ()),
        ({"tool_mode": pb.TOOL_MODE_NONE}, 0, ()),
        ({"tool_mode": pb.TOOL_MODE_REQUIRED}, 1, ("look",)),
        ({"forced_tool": "look"}, 1, ("look",)),
        ({"tool_mode": 99}, 1, ()),
    ],
)
def test_choices_of_tools(fields: dict[str, object], tools: int, forced: tuple[str, ...]) -> None:
    chat = chat_from_proto(pb.ChatRequest(messages=[USER], tools=[LOOK], **fields))  # type: ignore[arg-type]
    assert (len(chat.tools), chat.forced_tools) == (tools, forced)


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (pb.ChatRequest(messages=[pb.ChatMessage(role="judge")]), "messages"),
        (pb.ChatRequest(tools=[pb.Tool(name="no spaces")]), "tools[0]"),
        (pb.ChatRequest(tools=[pb.Tool(name="look", parameters="[]")]), "tools[0]"),
        (pb.ChatRequest(tools=[LOOK] * 1025), "tools"),
        (pb.ChatRequest(tool_mode=pb.TOOL_MODE_REQUIRED), "tool_mode"),
        (pb.ChatRequest(tools=[LOOK], forced_tool="jump"), "forced_tool"),
        (pb.ChatRequest(messages=[pb.ChatMessage(role="assistant", tool_calls=[pb.ToolCall()])]), "messages"),
    ],
)
def test_what_is_wrong_is_named(request_: pb.ChatRequest, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        chat_from_proto(request_)
    assert refused.value.param == param


def test_prompts_and_levels() -> None:
    chat = prompt_from_proto(pb.GenerateTextRequest(prompt="What?", system="Be brief.", images=[PNG]))
    assert [message.role for message in chat.messages] == ["system", "user"]
    assert base64.b64decode(chat.messages[1].images[0].image.text) == PNG
    assert think_from_proto(pb.ChatRequest()) is None
    assert think_from_proto(pb.ChatRequest(think=False)) is Think.OFF
    assert think_from_proto(pb.ChatRequest(think=False, think_level=pb.THINK_LEVEL_MAX)) is Think.MAX
    assert think_from_proto(pb.GenerateTextRequest(think=True)) is Think.ON
