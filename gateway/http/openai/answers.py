"""POST /v1/chat/completions and /v1/completions."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from common.ids import random_id
from gateway.answers.choices import ChoiceEvent
from gateway.answers.record import RequestRecord
from gateway.core.request.answers import (
    AnswerRequest,
    CallDelta,
    Delta,
    Done,
    FinishReason,
    PromptProgress,
    RawPrompt,
)
from gateway.core.request.logprobs import legacy_logprobs, logprob_entries
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import validated
from gateway.http.endpoint.response_model import REPETITION_DETECTED
from gateway.http.endpoint.service import Endpoints
from gateway.http.endpoint.streaming import SseStream
from gateway.http.openai.bodies import ChatCompletionBody, CompletionBody, OpenAiAnswerBody
from gateway.http.openai.requests import chat_requests, completion_requests

_DIGEST_SHOWN = 8
_SHOWN = (Delta, PromptProgress, Done)


@dataclass(slots=True, kw_only=True)
class OpenAiAnswer:
    """One request's answer in OpenAI's form: knows which choices have begun and ended, and counts usage."""

    is_chat: bool
    model: str
    fingerprint: str
    include_usage: bool
    choices_per_prompt: int
    with_logprobs: bool
    echo: Sequence[str] = ()  # per choice, what /v1/completions repeats before the answer
    debug: RequestRecord | None = None
    id: str = ""
    created: int = 0
    dones: dict[int, Done] = field(default_factory=dict)
    _begun: set[int] = field(default_factory=set)
    _text_lengths: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.id = random_id("chatcmpl-" if self.is_chat else "cmpl-", 24)
        self.created = int(time.time())

    def chunks(self, item: ChoiceEvent, choice_count: int) -> Iterable[dict[str, object]]:
        """Build the chunks of one event of a stream."""
        index, event = item.index, item.event
        if not isinstance(event, _SHOWN):
            return
        if index not in self._begun:
            self._begun.add(index)
            if self.is_chat:
                yield self._piece(index, {"role": "assistant", "content": ""})
            elif self.echo:
                yield self._piece(index, {"content": self.echo[index]})
        if isinstance(event, Delta) and ((fields := _delta_fields(event)) or (self.with_logprobs and event.tokens)):
            yield self._piece(index, fields, delta=event)
        if isinstance(event, Done):
            self.dones[index] = event
            yield self._piece(index, {}, done=event)
            if len(self.dones) == choice_count:
                if self.include_usage:
                    yield self._chunk([]) | {"usage": self.usage()} | self._debug()
                elif self.debug is not None:
                    yield self._chunk([]) | self._debug()

    def whole(self, deltas: Sequence[Delta]) -> dict[str, object]:
        """Build the whole answer; one delta per choice."""
        choices = [self._whole_choice(index, delta) for index, delta in enumerate(deltas)]
        return self._envelope(choices) | {"usage": self.usage()} | self._debug()

    def usage(self) -> dict[str, object]:
        """Count over all choices; a prompt that several choices share counts once."""
        first_of_prompts = [done for index, done in self.dones.items() if index % self.choices_per_prompt == 0]
        prompt = sum(done.usage.prompt_tokens for done in first_of_prompts)
        completion = sum(done.usage.completion_tokens for done in self.dones.values())
        reasoning = sum(done.usage.reasoning_tokens for done in self.dones.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(done.usage.cached_tokens for done in first_of_prompts)},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }

    def _piece(
        self, index: int, fields: dict[str, object], *, delta: Delta | None = None, done: Done | None = None
    ) -> dict[str, object]:
        said: dict[str, object] = {"delta": fields} if self.is_chat else {"text": fields.get("content", "")}
        return self._chunk([self._choice(index, said, delta, done)])

    def _whole_choice(self, index: int, delta: Delta) -> dict[str, object]:
        content = delta.content or (None if delta.tool_calls else "")
        message = {"role": "assistant", "refusal": None, **_delta_fields(delta), "content": content}
        echo = self.echo[index] if self.echo else ""
        said: dict[str, object] = {"message": message} if self.is_chat else {"text": echo + delta.content}
        return self._choice(index, said, delta, self.dones[index])

    def _choice(
        self, index: int, said: Mapping[str, object], delta: Delta | None, done: Done | None
    ) -> dict[str, object]:
        return {
            "index": index,
            **said,
            "logprobs": self._logprobs(index, delta) if delta is not None else None,
            **_end(done.reason if done is not None else None),
        }

    def _logprobs(self, index: int, delta: Delta) -> dict[str, object] | None:
        if not self.with_logprobs:
            return None
        if self.is_chat:
            return {"content": logprob_entries(delta.tokens), "refusal": None}
        offset = self._text_lengths.get(index, 0)
        columns = legacy_logprobs(delta.tokens, text_offset=offset)
        self._text_lengths[index] = offset + sum(len(str(token)) for token in columns["tokens"])
        return dict(columns)

    def _chunk(self, choices: list[dict[str, object]]) -> dict[str, object]:
        chunk = self._envelope(choices, kind="chat.completion.chunk")
        return chunk | {"usage": None} if self.include_usage else chunk

    def _envelope(self, choices: list[dict[str, object]], kind: str = "chat.completion") -> dict[str, object]:
        return {
            "id": self.id,
            "object": kind if self.is_chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }

    def _debug(self) -> dict[str, object]:
        return {} if self.debug is None else {"puna": self.debug.debug_fields()}


def _end(reason: FinishReason | None) -> dict[str, object]:
    """Return the fields of a choice that say why it ended; None: it goes on."""
    match reason:
        case None:
            return {"finish_reason": None}
        case FinishReason.REPETITION:
            return {"finish_reason": "length", "stop_reason": REPETITION_DETECTED}
        case FinishReason.LENGTH | FinishReason.CONTEXT_FULL:
            return {"finish_reason": "length"}
        case FinishReason.TOOL_CALLS:
            return {"finish_reason": "tool_calls"}
        case FinishReason.END_TOKEN | FinishReason.STOP_STRING:
            return {"finish_reason": "stop"}


def _delta_fields(delta: Delta) -> dict[str, object]:
    """Return the fields of a message or a piece of it."""
    fields: dict[str, object] = {"content": delta.content} if delta.content else {}
    if delta.reasoning:
        fields |= {"reasoning": delta.reasoning, "reasoning_content": delta.reasoning}
    if delta.tool_calls:
        fields["tool_calls"] = [_call_piece(call) for call in delta.tool_calls]
    return fields


def _call_piece(call: CallDelta) -> dict[str, object]:
    """Build the first piece of a call, any other, or the whole of it."""
    if not call.id:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


class OpenAiAnswers(Endpoints):
    """The two endpoints that answer."""

    async def chat(self, exchange: Exchange) -> None:
        """POST /v1/chat/completions."""
        body = validated(ChatCompletionBody, await exchange.json())
        requests = chat_requests(self.service, exchange, body)
        answer = self._answer(exchange, body, is_chat=True, with_logprobs=body.logprobs)
        await self._respond(exchange, body, requests, answer)

    async def complete(self, exchange: Exchange) -> None:
        """POST /v1/completions."""
        body = validated(CompletionBody, await exchange.json())
        requests = completion_requests(self.service, exchange, body)
        answer = self._answer(exchange, body, is_chat=False, with_logprobs=body.logprobs is not None)
        if body.echo:
            answer.echo = [r.prompt.text if isinstance(r.prompt, RawPrompt) else "" for r in requests]
        await self._respond(exchange, body, requests, answer)

    def _answer(
        self, exchange: Exchange, body: OpenAiAnswerBody, *, is_chat: bool, with_logprobs: bool
    ) -> OpenAiAnswer:
        exchange.record.stream = body.stream
        route = self.models.meant_route(body.model)
        digest = route.model.digest[:_DIGEST_SHOWN] if route is not None else ""
        return OpenAiAnswer(
            is_chat=is_chat,
            model=body.model,
            fingerprint=f"puna-{self.service.version}-{digest}",
            include_usage=body.stream_options is not None and body.stream_options.include_usage,
            choices_per_prompt=body.n,
            with_logprobs=with_logprobs,
            debug=exchange.record if exchange.wants_debug else None,
        )

    async def _respond(
        self, exchange: Exchange, body: OpenAiAnswerBody, requests: list[AnswerRequest], answer: OpenAiAnswer
    ) -> None:
        async with self.service.choices_feed(requests, exchange.record) as feed:
            if body.stream:
                await SseStream(
                    exchange=exchange,
                    feed=feed,
                    objects=lambda item: answer.chunks(item, len(requests)),
                    commit_s=self.service.stream_commit_s,
                ).run()
                return
            deltas: list[list[Delta]] = [[] for _ in requests]
            async for item in feed:
                if isinstance(item.event, Delta):
                    deltas[item.index].append(item.event)
                elif isinstance(item.event, Done):
                    answer.dones[item.index] = item.event
        await exchange.respond_json(answer.whole([Delta.joined(parts) for parts in deltas]))
