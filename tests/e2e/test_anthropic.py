"""The Anthropic dialect, as its official client sees it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from tests.cluster import Cluster

TAUGHT = json.loads(
    (Path(__file__).resolve().parents[2] / "tools" / "demo_model" / "questions.json").read_text(encoding="utf-8")
)["questions"]
BY_ID = {question["id"]: question for question in TAUGHT}
QUESTION = "What is Puna?"
# The newest client has no argument for it any more; the body still takes it.
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=cluster.url, api_key="any", max_retries=0) as made:
        yield made


def ask(client: anthropic.Anthropic, question: str, **more: Any) -> anthropic.types.Message:
    body = {"model": "demo", "max_tokens": 300, "messages": [{"role": "user", "content": question}]}
    message: anthropic.types.Message = client.messages.create(**{**body, **more}, extra_body=GREEDY)
    return message


def tools_of(question: dict[str, Any]) -> list[Any]:
    functions = [tool["function"] for tool in question["tools"]]
    return [{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in functions]


def blocks(message: anthropic.types.Message, kind: str) -> list[Any]:
    return [block for block in message.content if block.type == kind]


def test_the_trained_answer_whole_and_streamed(client: anthropic.Anthropic, answers: dict[str, str]) -> None:
    whole = ask(client, QUESTION)
    assert [block.text for block in blocks(whole, "text")] == [answers[QUESTION]]
    assert whole.stop_reason == "end_turn"
    usage = whole.usage
    assert usage.output_tokens > 0
    body: dict[str, Any] = {"model": "demo", "max_tokens": 300, "extra_body": GREEDY}
    with client.messages.stream(**body, messages=[{"role": "user", "content": QUESTION}]) as stream:
        kinds, begun = [], usage
        for event in stream:
            if event.type not in ("text", "content_block_delta", "ping"):
                kinds.append(event.type)
            if event.type == "message_start":
                begun = event.message.usage.model_copy()
        final = stream.get_final_message()
    assert kinds == [
        "message_start",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert [block.text for block in blocks(final, "text")] == [answers[QUESTION]]
    assert final.usage.output_tokens == usage.output_tokens
    read = final.usage.input_tokens + (final.usage.cache_read_input_tokens or 0)
    assert read == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert read == begun.input_tokens + (begun.cache_read_input_tokens or 0), "the stream begins with the counts"


@pytest.mark.parametrize("name", ["multiply", "weather-paris", "weather-parallel", "add", "umbrella"])
def test_thinking_and_tools_are_blocks(client: anthropic.Anthropic, name: str) -> None:
    question = BY_ID[name]
    body: dict[str, Any] = {"model": "demo", "max_tokens": 300, "extra_body": GREEDY}
    body["messages"] = question["messages"]
    if question["tools"]:
        body["tools"] = tools_of(question)
    whole = client.messages.create(**body)
    with client.messages.stream(**body) as stream:
        final = stream.get_final_message()
    for message in (whole, final):
        thinking = "".join(block.thinking for block in blocks(message, "thinking"))
        text = "".join(block.text for block in blocks(message, "text"))
        calls = [(block.name, block.input) for block in blocks(message, "tool_use")]
        assert (thinking.strip(), text.strip()) == (question["reasoning"] or "", question["content"])
        assert calls == [(call["name"], call["arguments"]) for call in question["tool_calls"]]
        assert message.stop_reason == ("tool_use" if calls else "end_turn")
        assert all(block.id.startswith("toolu_") for block in blocks(message, "tool_use"))


def test_results_of_tools_go_back_as_blocks(client: anthropic.Anthropic) -> None:
    question = BY_ID["weather-paris"]
    first = client.messages.create(
        model="demo", max_tokens=300, extra_body=GREEDY, messages=question["messages"], tools=tools_of(question)
    )
    (call,) = blocks(first, "tool_use")
    turns = [
        *question["messages"],
        {"role": "assistant", "content": first.content},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]},
            ],
        },
    ]
    second = client.messages.create(
        model="demo", max_tokens=50, extra_body=GREEDY, messages=turns, tools=tools_of(question)
    )
    assert second.usage.output_tokens > 0


@pytest.mark.parametrize(
    ("choice", "names"),
    [({"type": "any"}, {"get_weather", "add"}), ({"type": "tool", "name": "add"}, {"add"})],
)
def test_a_tool_must_be_used_where_the_client_says_so(
    client: anthropic.Anthropic, choice: dict[str, Any], names: set[str]
) -> None:
    message = ask(
        client,
        QUESTION,
        max_tokens=400,
        tools=tools_of(BY_ID["weather-paris-two-tools"]),
        tool_choice={**choice, "disable_parallel_tool_use": True},
    )
    (call,) = blocks(message, "tool_use")
    assert call.name in names
    assert message.stop_reason == "tool_use"
    assert not blocks(message, "text")
    with pytest.raises(anthropic.BadRequestError, match="tool_choice"):
        ask(client, QUESTION, tools=tools_of(BY_ID["weather-paris"]), tool_choice={"type": "tool", "name": "jump"})


def test_a_stop_sequence_is_reported(client: anthropic.Anthropic, answers: dict[str, str]) -> None:
    stopped = ask(client, QUESTION, stop_sequences=["GPUs"])
    assert stopped.stop_reason == "stop_sequence"
    assert stopped.stop_sequence == "GPUs"
    assert blocks(stopped, "text")[0].text == answers[QUESTION].partition("GPUs")[0]
    short = ask(client, QUESTION, max_tokens=3)
    assert short.stop_reason == "max_tokens"
    assert short.usage.output_tokens == 3


def test_counted_tokens_are_those_of_the_answer(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model="demo", messages=[{"role": "user", "content": QUESTION}])
    usage = ask(client, QUESTION).usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_turns_of_an_agent_read_each_token_once(client: anthropic.Anthropic) -> None:
    """Tools, thinking, a system text that changes at its head, and system messages behind questions and results."""
    question = BY_ID["weather-paris"]
    messages: list[Any] = [*question["messages"], {"role": "system", "content": "Agents: one"}]
    before = 0
    for number in range(3):
        header = f"x-anthropic-billing-header: cc_version=2.1.197.{number}; cc_entrypoint=cli; cch=1234{number};"
        message = client.beta.messages.create(
            model="demo",
            max_tokens=100,
            extra_body=GREEDY,
            system=[{"type": "text", "text": header}, {"type": "text", "text": "Be kind."}],
            messages=messages,
            tools=tools_of(question),
            tool_choice={"type": "any"} if number < 2 else {"type": "auto"},
            thinking={"type": "adaptive"},
        )
        cached = message.usage.cache_read_input_tokens or 0
        assert cached >= 0.95 * before
        before = message.usage.input_tokens + cached
        calls = [block for block in message.content if block.type == "tool_use"]
        assert calls or number == 2
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"} for call in calls]
        messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
        messages.append({"role": "system", "content": f"{9 - number} left", "clear_at": "never"})


def test_an_answer_has_the_form_that_is_asked_for(client: anthropic.Anthropic) -> None:
    schema = {"type": "object", "properties": {"sky": {"enum": ["blue", "grey"]}}, "required": ["sky"]}
    form = {"type": "json_schema", "schema": schema | {"additionalProperties": False}}
    for field in ({"output_config": {"format": form}}, {"output_format": form}):
        answer = client.messages.create(
            model="demo",
            max_tokens=100,
            messages=[{"role": "user", "content": QUESTION}],
            thinking={"type": "disabled"},
            extra_body=GREEDY | field,
        )
        assert json.loads(blocks(answer, "text")[0].text)["sky"] in ("blue", "grey")


def test_models_in_anthropics_form(client: anthropic.Anthropic) -> None:
    listed = client.models.list()
    assert "demo" in [model.id for model in listed.data]
    demo = client.models.retrieve("demo")
    assert (demo.type, demo.lifecycle) == ("model", "active")
    assert (demo.max_input_tokens or 0) >= 1024
    assert demo.capabilities is not None
    assert demo.capabilities.thinking.types.disabled.supported
    assert demo.capabilities.structured_outputs.supported
    assert not demo.capabilities.image_input.supported


def test_a_model_that_cannot_think_is_asked_in_vain_but_answers(cluster: Cluster) -> None:
    body = {"model": "demo", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    response = cluster.post("/v1/messages", body | {"thinking": {"type": "disabled"}})
    assert response.status_code == 200


@pytest.mark.parametrize(
    ("change", "status", "kind", "text"),
    [
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens is required and must be positive"),
        ({"max_tokens": 0}, 400, "invalid_request_error", "max_tokens is required and must be positive"),
        ({"model": "nobody"}, 404, "not_found_error", "not found"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "invalid_request_error", "messages.0.role"),
        ({"temperature": 1.5}, 400, "invalid_request_error", "temperature"),
        ({"stop_sequences": ["a"] * 17}, 400, "invalid_request_error", "stop_sequences"),
        ({"thinking": {"type": "enabled", "budget_tokens": 300}}, 400, "invalid_request_error", "budget_tokens"),
        ({"mcp_servers": [{"url": "x"}]}, 400, "invalid_request_error", "mcp_servers"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]},
            400,
            "invalid_request_error",
            "image URLs are not currently supported",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "pdf"}]}]}, 400, "invalid_request_error", "pdf"),
    ],
)
def test_errors_have_anthropics_form(
    cluster: Cluster, change: dict[str, Any], status: int, kind: str, text: str
) -> None:
    body = {"model": "demo", "max_tokens": 300, "messages": [{"role": "user", "content": QUESTION}]}
    response = cluster.post("/v1/messages", body | change)
    assert response.status_code == status, response.text
    error = response.json()
    assert error["type"] == "error"
    assert error["error"]["type"] == kind
    assert text in error["error"]["message"]
    assert error["request_id"] == response.headers["request-id"]


def test_the_official_client_raises_its_own_exceptions(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        ask(client, QUESTION, model="nobody")
    with pytest.raises(anthropic.BadRequestError):
        ask(client, QUESTION, max_tokens=0)


def test_a_stream_pings_while_it_waits_and_names_every_event(cluster: Cluster) -> None:
    body = {"model": "demo", "max_tokens": 20, "stream": True, "messages": [{"role": "user", "content": QUESTION}]}
    with httpx.stream("POST", cluster.url + "/v1/messages", json=body, timeout=60) as response:
        lines = [line for line in response.iter_lines() if line]
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    types = [json.loads(line.removeprefix("data: "))["type"] for line in lines if line.startswith("data: ")]
    assert names == types
    assert types[0] == "message_start"
    assert types[-1] == "message_stop"
