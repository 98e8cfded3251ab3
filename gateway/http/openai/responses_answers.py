"""POST /v1/responses."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from common.ids import random_id
from gateway.answers.record import RequestRecord
from gateway.core.asked.answers import AnswerEvent, CallDelta, Delta, Done, EndReason, GeneratedToken, PromptProgress
from gateway.core.asked.logprobs import logprob_entries
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import validated
from gateway.http.endpoint.service import Service, whole_answer
from gateway.http.endpoint.streaming import SseStream, named_event
from gateway.http.openai.responses_bodies import ResponsesBody
from gateway.http.openai.responses_requests import responses_request

_ID_LENGTH = 24
Item = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class ResponseMaker:
    """Events into OpenAI's: items open and close as the kind of text changes; every event is numbered."""

    body: ResponsesBody
    with_logprobs: bool = False
    debug: RequestRecord | None = None
    id: str = field(default_factory=lambda: random_id("resp_", _ID_LENGTH))
    created_at: int = field(default_factory=lambda: int(time.time()))
    _output: list[Item] = field(default_factory=list)
    _open: bool = False
    _sequence: int = 0
    _tokens: list[GeneratedToken] = field(default_factory=list)

    def events(self, event: AnswerEvent) -> Iterable[dict[str, object]]:
        """The stream's events of one of ours."""
        match event:
            case PromptProgress() | Delta() | Done() if self._sequence == 0:
                yield self._event("response.created", response=self._response("in_progress"))
                yield self._event("response.in_progress", response=self._response("in_progress"))
                yield from self.events(event)
            case Delta():
                yield from self._pieces(event)
            case Done():
                yield from self._close()
                status = _status(event)
                name = "response.completed" if status == "completed" else "response.incomplete"
                yield self._event(name, response=self._response(status, event))
            case _:
                pass

    def failed(self, error: dict[str, object]) -> dict[str, object]:
        """The last event of a stream that broke."""
        response = self._response("failed") | {"error": error}
        return self._event("response.failed", response=response)

    def whole(self, delta: Delta, done: Done) -> dict[str, object]:
        """The answer at once."""
        for _ in self._pieces(delta):
            pass
        for _ in self._close():
            pass
        return self._response(_status(done), done)

    def _event(self, kind: str, **fields: object) -> dict[str, object]:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event

    def _response(self, status: str, done: Done | None = None) -> dict[str, object]:
        body = self.body
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": status,
            "error": None,
            "incomplete_details": incomplete,
            "instructions": body.instructions or None,
            "max_output_tokens": body.max_output_tokens,
            "model": body.model,
            "output": list(self._output),
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning else None, "summary": None},
            "store": False,
            "temperature": body.temperature if body.temperature is not None else 1.0,
            "text": {"format": (body.text.format if body.text else None) or {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools,
            "top_p": body.top_p if body.top_p is not None else 1.0,
            "truncation": body.truncation,
            "usage": None if done is None else usage_of(done),
            "user": body.user,
            "metadata": body.metadata,
            **({} if self.debug is None or done is None else {"puna": self.debug.debug_fields()}),
        }

    def _pieces(self, delta: Delta) -> Iterable[dict[str, object]]:
        if delta.reasoning:
            yield from self._open_item("reasoning")
            self._item["summary"][0]["text"] += delta.reasoning
            yield self._part_event("response.reasoning_summary_text.delta", "summary_index", delta=delta.reasoning)
        if delta.content:
            yield from self._open_item("message")
            part = self._item["content"][0]
            part["text"] += delta.content
            logprobs = logprob_entries(delta.tokens) if self.with_logprobs else []
            part["logprobs"] += logprobs
            yield self._part_event(
                "response.output_text.delta", "content_index", delta=delta.content, logprobs=logprobs
            )
        for call in delta.tool_calls:
            if call.id:
                yield from self._close()
                yield from self._open_item("function_call", call)
            if call.arguments:
                if not call.id:
                    self._item["arguments"] += call.arguments
                yield self._item_event("response.function_call_arguments.delta", delta=call.arguments)

    @property
    def _item(self) -> Item:
        return self._output[-1]

    def _item_event(self, kind: str, **fields: object) -> dict[str, object]:
        return self._event(kind, item_id=self._item["id"], output_index=len(self._output) - 1, **fields)

    def _part_event(self, kind: str, index: str, **fields: object) -> dict[str, object]:
        return self._item_event(kind, **{index: 0}, **fields)

    def _open_item(self, kind: str, call: CallDelta | None = None) -> Iterable[dict[str, object]]:
        if self._open and self._item["type"] == kind and call is None:
            return
        yield from self._close()
        self._output.append(_new_item(kind, call))
        self._open = True
        shown = dict(self._item)
        if kind == "message":
            shown["content"] = []
        elif kind == "reasoning":
            shown["summary"] = []
        else:
            shown["arguments"] = ""
        yield self._event("response.output_item.added", output_index=len(self._output) - 1, item=shown)
        if kind == "message":
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield self._part_event("response.content_part.added", "content_index", part=part)
        elif kind == "reasoning":
            part = {"type": "summary_text", "text": ""}
            yield self._part_event("response.reasoning_summary_part.added", "summary_index", part=part)

    def _close(self) -> Iterable[dict[str, object]]:
        if not self._open:
            return
        item = self._item
        item["status"] = "completed"
        match item["type"]:
            case "message":
                part = item["content"][0]
                yield self._part_event(
                    "response.output_text.done", "content_index", text=part["text"], logprobs=part["logprobs"]
                )
                yield self._part_event("response.content_part.done", "content_index", part=part)
            case "reasoning":
                part = item["summary"][0]
                yield self._part_event("response.reasoning_summary_text.done", "summary_index", text=part["text"])
                yield self._part_event("response.reasoning_summary_part.done", "summary_index", part=part)
            case _:
                yield self._item_event(
                    "response.function_call_arguments.done", name=item["name"], arguments=item["arguments"]
                )
        yield self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)
        self._open = False


@dataclass(frozen=True, slots=True)
class ResponsesAnswers:
    """The endpoint."""

    service: Service

    async def create(self, exchange: Exchange) -> None:
        """POST /v1/responses."""
        body = validated(ResponsesBody, await exchange.json())
        request = responses_request(self.service, exchange, body)
        exchange.record.stream = body.stream
        maker = ResponseMaker(
            body=body,
            with_logprobs=request.top_logprobs is not None,
            debug=exchange.record if exchange.wants_debug else None,
        )
        async with self.service.feed(request, exchange.record) as feed:
            if body.stream:
                stream = SseStream(
                    exchange=exchange,
                    feed=feed,
                    objects=maker.events,
                    progress_of=lambda item: item,
                    commit_s=self.service.stream_commit_s,
                    frame=named_event,
                    end=b"",
                    failure=maker.failed,
                )
                await stream.run()
                return
            delta, done = await whole_answer(feed)
        await exchange.respond_json(maker.whole(delta, done))


def usage_of(done: Done) -> dict[str, object]:
    """Counts in the words of this route."""
    usage = done.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _status(done: Done) -> str:
    return "incomplete" if done.reason is EndReason.LENGTH else "completed"


def _new_item(kind: str, call: CallDelta | None) -> Item:
    match kind:
        case "reasoning":
            return {
                "type": kind,
                "id": random_id("rs_", _ID_LENGTH),
                "summary": [{"type": "summary_text", "text": ""}],
                "status": "in_progress",
            }
        case "message":
            return {
                "type": kind,
                "id": random_id("msg_", _ID_LENGTH),
                "role": "assistant",
                "status": "in_progress",
                "content": [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}],
            }
        case _:
            assert call is not None, "calls are opened by their first piece"
            return {
                "type": kind,
                "id": random_id("fc_", _ID_LENGTH),
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
                "status": "in_progress",
            }
