"""Clients that stream answers while something breaks, and what became of every request."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

# Longer than any promise: what ends by this counts as hung.
HUNG_S = 120.0
MODEL = "demo"
DONE = "[DONE]"
COLOURS = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "blue"]},
        "shades": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 99},
            "minItems": 6,
            "maxItems": 6,
        },
        "name": {"type": "string", "minLength": 8, "maxLength": 12},
    },
    "required": ["colour", "shades", "name"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "paint", "parameters": COLOURS}}
# What distinguishes the requests of each class; `stop` is filled in from the answer itself.
CLASSES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 0.8, "seed": 7},
    "grammar": {
        "temperature": 0,
        "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": COLOURS}},
    },
    "tools": {"temperature": 0, "tools": [TOOL], "tool_choice": "required"},
    "n": {"temperature": 0.8, "seed": 11, "n": 2},
    "logprobs": {"temperature": 0, "logprobs": True, "top_logprobs": 2},
    "stop": {"temperature": 0},
}


@dataclass(slots=True)
class Choice:
    """One answer as the client has it."""

    content: str = ""
    calls: list[str] = field(default_factory=list)
    tokens: list[tuple[str, float]] = field(default_factory=list)
    end: str = ""


@dataclass(slots=True)
class Outcome:
    """Result of a request: ok, error (and its code), truncated or hung."""

    kind: str = "truncated"
    code: str = ""
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: tuple[int, int] = (0, 0)
    resumes: int = 0
    gap_s: float = 0.0  # the longest silence between two events

    @property
    def has_begun(self) -> bool:
        """True once there is text, and some is still to come."""
        return any(one.content and not one.end for one in self.choices.values())

    @property
    def answer(self) -> tuple[Any, ...]:
        """All that must not depend on what broke."""
        parts = [
            (index, one.content, tuple(one.calls), tuple(token for token, _ in one.tokens), one.end)
            for index, one in sorted(self.choices.items())
        ]
        return (*parts, self.usage)


def question(kind: str, number: int, *, tokens: int, stop: str = "") -> dict[str, Any]:
    """A request of a class; the same number is the same question."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Question {number}: what is Puna, and why?"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": tokens,
        **CLASSES[kind],
    }
    return body | ({"stop": [stop]} if stop else {})


async def ask(
    client: httpx.AsyncClient,
    body: Mapping[str, Any],
    *,
    headers: Mapping[str, str] | None = None,
    outcome: Outcome | None = None,
) -> Outcome:
    """One request, read to its end. Never raises for what a server can do. `outcome` can be watched as it fills."""
    outcome = outcome or Outcome()
    loop = asyncio.get_running_loop()
    heard_s = loop.time()
    try:
        async with (
            asyncio.timeout(HUNG_S),
            client.stream(
                "POST", "/v1/chat/completions", json=body, headers={"x-puna-debug": "1", **(headers or {})}
            ) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                error = json.loads(await answer.aread())["error"]
                outcome.kind, outcome.code = "error", error["code"]
                return outcome
            async for line in answer.aiter_lines():
                if not line.startswith("data: "):
                    continue
                outcome.gap_s, heard_s = max(outcome.gap_s, loop.time() - heard_s), loop.time()
                if line[6:] == DONE:
                    outcome.kind = "ok" if all(one.end for one in outcome.choices.values()) else "truncated"
                    return outcome
                _take(outcome, json.loads(line[6:]))
    except TimeoutError:
        outcome.kind = "hung"
    except httpx.TransportError as error:
        outcome.kind, outcome.code = "truncated", type(error).__name__
    return outcome


def _take(outcome: Outcome, event: Mapping[str, Any]) -> None:
    if "error" in event:
        outcome.kind, outcome.code = "error", event["error"]["code"]
        return
    if usage := event.get("usage"):
        outcome.usage = (usage["prompt_tokens"], usage["completion_tokens"])
    outcome.resumes = max(outcome.resumes, event.get("puna", {}).get("resumes", 0))
    for part in event["choices"]:
        choice = outcome.choices.setdefault(part["index"], Choice())
        delta = part["delta"]
        choice.content += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            while len(choice.calls) <= call["index"]:
                choice.calls.append("")
            function = call["function"]
            choice.calls[call["index"]] += (function.get("name") or "") + (function.get("arguments") or "")
        for token in (part.get("logprobs") or {}).get("content") or ():
            choice.tokens.append((token["token"], token["logprob"]))
        assert not (choice.end and part.get("finish_reason")), "an answer ended twice"
        choice.end = part.get("finish_reason") or choice.end


def summary(outcomes: Mapping[str, list[Outcome]]) -> str:
    """A line for each class: how many, what failed, how many were resumed, the longest gap."""
    lines = []
    for kind, found in outcomes.items():
        failed = [f"{one.kind} {one.code}".strip() for one in found if one.kind != "ok"]
        resumed = sum(one.resumes for one in found)
        gaps = sorted(one.gap_s for one in found)
        longest = f"{gaps[len(gaps) // 2]:.2f}/{gaps[-1]:.2f} s" if gaps else "-"
        lines.append(f"{kind}: n={len(found)} failed={failed or 0} resumes={resumed} gap p50/max={longest}")
    return "\n".join(lines)
