"""The Python client of puna.v1.Inference, as docs/api.md shows it, with the demo model."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from common.errors import InvalidRequest, ModelNotFound, UnsupportedCapability
from gateway.client import Client, Tool, result, user
from protos import inference_pb2
from tests.cluster import Cluster

TAUGHT = json.loads(
    (Path(__file__).resolve().parents[2] / "tools" / "demo_model" / "questions.json").read_text(encoding="utf-8")
)["questions"]
BY_ID = {question["id"]: question for question in TAUGHT}
ENDLESS = "root ::= [a-z ] root"
GREEDY: dict[str, Any] = {"temperature": 0}


def tools_of(question: dict[str, Any]) -> list[Tool]:
    return [Tool(**tool["function"]) for tool in question["tools"]]


def asked(question: dict[str, Any]) -> str:
    text: str = question["messages"][-1]["content"]
    return text


@pytest.fixture
async def puna(cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(f"127.0.0.1:{cluster.grpc_port}", timeout_s=60) as one:
        yield one


async def test_an_answer_whole_and_in_pieces(puna: Client, answers: dict[str, str]) -> None:
    pieces: list[str] = []
    question = "What is Puna?"
    answer = await puna.chat("demo", question, on_piece=lambda piece: pieces.append(piece.content), **GREEDY)
    assert answer.text == answers[question] == "".join(pieces)
    assert not answer.done.called_tools
    pieces.clear()
    await puna.chat(
        "demo", question, on_piece=lambda piece: pieces.append(piece.content), max_tokens=1000, grammar=ENDLESS
    )
    assert len(pieces) > 1  # what gathers while a reader is away is one piece, which a short answer may be
    short = await puna.chat("demo", [user(question)], max_tokens=3, **GREEDY)
    assert short.done.completion_tokens == 3


async def test_a_tool_is_called_and_its_result_goes_back(puna: Client) -> None:
    question = BY_ID["umbrella"]
    turns = [user(asked(question))]
    first = await puna.chat("demo", turns, tools=tools_of(question), **GREEDY)
    assert first.reasoning.strip() == question["reasoning"]
    (call,) = first.calls
    assert (call.name, call.arguments) == ("get_weather", {"city": "Lima"})
    assert first.done.called_tools
    assert 0 < first.done.reasoning_tokens < first.done.completion_tokens
    turns += [first.message(), result(call, "rain")]
    second = await puna.chat("demo", turns, tools=tools_of(question), max_tokens=50, **GREEDY)
    assert second.done.prompt_tokens > first.done.prompt_tokens


async def test_calls_can_be_forced_and_forbidden(puna: Client) -> None:
    tools = tools_of(BY_ID["weather-paris-two-tools"])
    once: dict[str, Any] = {"tools": tools, "parallel_tool_calls": False, "max_tokens": 400, **GREEDY}
    required = await puna.chat("demo", "What is Puna?", tool_choice="required", **once)
    assert len(required.calls) == 1
    named = await puna.chat("demo", "What is the weather in Paris?", tool_choice="add", **once)
    assert [call.name for call in named.calls] == ["add"]
    jsonschema.validate(named.calls[0].arguments, tools[1].parameters or {})
    without = await puna.chat("demo", "What is Puna?", tool_choice="none", **once)
    assert not without.calls
    with pytest.raises(InvalidRequest) as refused:
        await puna.chat("demo", "x", tool_choice="jump", **once)
    assert refused.value.param == "forced_tool"


async def test_reasoning_can_be_left_out_and_stands_before_json(puna: Client) -> None:
    question = BY_ID["multiply"]
    schema = {"type": "object", "properties": {"result": {"enum": [1, 408]}}, "required": ["result"]}
    schema["additionalProperties"] = False  # type: ignore[assignment]  # a JSON value
    thought = await puna.chat("demo", asked(question), schema=schema, **GREEDY)
    assert thought.reasoning.strip() == question["reasoning"]
    jsonschema.validate(json.loads(thought.text), schema)
    plain = await puna.chat("demo", asked(question), think=False, **GREEDY)
    assert (plain.reasoning, plain.text.strip()) == ("", question["content"])
    level = await puna.chat("demo", asked(question), think="high", **GREEDY)
    assert level.reasoning.strip() == question["reasoning"]


async def test_what_is_wrong_is_a_domain_error(puna: Client) -> None:
    with pytest.raises(ModelNotFound):
        await puna.chat("nobody", "x")
    with pytest.raises(InvalidRequest, match="there is no option 'warmth'"):
        await puna.chat("demo", "x", warmth=1)
    with pytest.raises(UnsupportedCapability) as blind:
        await puna.chat("demo", [user("What is this?", b"\x89PNG\r\n\x1a\n")])
    assert blind.value.param == "images"
    bad = inference_pb2.ChatMessage(role="assistant", tool_calls=[inference_pb2.ToolCall(name="x", arguments="[")])
    with pytest.raises(InvalidRequest) as refused:
        await puna.chat("demo", [user("x"), bad])
    assert refused.value.param == "messages"
