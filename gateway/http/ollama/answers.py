"""POST /api/generate and /api/chat."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from common.clock import rfc3339_ns
from common.errors import InvalidRequest
from gateway.answers.record import RequestRecord
from gateway.core.request.answers import (
    AnswerEvent,
    AnswerRequest,
    CallDelta,
    Delta,
    Done,
    FinishReason,
    LoadUpdate,
    PromptProgress,
    Queued,
    images_of,
    whole_calls,
)
from gateway.core.request.logprobs import logprob_entries
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import validated
from gateway.http.endpoint.response_model import REPETITION_DETECTED
from gateway.http.endpoint.service import Endpoints, whole_answer
from gateway.http.endpoint.streaming import stream_ndjson
from gateway.http.ollama.bodies import ChatBody, GenerateBody, OllamaAnswerBody
from gateway.http.ollama.requests import chat_request, generate_request

AnswerBody = TypeVar("AnswerBody", bound=OllamaAnswerBody)


@dataclass(slots=True, kw_only=True)
class ChunkMaker:
    """Events into Ollama's objects. `is_chat` decides where the text stands."""

    model: str
    is_chat: bool
    raw: bool = False
    _call: CallDelta | None = None  # the one whose arguments are still being written
    debug: RequestRecord | None = None

    def objects(self, event: AnswerEvent) -> Iterable[dict[str, object]]:
        """Build the lines of one event."""
        match event:
            case Delta():
                said = replace(event, tool_calls=tuple(self._complete(event.tool_calls)))
                has_logprobs = any(token.logprob is not None for token in said.tokens)
                if said.content or said.reasoning or said.tool_calls or has_logprobs:
                    yield self.chunk(said)
            case Done():
                yield self.last(Delta(tool_calls=(self._call,) if self._call else ()), event)
            case Queued() | LoadUpdate() | PromptProgress():
                pass

    def _complete(self, pieces: Iterable[CallDelta]) -> Iterable[CallDelta]:
        """Yield calls whose arguments are whole: a client gets each at once."""
        for piece in pieces:
            if self._call is not None and piece.index != self._call.index:
                yield self._call
                self._call = None
            (self._call,) = whole_calls([*([self._call] if self._call else []), piece])

    def chunk(self, delta: Delta) -> dict[str, object]:
        """Build a piece of the answer."""
        chunk: dict[str, object] = {"model": self.model, "created_at": rfc3339_ns(time.time_ns())}
        text: dict[str, object] = {"thinking": delta.reasoning} if delta.reasoning else {}
        if delta.tool_calls:
            text["tool_calls"] = [_tool_call(call) for call in delta.tool_calls]
        if self.is_chat:
            chunk["message"] = {"role": "assistant", "content": delta.content, **text}
        else:
            chunk |= {"response": delta.content, **text}
        chunk["done"] = False
        if entries := logprob_entries(delta.tokens):
            chunk["logprobs"] = entries
        return chunk

    def last(self, delta: Delta, done: Done) -> dict[str, object]:
        """Build the last object; `delta` is the text that it carries."""
        usage = done.usage
        last = self.chunk(delta) | {
            "done": True,
            "done_reason": "length" if done.reason.is_cut else "stop",
            "total_duration": usage.total_duration_ns,
            "load_duration": usage.load_duration_ns,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": usage.prompt_duration_ns,
            "prompt_cached_count": usage.cached_tokens,
            "eval_count": usage.completion_tokens,
            "eval_duration": usage.generate_duration_ns,
        }
        if done.stop_string:
            last["stop_sequence"] = done.stop_string
        if done.reason is FinishReason.REPETITION:
            last["stop_reason"] = REPETITION_DETECTED
        if self.debug is not None:
            last["puna"] = self.debug.debug_fields()
        if not self.is_chat and not self.raw:
            last["context"] = list(done.context_token_ids)
        return last

    def loaded(self, reason: str) -> dict[str, object]:
        """Build the answer to a request without a prompt: the model was loaded or unloaded."""
        return self.chunk(Delta()) | {"done": True, "done_reason": reason}


class OllamaAnswers(Endpoints):
    """The two endpoints that answer."""

    async def generate(self, exchange: Exchange) -> None:
        """POST /api/generate."""
        body = validated_answer_body(GenerateBody, await exchange.json())
        request = generate_request(self.service, exchange, body)
        maker = ChunkMaker(model=body.model, is_chat=False, raw=body.raw)
        await self._answer(exchange, body, request, maker, is_empty=not body.prompt)

    async def chat(self, exchange: Exchange) -> None:
        """POST /api/chat."""
        body = validated_answer_body(ChatBody, await exchange.json())
        request = chat_request(self.service, exchange, body)
        maker = ChunkMaker(model=body.model, is_chat=True)
        await self._answer(exchange, body, request, maker, is_empty=not body.messages)

    async def _answer(
        self, exchange: Exchange, body: OllamaAnswerBody, request: AnswerRequest, maker: ChunkMaker, *, is_empty: bool
    ) -> None:
        exchange.record.stream = body.stream
        maker.debug = exchange.record if exchange.wants_debug else None
        if body.debug_render_only and not is_empty:
            rendered = await self.models.render(request)
            info = {"rendered_template": rendered, "image_count": len(images_of(request.prompt))}
            await exchange.respond_json(maker.chunk(Delta()) | {"_debug_info": info})
        elif is_empty:
            await self._load_or_unload(exchange, request, maker)
        elif body.stream:
            async with self.service.feed(request, exchange.record) as feed:
                await stream_ndjson(exchange, feed, maker.objects)
        else:
            async with self.service.feed(request, exchange.record) as feed:
                delta, done = await whole_answer(feed)
            await exchange.respond_json(maker.last(delta, done))

    async def _load_or_unload(self, exchange: Exchange, request: AnswerRequest, maker: ChunkMaker) -> None:
        if request.keep_alive_ms == 0:
            route = self.models.known_route(request.model)
            exchange.record.found(route.model)
            await self.scheduler.unload_model(route.model.name)
            await exchange.respond_json(maker.loaded("unload"))
            return
        await self.service.load(request.model, request.keep_alive_ms, exchange.record)
        await exchange.respond_json(maker.loaded("load"))


def validated_answer_body(body_type: type[AnswerBody], data: object) -> AnswerBody:
    """Validate a body; an empty model name counts as none, in Ollama's words."""
    if isinstance(data, dict) and data.get("model") in (None, ""):
        raise InvalidRequest("model is required", param="model")
    return validated(body_type, data)


def _tool_call(call: CallDelta) -> dict[str, object]:
    function = {"index": call.index, "name": call.name, "arguments": call.arguments_object()}
    return {"id": call.id, "function": function}
