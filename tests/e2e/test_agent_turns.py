"""Conversations of agents over several turns: what was evaluated once is not evaluated again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster import Cluster

DEMO = Path(__file__).resolve().parents[2] / "tools" / "demo_model"
LESSON = next(
    question
    for question in json.loads((DEMO / "questions.json").read_text(encoding="utf-8"))["questions"]
    if question["id"] == "umbrella"  # is answered with reasoning and a call
)
FUNCTIONS = [tool["function"] for tool in LESSON["tools"]]
QUESTION = LESSON["messages"][0]["content"]
LIMIT = 60
KEPT_MIN = 0.95
SYSTEM = "You are a helpful assistant. You answer over {}."  # another prefix in each dialect
# The demo's template forgets the reasoning of earlier turns; that of most agents' models keeps it.
KEEPS_REASONING = """
{%- if message.reasoning_content -%}
    {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' -}}
{%- endif -%}
"""


class ChatTurns:
    """POST /v1/chat/completions, with what came back sent as it was."""

    path = "/v1/chat/completions"

    def __init__(self) -> None:
        system = {"role": "system", "content": SYSTEM.format(self.path)}
        self.said: list[Any] = [system, {"role": "user", "content": QUESTION}]

    def body(self) -> dict[str, Any]:
        return {"messages": self.said, "tools": LESSON["tools"], "max_tokens": LIMIT}

    def take(self, answer: Any, *, follow_up: str) -> tuple[int, int, int]:
        message = answer["choices"][0]["message"]
        self.said.append(message)
        self.said += [
            {"role": "tool", "tool_call_id": c["id"], "content": "rain"} for c in message.get("tool_calls", ())
        ]
        self.said += [] if message.get("tool_calls") else [{"role": "user", "content": follow_up}]
        usage = answer["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return usage["prompt_tokens"], usage["completion_tokens"], cached


class ResponseTurns:
    """POST /v1/responses, with the items that came back."""

    path = "/v1/responses"

    def __init__(self) -> None:
        self.said: list[Any] = [{"role": "user", "content": QUESTION}]

    def body(self) -> dict[str, Any]:
        tools = [{"type": "function", **function} for function in FUNCTIONS]
        return {
            "instructions": SYSTEM.format(self.path),
            "input": self.said,
            "tools": tools,
            "max_output_tokens": LIMIT,
            "include": ["reasoning.encrypted_content"],
        }

    def take(self, answer: Any, *, follow_up: str) -> tuple[int, int, int]:
        self.said += answer["output"]
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        self.said += [{"type": "function_call_output", "call_id": c["call_id"], "output": "rain"} for c in calls]
        self.said += [] if calls else [{"role": "user", "content": follow_up}]
        usage = answer["usage"]
        return usage["input_tokens"], usage["output_tokens"], usage["input_tokens_details"]["cached_tokens"]


class MessageTurns:
    """POST /v1/messages, with the blocks that came back."""

    path = "/v1/messages"

    def __init__(self) -> None:
        self.said: list[Any] = [{"role": "user", "content": QUESTION}]

    def body(self) -> dict[str, Any]:
        tools = [
            {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in FUNCTIONS
        ]
        return {"system": SYSTEM.format(self.path), "messages": self.said, "tools": tools, "max_tokens": LIMIT}

    def take(self, answer: Any, *, follow_up: str) -> tuple[int, int, int]:
        self.said.append({"role": "assistant", "content": answer["content"]})
        results: list[dict[str, Any]] = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "rain"}
            for block in answer["content"]
            if block["type"] == "tool_use"
        ]
        self.said.append({"role": "user", "content": results or follow_up})
        usage = answer["usage"]
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + cached, usage["output_tokens"], cached


@pytest.fixture(scope="module")
def agent(cluster: Cluster) -> Iterator[str]:
    """A model whose template shows the reasoning of earlier turns."""
    template = (DEMO / "chat_template.jinja").read_text(encoding="utf-8")
    place = "{{- '<|im_start|>assistant\\n' -}}\n        {{- content -}}"
    assert place in template
    keeping = template.replace(place, place.replace("\n        {{- content", KEEPS_REASONING + "{{- content"))
    made = cluster.post("/api/create", {"model": "agent", "from": "demo", "template": keeping, "stream": False})
    assert made.status_code == 200, made.text
    yield "agent"
    # Its replica also answers for the demo model, under this name.
    gone = cluster.post("/puna/v1/unload", {"model": "agent"})
    assert gone.status_code == 200, gone.text
    assert httpx.request("DELETE", cluster.url + "/api/delete", json={"model": "agent"}, timeout=60).is_success


@pytest.mark.parametrize("turns", [ChatTurns, ResponseTurns, MessageTurns])
def test_three_turns_evaluate_each_token_once(
    cluster: Cluster, agent: str, turns: type[ChatTurns | ResponseTurns | MessageTurns]
) -> None:
    talk = turns()
    before = 0
    for number in range(3):
        body = {"model": agent, "temperature": 0, **talk.body()}
        answer = cluster.post(talk.path, body)
        assert answer.status_code == 200, answer.text
        prompt, completion, cached = talk.take(answer.json(), follow_up="What is Puna?")
        assert prompt > before
        if number == 0:
            assert "get_weather" in answer.text
        else:
            assert cached >= KEPT_MIN * before, f"turn {number + 1}: {cached} of {before} tokens"
        before = prompt + completion
