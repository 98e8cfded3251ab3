"""Answers of the OpenAI client, whole or streamed, in one form."""

import json
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.table import QUESTION, Talk, items, value


@dataclass(slots=True)
class Choice:
    """One choice of an answer, put together if it came in pieces."""

    text: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)  # name, arguments
    ids: list[str] = field(default_factory=list)
    reason: str | None = None
    entries: list[Any] = field(default_factory=list)
    pieces: int = 0

    @property
    def said_calls(self) -> list[tuple[str, Any]]:
        """The calls with their arguments read."""
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


@dataclass(slots=True)
class Answer:
    """All choices, and what the end of the answer said."""

    choices: dict[int, Choice] = field(default_factory=dict)
    usage: Any = None
    puna: Any = None
    fingerprint: str = ""

    @property
    def only(self) -> Choice:
        """The one choice."""
        assert list(self.choices) == [0], list(self.choices)
        return self.choices[0]


async def chat(talk: Talk, question: str | None = None, **body: Any) -> Answer:
    """POST /v1/chat/completions in the mode of the case; greedy unless told otherwise."""
    asked = {"messages": [{"role": "user", "content": question or QUESTION}]} | body
    full = {"model": "demo", "temperature": 0} | asked
    if not talk.stream:
        return _whole(await value(talk.api.chat.completions.create(**full)))
    answer = Answer()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    async for chunk in items(talk.api.chat.completions.create(**full, **options)):
        answer.usage = chunk.usage or answer.usage
        answer.puna = getattr(chunk, "puna", None) or answer.puna
        answer.fingerprint = chunk.system_fingerprint or answer.fingerprint
        for choice in chunk.choices:
            into = answer.choices.setdefault(choice.index, Choice())
            _add_message(into, choice.delta)
            into.reason = choice.finish_reason or into.reason
            into.entries += (choice.logprobs.content or []) if choice.logprobs else []
            into.pieces += 1
    return answer


def _whole(answer: Any) -> Answer:
    made = Answer(usage=answer.usage, puna=getattr(answer, "puna", None), fingerprint=answer.system_fingerprint or "")
    for choice in answer.choices:
        into = made.choices.setdefault(choice.index, Choice(reason=choice.finish_reason))
        _add_message(into, choice.message)
        into.entries = list((choice.logprobs.content or []) if choice.logprobs else [])
    return made


def _add_message(into: Choice, message: Any) -> None:
    into.text += message.content or ""
    into.reasoning += getattr(message, "reasoning_content", None) or ""
    for position, call in enumerate(message.tool_calls or []):
        index = getattr(call, "index", None)
        place = position if index is None else index
        if place == len(into.calls):
            into.calls.append([call.function.name, ""])
            into.ids.append(call.id)
        into.calls[place][1] += call.function.arguments or ""


async def complete(talk: Talk, **body: Any) -> list[dict[str, Any]]:
    """POST /v1/completions: the choices in the order of their indices, as text, reason and logprobs."""
    full = {"model": "demo", "temperature": 0, "max_tokens": 12} | body
    if not talk.stream:
        answer = await value(talk.api.completions.create(**full))
        return [
            {"text": c.text, "reason": c.finish_reason, "tokens": list(c.logprobs.tokens) if c.logprobs else []}
            for c in sorted(answer.choices, key=lambda c: c.index)
        ]
    found: dict[int, dict[str, Any]] = {}
    async for chunk in items(talk.api.completions.create(**full, stream=True)):
        for choice in chunk.choices:
            into = found.setdefault(choice.index, {"text": "", "reason": None, "tokens": []})
            into["text"] += choice.text
            into["reason"] = choice.finish_reason or into["reason"]
            into["tokens"] += list(choice.logprobs.tokens) if choice.logprobs else []
    return [found[index] for index in sorted(found)]


async def respond(talk: Talk, **body: Any) -> Any:
    """POST /v1/responses: the whole response, or the one of the last event."""
    full = {"model": "demo", "temperature": 0} | body
    if not talk.stream:
        return await value(talk.api.responses.create(**full))
    last: Any = None
    text = ""
    async for event in items(talk.api.responses.create(**full, stream=True)):
        text += event.delta if event.type == "response.output_text.delta" else ""
        last = event
    assert last.type in ("response.completed", "response.incomplete"), last.type
    assert text == last.response.output_text
    return last.response
