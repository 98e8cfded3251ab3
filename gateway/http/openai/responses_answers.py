"""POST /v1/responses, /v1/responses/input_tokens and /v1/responses/compact."""

import time
from dataclasses import dataclass

from common.ids import random_id
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import validated
from gateway.http.endpoint.service import Service, whole_answer
from gateway.http.endpoint.streaming import SseStream, named_event
from gateway.http.openai.responses_bodies import CompactBody, InputTokensBody, ResponsesBody
from gateway.http.openai.responses_calls import ID_LENGTH
from gateway.http.openai.responses_compaction import compaction_item, kept_items
from gateway.http.openai.responses_events import ResponseMaker, usage_of
from gateway.http.openai.responses_requests import compact_request, count_request, responses_request


@dataclass(frozen=True, slots=True)
class ResponsesAnswers:
    """The endpoints."""

    service: Service

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

    async def input_tokens(self, exchange: Exchange) -> None:
        """POST /v1/responses/input_tokens: rendered and tokenized exactly as an answer would be."""
        body = validated(InputTokensBody, await exchange.json())
        chat, think = count_request(self.service, exchange, body)
        count = await self.service.inference.models.count(body.model, chat, think)
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
