"""POST /v1/messages and /v1/messages/count_tokens."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from common.ids import random_id
from gateway.answers.record import RequestRecord
from gateway.core.request.answers import AnswerEvent, CallDelta, Delta, Done, FinishReason, PromptProgress
from gateway.http.anthropic.blocks import SIGNATURE, hidden_signature
from gateway.http.anthropic.bodies import CountTokensBody, MessagesBody
from gateway.http.anthropic.requests import chat_of, check_max_tokens, hides_thinking, messages_request, think_of
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import validated
from gateway.http.endpoint.service import Endpoints, whole_answer
from gateway.http.endpoint.streaming import SseStream, named_event

_ID_LENGTH = 24
_STOP_REASONS = {
    FinishReason.LENGTH: "max_tokens",
    FinishReason.CONTEXT_FULL: "model_context_window_exceeded",
    FinishReason.REPETITION: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.STOP_STRING: "stop_sequence",
    FinishReason.END_TOKEN: "end_turn",
}
# Edits of the conversation are left to the client.
_NO_EDITS: dict[str, object] = {"context_management": {"applied_edits": []}}


@dataclass(slots=True, kw_only=True)
class MessageMaker:
    """Events into Anthropic's: blocks open and close as the kind of text changes."""

    model: str
    debug: RequestRecord | None = None
    hides_thinking: bool = False  # thinking blocks have no text, and a signature that carries it
    names_edits: bool = False  # the answer says which edits of the conversation were applied
    id: str = field(default_factory=lambda: random_id("msg_", _ID_LENGTH))
    _started: bool = False
    _block: str = ""  # type of the open one
    _index: int = -1
    _hidden: str = ""  # thinking of the open block

    def events(self, event: AnswerEvent) -> Iterable[dict[str, object]]:
        """Translate one of our events to events of the stream."""
        match event:
            case PromptProgress():
                if not self._started:
                    yield self._start(event)
            case Delta():
                yield from self._pieces(event)
            case Done():
                if not self._started:
                    yield self._start(None)
                yield from self._close()
                stop = {"stop_reason": _STOP_REASONS[event.reason], "stop_sequence": event.stop_string or None}
                yield {"type": "message_delta", "delta": stop, "usage": usage_of(event), **self._extras()}
                yield {"type": "message_stop"}
            case _:
                pass

    def whole(self, delta: Delta, done: Done) -> dict[str, object]:
        """Build the whole answer."""
        content: list[dict[str, object]] = []
        if delta.reasoning:
            shown = "" if self.hides_thinking else delta.reasoning
            content.append({"type": "thinking", "thinking": shown, "signature": self._signature(delta.reasoning)})
        if delta.content:
            content.append({"type": "text", "text": delta.content})
        content += [{**_tool_use(call), "input": call.arguments_object()} for call in delta.tool_calls]
        return self._message(content) | {
            "stop_reason": _STOP_REASONS[done.reason],
            "stop_sequence": done.stop_string or None,
            "usage": usage_of(done),
            **self._extras(),
        }

    def _extras(self) -> dict[str, object]:
        debug = {} if self.debug is None else {"puna": self.debug.debug_fields()}
        return {**(_NO_EDITS if self.names_edits else {}), **debug}

    def _signature(self, thinking: str) -> str:
        return hidden_signature(thinking) if self.hides_thinking else SIGNATURE

    def _start(self, prompt: PromptProgress | None) -> dict[str, object]:
        self._started = True
        cached = prompt.cached_tokens if prompt else 0
        usage = {
            "input_tokens": (prompt.total_tokens if prompt else 0) - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": 0,
        }
        message = self._message([]) | {"stop_reason": None, "stop_sequence": None, "usage": usage}
        return {"type": "message_start", "message": message}

    def _message(self, content: list[dict[str, object]]) -> dict[str, object]:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": content}

    def _pieces(self, delta: Delta) -> Iterable[dict[str, object]]:
        if not self._started and (delta.reasoning or delta.content or delta.tool_calls):
            yield self._start(None)
        if delta.reasoning:
            yield from self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            if self.hides_thinking:
                self._hidden += delta.reasoning
            else:
                yield self._delta({"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.content:
            yield from self._open("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": delta.content})
        for call in delta.tool_calls:
            if call.id:
                yield from self._close()
                yield from self._open("tool_use", {**_tool_use(call), "input": {}})
            if call.arguments:
                yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})

    def _open(self, kind: str, block: dict[str, object]) -> Iterable[dict[str, object]]:
        if self._block == kind and kind != "tool_use":
            return
        yield from self._close()
        self._block = kind
        self._index += 1
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _close(self) -> Iterable[dict[str, object]]:
        if not self._block:
            return
        if self._block == "thinking":
            yield self._delta({"type": "signature_delta", "signature": self._signature(self._hidden)})
            self._hidden = ""
        self._block = ""
        yield {"type": "content_block_stop", "index": self._index}

    def _delta(self, delta: dict[str, object]) -> dict[str, object]:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


class AnthropicAnswers(Endpoints):
    """The two endpoints."""

    async def messages(self, exchange: Exchange) -> None:
        """POST /v1/messages."""
        data = await exchange.json()
        check_max_tokens(data)
        body = validated(MessagesBody, data)
        request = messages_request(self.service, exchange, body)
        exchange.record.stream = body.stream
        maker = MessageMaker(
            model=body.model,
            debug=exchange.record if exchange.wants_debug else None,
            hides_thinking=hides_thinking(body),
            names_edits=body.context_management is not None,
        )
        async with self.service.feed(request, exchange.record) as feed:
            if body.stream:
                await SseStream(
                    exchange=exchange,
                    feed=feed,
                    objects=maker.events,
                    commit_s=self.service.stream_commit_s,
                    named=True,
                    heartbeat=named_event({"type": "ping"}),
                ).run()
                return
            delta, done = await whole_answer(feed)
        await exchange.respond_json(maker.whole(delta, done))

    async def count_tokens(self, exchange: Exchange) -> None:
        """POST /v1/messages/count_tokens: rendered and tokenized exactly as an answer would be."""
        body = validated(CountTokensBody, await exchange.json())
        exchange.record.prepared()
        count = await self.models.count(body.model, chat_of(exchange, body), think_of(body))
        edits = {"context_management": {"original_input_tokens": count}} if body.context_management is not None else {}
        await exchange.respond_json({"input_tokens": count, **edits})


def usage_of(done: Done) -> dict[str, object]:
    """Count in Anthropic's words: input tokens without the cached ones."""
    usage = done.usage
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }


def _tool_use(call: CallDelta) -> dict[str, object]:
    return {"type": "tool_use", "id": call.id.replace("call_", "toolu_", 1), "name": call.name}
