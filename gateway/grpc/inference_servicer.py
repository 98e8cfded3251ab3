"""puna.v1.Inference: the same answers as over HTTP, typed."""

import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from google.protobuf.message import Message as ProtoMessage
from grpc import aio

from common.errors import InvalidRequest
from gateway.answers.record import RequestRecord
from gateway.converters import generation as converters
from gateway.converters.chats import (
    chat_from_proto,
    counted_from_proto,
    fill_in_from_proto,
    messages_from_proto,
    prompt_from_proto,
    think_from_proto,
)
from gateway.converters.load_progress import loading_to_proto, queued_to_proto
from gateway.core.request.answer_format import AnswerFormat, parse_grammar_field
from gateway.core.request.answers import (
    AnswerEvent,
    AnswerRequest,
    Chat,
    Delta,
    Dialect,
    Done,
    FinishReason,
    LoadUpdate,
    PromptProgress,
    Queued,
    RawPrompt,
    Think,
)
from gateway.core.request.logprobs import check_top_logprobs
from gateway.core.request.option_table import OptionValue, check_options
from gateway.grpc.model_servicer import ModelServicer, checked_model
from gateway.grpc.recorded import recorded
from protos import inference_pb2, runner_pb2

SERVICE_NAME = "puna.v1.Inference"
RESUME_KEY = "x-puna-resume"
Context = aio.ServicerContext[Any, Any]
# Inside the servicer the name Chat is a method.
PromptKind = Chat | RawPrompt

_LIMIT_FIELDS = {
    "max_tokens": "num_predict",
    "context_tokens": "num_ctx",
    "keep_tokens": "num_keep",
    "think_budget": "think_budget",
}
_REASONS = {
    FinishReason.END_TOKEN: runner_pb2.DONE_REASON_END_TOKEN,
    FinishReason.TOOL_CALLS: runner_pb2.DONE_REASON_END_TOKEN,
    FinishReason.STOP_STRING: runner_pb2.DONE_REASON_STOP_STRING,
    FinishReason.LENGTH: runner_pb2.DONE_REASON_LENGTH,
}


class InferenceServicer(ModelServicer):
    """Translates; errors are raised as domain errors and become statuses in the interceptor."""

    async def Chat(
        self, request: inference_pb2.ChatRequest, context: Context
    ) -> AsyncIterator[inference_pb2.InferenceEvent]:
        """Answer a conversation."""
        if not request.messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        chat = chat_from_proto(request)
        if chat.forced_tools and request.options.grammar:
            raise InvalidRequest("grammar and a forced tool exclude each other", param="grammar")
        answer = self._request(request.model, chat, request.options, context, think_from_proto(request))
        async for event in self._answer(answer, "Chat", context):
            yield event

    async def Generate(
        self, request: inference_pb2.GenerateTextRequest, context: Context
    ) -> AsyncIterator[inference_pb2.InferenceEvent]:
        """Continue a prompt."""
        if not request.prompt:
            raise InvalidRequest("prompt must not be empty; LoadModel loads a model", param="prompt")
        if request.raw and (request.system or request.images):
            raise InvalidRequest("raw goes with neither system nor images", param="raw")
        prompt: PromptKind
        if request.suffix:
            prompt = fill_in_from_proto(request)
        else:
            prompt = RawPrompt(text=request.prompt) if request.raw else prompt_from_proto(request)
        answer = self._request(request.model, prompt, request.options, context, think_from_proto(request))
        async for event in self._answer(answer, "Generate", context):
            yield event

    async def Tokenize(
        self, request: inference_pb2.TokenizeTextRequest, context: Context
    ) -> inference_pb2.TokenizeTextResponse:
        """Translate text or messages to token ids."""
        by_text = request.WhichOneof("input") != "messages"
        chat = Chat(messages=messages_from_proto(request.messages.messages))
        prompt = RawPrompt(text=request.text) if by_text else chat
        ids = await self._service.inference.models.tokenize(checked_model(request.model), prompt)
        return inference_pb2.TokenizeTextResponse(ids=ids)

    async def Detokenize(
        self, request: inference_pb2.DetokenizeIdsRequest, context: Context
    ) -> inference_pb2.DetokenizeIdsResponse:
        """Translate token ids to text."""
        text = await self._service.inference.models.detokenize(checked_model(request.model), list(request.ids))
        return inference_pb2.DetokenizeIdsResponse(text=text.decode(errors="replace"))

    async def CountTokens(
        self, request: inference_pb2.CountTokensRequest, context: Context
    ) -> inference_pb2.CountTokensResponse:
        """Count the tokens that an answer would read."""
        chat, think = counted_from_proto(request), think_from_proto(request)
        count = await self._service.inference.models.count(checked_model(request.model), chat, think)
        return inference_pb2.CountTokensResponse(tokens=count)

    async def LoadModel(
        self, request: inference_pb2.LoadModelRequest, context: Context
    ) -> AsyncIterator[inference_pb2.InferenceEvent]:
        """Load a model; ends when it is ready."""
        started_ns = time.monotonic_ns()
        record = RequestRecord(dialect=Dialect.GRPC, route="LoadModel", method="grpc")
        record.begin_trace()
        load = self._service.inference.models.load(
            checked_model(request.model),
            keep_alive_ms=request.keep_alive_ms if request.HasField("keep_alive_ms") else None,
            context_tokens=request.context_tokens if request.HasField("context_tokens") else None,
            record=record,
            at_once=True,
        )
        async for progress in recorded(load, record):
            yield _event(progress)
        duration_ns = time.monotonic_ns() - started_ns
        done = inference_pb2.Done(total_duration_ns=duration_ns, load_duration_ns=duration_ns)
        yield inference_pb2.InferenceEvent(done=done)

    async def _answer(
        self, request: AnswerRequest, method: str, context: Context
    ) -> AsyncIterator[inference_pb2.InferenceEvent]:
        record = RequestRecord(dialect=Dialect.GRPC, route=method, method="grpc", stream=True)
        record.begin_trace()
        record.may_resume = (RESUME_KEY, "0") not in (context.invocation_metadata() or ())
        async with self._service.feed(request, record) as feed:
            async for event in recorded(aiter(feed), record):
                yield _event(event)

    def _request(
        self,
        model: str,
        prompt: PromptKind,
        options: inference_pb2.AnswerOptions,
        context: Context,
        think: Think | None,
    ) -> AnswerRequest:
        remaining_s = context.time_remaining()
        return AnswerRequest(
            dialect=Dialect.GRPC,
            model=checked_model(model),
            prompt=prompt,
            options=_options(options),
            keep_alive_ms=self._keep_alive_ms(options),
            think=think,
            top_logprobs=check_top_logprobs(options.top_logprobs) if options.HasField("top_logprobs") else None,
            truncate=options.truncate if options.HasField("truncate") else True,
            shift=options.shift if options.HasField("shift") else True,
            format=_format(options),
            deadline_s=None if remaining_s is None else time.monotonic() + remaining_s,
        )


def _options(options: inference_pb2.AnswerOptions) -> dict[str, OptionValue]:
    """Check the options by the same table as over HTTP."""
    sampling = options.sampling
    values: dict[str, object] = {one.name: value for one, value in sampling.ListFields()}
    if sampling.seed:
        # The table knows seeds as JSON has them: signed.
        values["seed"] = sampling.seed - 2**64 if sampling.seed >= 2**63 else sampling.seed
    if sampling.logit_bias:
        values["logit_bias"] = dict(sampling.logit_bias)
    if sampling.dry_sequence_breakers:
        values["dry_sequence_breakers"] = list(sampling.dry_sequence_breakers)
    if options.stop:
        values["stop"] = list(options.stop)
    values |= _set_fields(options, _LIMIT_FIELDS)
    return dict(check_options(values).values)


def _format(options: inference_pb2.AnswerOptions) -> AnswerFormat | None:
    match options.WhichOneof("constraint"):
        case "grammar" if options.grammar:
            return parse_grammar_field(options.grammar)
        case "json_schema" if options.json_schema:
            return AnswerFormat(field="json_schema", json_schema=options.json_schema)
        case _:
            return None


def _set_fields(message: ProtoMessage, names: Mapping[str, str]) -> dict[str, object]:
    """Return the fields that are set, under the names of the option table."""
    return {name: getattr(message, field) for field, name in names.items() if message.HasField(field)}


def _event(event: AnswerEvent) -> inference_pb2.InferenceEvent:
    match event:
        case Queued():
            return inference_pb2.InferenceEvent(queued=queued_to_proto(event))
        case LoadUpdate():
            return inference_pb2.InferenceEvent(loading=loading_to_proto(event))
        case PromptProgress():
            progress = runner_pb2.PromptProgress(
                done_tokens=event.done_tokens, total_tokens=event.total_tokens, cached_tokens=event.cached_tokens
            )
            return inference_pb2.InferenceEvent(prompt=progress)
        case Delta():
            tokens = [converters.token_to_proto(token) for token in event.tokens]
            calls = [
                inference_pb2.ToolCallDelta(index=call.index, id=call.id, name=call.name, arguments=call.arguments)
                for call in event.tool_calls
            ]
            delta = inference_pb2.Delta(
                content=event.content, tokens=tokens, reasoning=event.reasoning, tool_calls=calls
            )
            return inference_pb2.InferenceEvent(delta=delta)
        case Done():
            return inference_pb2.InferenceEvent(done=_done(event))


def _done(event: Done) -> inference_pb2.Done:
    usage = event.usage
    return inference_pb2.Done(
        reason=_REASONS[event.reason],
        stop_string=event.stop_string,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        total_duration_ns=usage.total_duration_ns,
        load_duration_ns=usage.load_duration_ns,
        prompt_duration_ns=usage.prompt_duration_ns,
        generate_duration_ns=usage.generate_duration_ns,
        seed=event.seed,
        placement=converters.placement_to_proto(event.placed),
        reasoning_tokens=usage.reasoning_tokens,
        called_tools=event.reason is FinishReason.TOOL_CALLS,
        resumes=event.resumes,
    )
