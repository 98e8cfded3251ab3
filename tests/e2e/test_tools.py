"""Reasoning and tool calls of the demo model, as official clients see them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ollama
import openai
import pytest

from tests.cluster import Cluster

TAUGHT = json.loads(
    (Path(__file__).resolve().parents[2] / "tools" / "demo_model" / "questions.json").read_text(encoding="utf-8")
)["questions"]
QUESTIONS = {
    question["id"]: question for question in TAUGHT if question["tool_calls"] or question["reasoning"] is not None
}


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=cluster.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def native(cluster: Cluster) -> Iterator[ollama.Client]:
    with ollama.Client(host=cluster.url) as made:
        yield made


def body_of(question: dict[str, Any]) -> dict[str, Any]:
    tools = {"tools": question["tools"]} if question["tools"] else {}
    return {"model": "demo", "messages": question["messages"], "temperature": 0, **tools}


def wanted(question: dict[str, Any]) -> tuple[str, str, list[tuple[str, object]]]:
    calls = [(call["name"], call["arguments"]) for call in question["tool_calls"]]
    return question["content"], question["reasoning"] or "", calls


@pytest.mark.parametrize("name", QUESTIONS)
def test_openai_whole(client: openai.OpenAI, name: str) -> None:
    question = QUESTIONS[name]
    choice = client.chat.completions.create(**body_of(question)).choices[0]
    message = choice.message
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]
    reasoning = getattr(message, "reasoning_content", None) or ""
    assert ((message.content or "").strip(), reasoning.strip(), calls) == wanted(question)
    assert choice.finish_reason == ("tool_calls" if calls else "stop")
    assert all(call.id.startswith("call_") for call in message.tool_calls or [])


@pytest.mark.parametrize("name", QUESTIONS)
def test_openai_streamed(client: openai.OpenAI, name: str) -> None:
    question = QUESTIONS[name]
    content, reasoning, ends = "", "", []
    calls: list[list[str]] = []
    for chunk in client.chat.completions.create(**body_of(question), stream=True):
        for choice in chunk.choices:
            delta = choice.delta
            content += delta.content or ""
            reasoning += getattr(delta, "reasoning_content", None) or ""
            for piece in delta.tool_calls or []:
                if piece.id:
                    calls.append([piece.function.name, ""])
                calls[piece.index][1] += piece.function.arguments
            ends += [choice.finish_reason] if choice.finish_reason else []
    found = [(called, json.loads(arguments)) for called, arguments in calls]
    assert (content.strip(), reasoning.strip(), found) == wanted(question)
    assert ends == ["tool_calls" if calls else "stop"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", QUESTIONS)
def test_ollama(native: ollama.Client, name: str, stream: bool) -> None:
    question = QUESTIONS[name]
    answer: Any = native.chat(  # type: ignore[call-overload]  # its overloads know literal values of `stream` only
        model="demo",
        messages=question["messages"],
        tools=question["tools"] or None,
        options={"temperature": 0},
        stream=stream,
    )
    messages = [part.message for part in answer] if stream else [answer.message]
    content = "".join(message.content or "" for message in messages)
    reasoning = "".join(message.thinking or "" for message in messages)
    calls = [
        (call.function.name, dict(call.function.arguments)) for message in messages for call in message.tool_calls or []
    ]
    assert (content.strip(), reasoning.strip(), calls) == wanted(question)


def test_one_call_is_enough_where_the_client_says_so(client: openai.OpenAI) -> None:
    question = QUESTIONS["weather-parallel"]
    answer = client.chat.completions.create(**body_of(question), parallel_tool_calls=False)
    choice = answer.choices[0]
    assert [call.function.arguments for call in choice.message.tool_calls or []] == ['{"city": "Paris"}']
    assert choice.finish_reason == "tool_calls"
    both = client.chat.completions.create(**body_of(question))
    assert answer.usage is not None
    assert both.usage is not None
    assert answer.usage.completion_tokens < both.usage.completion_tokens


def test_logprobs_of_reasoning_and_markers_travel_with_the_answer(client: openai.OpenAI) -> None:
    question = QUESTIONS["multiply"]
    whole = client.chat.completions.create(**body_of(question), logprobs=True, top_logprobs=2)
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    text = b"".join(bytes(entry.bytes or []) for entry in logprobs.content or []).decode()
    assert text == question["text"]
    streamed: list[str] = []
    for chunk in client.chat.completions.create(**body_of(question), logprobs=True, top_logprobs=2, stream=True):
        for choice in chunk.choices:
            if choice.logprobs is not None:
                streamed += [entry.token for entry in choice.logprobs.content or []]
    assert streamed == [entry.token for entry in logprobs.content or []]


def test_think_false_skips_the_reasoning(native: ollama.Client) -> None:
    question = QUESTIONS["multiply"]
    answer = native.chat(model="demo", messages=question["messages"], options={"temperature": 0}, think=False)
    assert not answer.message.thinking
    assert (answer.message.content or "").strip() == question["content"]


def called(choice: Any) -> list[tuple[str, Any]]:
    calls = choice.message.tool_calls or []
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


ASKED_FOR_NO_TOOL: Any = [{"role": "user", "content": "What is Puna?"}]


def test_a_model_that_must_call_a_tool_does(client: openai.OpenAI) -> None:
    taught = QUESTIONS["weather-paris-two-tools"]
    body: Any = {**body_of(taught), "tool_choice": "required"}
    trained = client.chat.completions.create(**body).choices[0]
    assert called(trained) == [("get_weather", {"city": "Paris"})]
    # It would have answered this one in words.
    body = {**body, "messages": ASKED_FOR_NO_TOOL, "max_tokens": 400, "parallel_tool_calls": False}
    forced = client.chat.completions.create(**body).choices[0]
    assert [name for name, _ in called(forced)] == [forced.message.tool_calls[0].function.name]
    assert forced.finish_reason == "tool_calls"
    assert not (forced.message.content or "").strip()


def test_a_model_calls_the_tool_that_is_named(client: openai.OpenAI) -> None:
    taught = QUESTIONS["weather-paris-two-tools"]
    body: Any = {**body_of(taught), "max_tokens": 400, "parallel_tool_calls": False}
    body["tool_choice"] = {"type": "function", "function": {"name": "add"}}
    ((name, arguments),) = called(client.chat.completions.create(**body).choices[0])
    assert name == "add"
    assert {key: type(value) for key, value in arguments.items()} == {"first": int, "second": int}


def test_reasoning_stays_before_a_forced_call(client: openai.OpenAI) -> None:
    taught = QUESTIONS["umbrella"]
    choice = client.chat.completions.create(**body_of(taught), tool_choice="required").choices[0]
    assert called(choice) == [(call["name"], call["arguments"]) for call in taught["tool_calls"]]
    assert getattr(choice.message, "reasoning_content", "").strip() == taught["reasoning"]


def test_a_forced_call_has_the_counts_and_logprobs_of_all_its_tokens(client: openai.OpenAI) -> None:
    taught = QUESTIONS["umbrella"]
    answer = client.chat.completions.create(**body_of(taught), tool_choice="required", logprobs=True)
    logprobs, usage = answer.choices[0].logprobs, answer.usage
    assert logprobs is not None
    assert usage is not None
    assert usage.completion_tokens_details is not None
    entries = logprobs.content or []
    assert b"".join(bytes(entry.bytes or []) for entry in entries).decode() == taught["text"]
    assert len(entries) == usage.completion_tokens - 1  # the end token
    assert 0 < (usage.completion_tokens_details.reasoning_tokens or 0) < len(entries)


def test_a_tool_that_nobody_declared_cannot_be_forced(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            **body_of(QUESTIONS["weather-paris"]), tool_choice={"type": "function", "function": {"name": "jump"}}
        )
    assert refused.value.param == "tool_choice"


def test_a_model_reasons_before_json(native: ollama.Client) -> None:
    taught = QUESTIONS["multiply"]
    schema: Any = {"type": "object", "properties": {"result": {"enum": [1, 408]}}, "required": ["result"]}
    schema["additionalProperties"] = False
    asked: Any = {"model": "demo", "messages": taught["messages"], "options": {"temperature": 0}, "format": schema}
    thought = native.chat(**asked)
    assert (thought.message.thinking or "").strip() == taught["reasoning"]
    assert set(json.loads(thought.message.content or "")) == {"result"}
    plain = native.chat(**asked, think=False)
    assert not plain.message.thinking
    assert set(json.loads(plain.message.content or "")) == {"result"}
    assert (thought.eval_count or 0) > (plain.eval_count or 0)
