"""POST /v1/responses, at once and as a stream, /v1/responses/input_tokens and /v1/responses/compact."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from common.ids import random_id
from gateway.answers.record import RequestRecord
from gateway.core.request.answers import AnswerEvent, Delta, Done, PromptProgress
from gateway.core.request.logprobs import logprob_entries
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import validated
from gateway.http.endpoint.service import Endpoints, whole_answer
from gateway.http.endpoint.streaming import SseStream
from gateway.http.openai.bodies import CompactBody, InputTokensBody, ResponsesBody
from gateway.http.openai.responses_calls import ID_LENGTH, CallItem, Item, call_item
from gateway.http.openai.responses_compaction import compaction_item, kept_items, packed
from gateway.http.openai.responses_requests import REASONING_INCLUDE, compact_request, count_request, responses_request
from gateway.http.openai.responses_tools import ToolTable


@dataclass(slots=True, kw_only=True)
class ResponseMaker:
    """Events into OpenAI's: items open and close as the kind of text changes; every event is numbered."""

    body: ResponsesBody
    tools: ToolTable
    compacts: bool = False  # the text of the answer is a summary, which is one item
    with_logprobs: bool = False
    debug: RequestRecord | None = None
    id: str = field(default_factory=lambda: random_id("resp_", ID_LENGTH))
    created_at: int = field(default_factory=lambda: int(time.time()))
    _output: list[Item] = field(default_factory=list)
    _open: bool = False
    _call: CallItem | None = None  # the open item, if it is one
    _summary: list[str] = field(default_factory=list)
    _sequence: int = 0

    def events(self, event: AnswerEvent) -> Iterable[dict[str, object]]:
        """Return the stream's events of one of ours."""
        match event:
            case PromptProgress() | Delta() | Done() if self._sequence == 0:
                yield self._event("response.created", response=self._response("in_progress"))
                yield self._event("response.in_progress", response=self._response("in_progress"))
                yield from self.events(event)
            case Delta():
                yield from self._pieces(event)
            case Done():
                yield from self._finish(event)
                status = _status(event)
                name = "response.completed" if status == "completed" else "response.incomplete"
                yield self._event(name, response=self._response(status, event))
            case _:
                pass

    def failed(self, error: dict[str, object]) -> dict[str, object]:
        """Return the last event of a stream that broke."""
        response = self._response("failed") | {"error": error}
        return self._event("response.failed", response=response)

    def whole(self, delta: Delta, done: Done) -> dict[str, object]:
        """Return the answer at once."""
        for _ in self._pieces(delta):
            pass
        for _ in self._finish(done):
            pass
        return self._response(_status(done), done)

    def _event(self, kind: str, **fields: object) -> dict[str, object]:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event

    def _response(self, status: str, done: Done | None = None) -> dict[str, object]:
        body = self.body
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        reasoning, text = body.reasoning, body.text
        verbosity = {"verbosity": text.verbosity} if text is not None and text.verbosity is not None else {}
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "conversation": None,
            "error": None,
            "incomplete_details": incomplete,
            "instructions": body.instructions or None,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "model": body.model,
            "output": list(self._output),
            "parallel_tool_calls": body.parallel_tool_calls,
            "previous_response_id": None,
            "prompt": None,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {
                "effort": reasoning.effort if reasoning else None,
                "summary": reasoning.summary if reasoning else None,
            },
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": False,
            "temperature": body.temperature if body.temperature is not None else 1.0,
            "text": {"format": (text.format if text else None) or {"type": "text"}, **verbosity},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools,
            "top_logprobs": body.top_logprobs or 0,
            "top_p": body.top_p if body.top_p is not None else 1.0,
            "truncation": body.truncation,
            "usage": None if done is None else usage_of(done),
            "user": body.user,
            "metadata": body.metadata,
            **({} if self.debug is None or done is None else {"puna": self.debug.debug_fields()}),
        }

    def _pieces(self, delta: Delta) -> Iterable[dict[str, object]]:
        if self.compacts:
            self._summary.append(delta.content)
            return
        if delta.reasoning:
            yield from self._open_text("reasoning")
            self._item["summary"][0]["text"] += delta.reasoning
            yield self._part_event("response.reasoning_summary_text.delta", "summary_index", delta=delta.reasoning)
        if delta.content:
            yield from self._open_text("message")
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
                self._call = call_item(self.tools.of_model(call.name), call)
                yield self._announce(self._call.item, self._call.shown)
            assert self._call is not None, "calls are opened by their first piece"
            for kind, fields in self._call.add(call.arguments):
                yield self._item_event(f"response.{kind}", **fields)

    @property
    def _item(self) -> Item:
        return self._output[-1]

    def _item_event(self, kind: str, **fields: object) -> dict[str, object]:
        return self._event(kind, item_id=self._item["id"], output_index=len(self._output) - 1, **fields)

    def _part_event(self, kind: str, index: str, **fields: object) -> dict[str, object]:
        return self._item_event(kind, **{index: 0}, **fields)

    def _announce(self, item: Item, shown: Item) -> dict[str, object]:
        self._output.append(item)
        self._open = True
        return self._event("response.output_item.added", output_index=len(self._output) - 1, item=shown)

    def _open_text(self, kind: str) -> Iterable[dict[str, object]]:
        if self._open and self._item["type"] == kind:
            return
        yield from self._close()
        if kind == "message":
            yield self._announce(item := _new_message(), item | {"content": []})
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield self._part_event("response.content_part.added", "content_index", part=part)
        else:
            yield self._announce(item := _new_reasoning(), item | {"summary": []})
            part = {"type": "summary_text", "text": ""}
            yield self._part_event("response.reasoning_summary_part.added", "summary_index", part=part)

    def _close(self, status: str = "completed") -> Iterable[dict[str, object]]:
        if not self._open:
            return
        item = self._item
        if self._call is not None:
            for kind, fields in self._call.close():
                yield self._item_event(f"response.{kind}", **fields)
            self._call = None
        elif item["type"] == "message":
            part = item["content"][0]
            yield self._part_event(
                "response.output_text.done", "content_index", text=part["text"], logprobs=part["logprobs"]
            )
            yield self._part_event("response.content_part.done", "content_index", part=part)
        else:
            part = item["summary"][0]
            if REASONING_INCLUDE in self.body.include:
                item["encrypted_content"] = packed("reasoning", part["text"])
            yield self._part_event("response.reasoning_summary_text.done", "summary_index", text=part["text"])
            yield self._part_event("response.reasoning_summary_part.done", "summary_index", part=part)
        item["status"] = status
        yield self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)
        self._open = False

    def _finish(self, done: Done) -> Iterable[dict[str, object]]:
        if self.compacts:
            item = compaction_item("".join(self._summary))
            yield self._announce(item, item)
            yield self._event("response.output_item.done", output_index=0, item=item)
        else:
            yield from self._close(_status(done))


def usage_of(done: Done) -> dict[str, object]:
    """Return the counts in the words of this route."""
    usage = done.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _status(done: Done) -> str:
    return "incomplete" if done.reason.is_cut else "completed"


def _new_reasoning() -> Item:
    return {
        "type": "reasoning",
        "id": random_id("rs_", ID_LENGTH),
        "summary": [{"type": "summary_text", "text": ""}],
        "status": "in_progress",
    }


def _new_message() -> Item:
    return {
        "type": "message",
        "id": random_id("msg_", ID_LENGTH),
        "role": "assistant",
        "status": "in_progress",
        "content": [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}],
    }


class ResponsesAnswers(Endpoints):
    """The endpoints."""

    async def create(self, exchange: Exchange) -> None:
        """POST /v1/responses."""
        body = validated(ResponsesBody, await exchange.json())
        read = responses_request(self.service, exchange, body)
        exchange.record.stream = body.stream
        maker = ResponseMaker(
            body=body,
            tools=read.tools,
            compacts=read.compacts,
            with_logprobs=read.request.top_logprobs is not None,
            debug=exchange.record if exchange.wants_debug else None,
        )
        async with self.service.feed(read.request, exchange.record) as feed:
            if body.stream:
                await SseStream(
                    exchange=exchange,
                    feed=feed,
                    objects=maker.events,
                    commit_s=self.service.stream_commit_s,
                    named=True,
                    failure=maker.failed,
                ).run()
                return
            delta, done = await whole_answer(feed)
        await exchange.respond_json(maker.whole(delta, done))

    async def input_tokens(self, exchange: Exchange) -> None:
        """POST /v1/responses/input_tokens: rendered and tokenized exactly as an answer would be."""
        body = validated(InputTokensBody, await exchange.json())
        chat, think = count_request(self.service, exchange, body)
        exchange.record.prepared()
        count = await self.models.count(body.model, chat, think)
        await exchange.respond_json({"object": "response.input_tokens", "input_tokens": count})

    async def compact(self, exchange: Exchange) -> None:
        """POST /v1/responses/compact: the model sums up what was said."""
        body = validated(CompactBody, await exchange.json())
        request = compact_request(self.service, exchange, body)
        async with self.service.feed(request, exchange.record) as feed:
            delta, done = await whole_answer(feed)
        await exchange.respond_json(
            {
                "id": random_id("resp_", ID_LENGTH),
                "object": "response.compaction",
                "created_at": int(time.time()),
                "output": [*kept_items(body.input), compaction_item(delta.content)],
                "usage": usage_of(done),
            }
        )
