"""POST /v1/responses, as the official client sees it."""

import json
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


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "jump"}}, "tool_choice"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"truncation": "sometimes"}, "truncation"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
    ],
)
def test_what_is_not_supported_is_named(cluster: Cluster, change: dict[str, Any], param: str) -> None:
    response = cluster.post("/v1/responses", {"model": "demo", "input": "x", **change})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
