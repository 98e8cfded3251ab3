"""POST /v1/responses, as the official client sees it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.cluster import Cluster

TAUGHT = json.loads(
    (Path(__file__).resolve().parents[2] / "tools" / "demo_model" / "questions.json").read_text(encoding="utf-8")
)["questions"]
BY_ID = {question["id"]: question for question in TAUGHT}
QUESTION = "What is Puna?"


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=cluster.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def tools_of(question: dict[str, Any]) -> list[Any]:
    return [{"type": "function", **tool["function"]} for tool in question["tools"]]


def test_the_trained_answer_whole_and_streamed(client: openai.OpenAI, answers: dict[str, str]) -> None:
    whole = client.responses.create(model="demo", input=QUESTION, temperature=0)
    assert whole.output_text == answers[QUESTION]
    assert whole.status == "completed"
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    with client.responses.stream(model="demo", input=QUESTION, temperature=0) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == answers[QUESTION]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events if not event.type.endswith(".delta")]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


@pytest.mark.parametrize("name", ["multiply", "weather-paris", "weather-parallel", "add", "umbrella"])
def test_reasoning_and_calls_are_items(client: openai.OpenAI, name: str) -> None:
    question = BY_ID[name]
    body: dict[str, Any] = {"model": "demo", "input": question["messages"], "temperature": 0}
    if question["tools"]:
        body["tools"] = tools_of(question)
    whole = client.responses.create(**body)
    final: Any = None
    for event in client.responses.create(**body, stream=True):
        if event.type == "response.completed":
            final = event.response
    for response in (whole, final):
        reasoning = [item.summary[0].text for item in response.output if item.type == "reasoning"]
        calls = [(c.name, json.loads(c.arguments)) for c in response.output if c.type == "function_call"]
        assert "".join(reasoning).strip() == (question["reasoning"] or "")
        assert response.output_text.strip() == question["content"]
        assert calls == [(call["name"], call["arguments"]) for call in question["tool_calls"]]
        counted = response.usage.output_tokens_details.reasoning_tokens
        assert (counted > 0) is bool(question["reasoning"])
        assert counted <= response.usage.output_tokens


def test_a_conversation_goes_on_from_the_items_that_came_back(client: openai.OpenAI) -> None:
    question = BY_ID["umbrella"]
    first = client.responses.create(model="demo", input=question["messages"], temperature=0, tools=tools_of(question))
    (call,) = [item for item in first.output if item.type == "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    items: list[Any] = [*question["messages"], *(item.model_dump() for item in first.output), result]
    second = client.responses.create(
        model="demo", input=items, temperature=0, tools=tools_of(question), max_output_tokens=40
    )
    assert second.output


def test_an_answer_that_was_cut_says_so(client: openai.OpenAI) -> None:
    short = client.responses.create(model="demo", input=QUESTION, max_output_tokens=3, temperature=0)
    assert short.status == "incomplete"
    assert short.incomplete_details is not None
    assert short.incomplete_details.reason == "max_output_tokens"


def test_text_under_a_schema_validates(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "string", "maxLength": 20}, "sure": {"type": "boolean"}},
        "required": ["answer", "sure"],
        "additionalProperties": False,
    }
    answer = client.responses.create(
        model="demo",
        input=QUESTION,
        max_output_tokens=200,
        temperature=0,
        text={"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}},
    )
    assert set(json.loads(answer.output_text)) == {"answer", "sure"}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "add"}])
def test_a_tool_must_be_called_where_the_client_says_so(client: openai.OpenAI, choice: Any) -> None:
    numbers = {"first": {"type": "integer"}, "second": {"type": "integer"}}
    parameters = {"type": "object", "properties": numbers, "required": list(numbers), "additionalProperties": False}
    tool: Any = {"type": "function", "name": "add", "parameters": parameters, "strict": True}
    answer = client.responses.create(
        model="demo",
        input=QUESTION,
        tools=[tool],
        tool_choice=choice,
        parallel_tool_calls=False,
        max_output_tokens=400,
        temperature=0,
    )
    (call,) = [item for item in answer.output if item.type == "function_call"]
    assert call.name == "add"
    assert {key: type(value) for key, value in json.loads(call.arguments).items()} == {"first": int, "second": int}
    assert not answer.output_text


ORDERS = """start: order ("," order)~0..2
order: /[1-9]/ "x " FRUIT
FRUIT: "plum" | "fig"
"""
FORMATS = [("lark", ORDERS), ("regex", r"[1-9]x (?:plum|fig)(?:,[1-9]x (?:plum|fig)){0,2}")]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("syntax", "definition"), FORMATS)
def test_free_text_of_a_forced_tool_matches_its_grammar(
    client: openai.OpenAI, syntax: Any, definition: str, stream: bool
) -> None:
    tool: Any = {
        "type": "custom",
        "name": "order",
        "format": {"type": "grammar", "syntax": syntax, "definition": definition},
    }
    body: dict[str, Any] = {
        "model": "demo",
        "input": QUESTION,
        "tools": [tool],
        "tool_choice": {"type": "custom", "name": "order"},
        "parallel_tool_calls": False,
        "temperature": 0,
    }
    if stream:
        events: list[Any] = list(client.responses.create(**body, stream=True))
        response = events[-1].response
        deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
        assert "".join(deltas) == response.output[-1].input
    else:
        response = client.responses.create(**body)
    (item,) = [item for item in response.output if item.type == "custom_tool_call"]
    assert re.fullmatch(FORMATS[1][1], item.input), item.input


def test_an_agent_s_request_is_answered_and_what_is_not_run_here_is_named(cluster: Cluster) -> None:
    """The shape of what coding agents send first: instructions as items, a namespace, tools of other servers."""
    question = BY_ID["umbrella"]
    (function,) = tools_of(question)
    agents = {
        "type": "namespace",
        "name": "agents",
        "description": "Other agents.",
        "tools": [{"type": "function", "name": "close", "strict": False, "parameters": {"type": "object"}}],
    }
    body: dict[str, Any] = {
        "model": "demo",
        "input": [{"type": "message", "id": "msg_1", **message} for message in question["messages"]],
        "tools": [function, agents, {"type": "web_search", "external_web_access": True}, {"type": "image_generation"}],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "get_weather"}],
        },
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "a",
        "client_metadata": {"session_id": "a"},
        "temperature": 0,
    }
    response = cluster.post("/v1/responses", body)
    assert response.status_code == 200, response.text
    assert response.headers["x-puna-ignored"] == "tools[2].web_search, tools[3].image_generation"
    reasoning, call = response.json()["output"]
    assert (call["type"], call["name"]) == ("function_call", "get_weather")
    assert "namespace" not in call
    assert reasoning["encrypted_content"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
    # A client that drops summaries sends the encoded text alone.
    bare = {**reasoning, "summary": []}
    counts = [
        cluster.post("/v1/responses/input_tokens", body | {"input": [*body["input"], item, call, result]}).json()
        for item in (reasoning, bare)
    ]
    assert counts[0] == counts[1]
    assert counts[0]["input_tokens"] > response.json()["usage"]["input_tokens"]


def test_a_compacted_conversation_goes_on(client: openai.OpenAI) -> None:
    said: Any = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "A cluster."}]
    compacted = client.responses.compact(model="demo", input=said)
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    assert compacted.usage.output_tokens > 0
    again: Any = [*(item.model_dump(exclude_none=True, warnings=False) for item in compacted.output), *said[:1]]
    shorter = client.responses.input_tokens.count(model="demo", input=again[1:])
    assert shorter.input_tokens > client.responses.input_tokens.count(model="demo", input=said[:1]).input_tokens
    assert client.responses.create(model="demo", input=again, max_output_tokens=20).output


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "jump"}}, "tool_choice"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"input": []}, "input"),
        ({"input": [{"type": "jump"}]}, "input[0]"),
        ({"truncation": "sometimes"}, "truncation"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
    ],
)
def test_what_is_not_supported_is_named(cluster: Cluster, change: dict[str, Any], param: str) -> None:
    response = cluster.post("/v1/responses", {"model": "demo", "input": "x", **change})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
