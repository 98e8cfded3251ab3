"""puna.v1.Inference: the same answers as over HTTP, typed."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from google.protobuf.message import Message as ProtoMessage
from grpc import aio

from common.errors import InvalidRequest, PunaError, RequestCanceled
from gateway.answers.model_access import check_visible
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
from gateway.core.models.creation import new_name
from gateway.core.prepare.vectors import INPUTS_MAX, EmbedQuestion, RerankQuestion
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
from gateway.core.request.model_names import given_model
from gateway.core.request.option_table import OptionValue, check_options
from gateway.http.endpoint.service import Service
from protos import inference_pb2, inference_pb2_grpc, runner_pb2, scheduler_pb2, store_pb2

SERVICE_NAME = "puna.v1.Inference"
RESUME_KEY = "x-puna-resume"
Context = aio.ServicerContext[Any, Any]
# Inside the servicer the name Chat is a method.
PromptKind = Chat | RawPrompt

_LIMIT_FIELDS = {
    "max_tokens": "num_predict",
    "context_tokens": "num_ctx",
    "keep_tokens": "num_keep",
    "speculative_tokens": "speculative_tokens",
    "think_budget": "think_budget",
}
_REASONS = {
    FinishReason.END_TOKEN: runner_pb2.DONE_REASON_END_TOKEN,
    FinishReason.TOOL_CALLS: runner_pb2.DONE_REASON_END_TOKEN,
    FinishReason.STOP_STRING: runner_pb2.DONE_REASON_STOP_STRING,
    FinishReason.LENGTH: runner_pb2.DONE_REASON_LENGTH,
    FinishReason.CONTEXT_FULL: runner_pb2.DONE_REASON_LENGTH,
    FinishReason.REPETITION: runner_pb2.DONE_REASON_LENGTH,
}
_CUTS = {
    FinishReason.LENGTH: runner_pb2.CUT_BY_MAX_TOKENS,
    FinishReason.CONTEXT_FULL: runner_pb2.CUT_BY_CONTEXT,
    FinishReason.REPETITION: runner_pb2.CUT_BY_REPETITION,
}


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    """Translates; errors are raised as domain errors and become statuses in the interceptor."""

    def __init__(self, service: Service) -> None:
        self._service = service

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
        ids = await self._service.inference.models.tokenize(given_model(request.model), prompt)
        return inference_pb2.TokenizeTextResponse(ids=ids)

    async def Detokenize(
        self, request: inference_pb2.DetokenizeIdsRequest, context: Context
    ) -> inference_pb2.DetokenizeIdsResponse:
        """Translate token ids to text."""
        text = await self._service.inference.models.detokenize(given_model(request.model), list(request.ids))
        return inference_pb2.DetokenizeIdsResponse(text=text.decode(errors="replace"))

    async def CountTokens(
        self, request: inference_pb2.CountTokensRequest, context: Context
    ) -> inference_pb2.CountTokensResponse:
        """Count the tokens that an answer would read."""
        chat, think = counted_from_proto(request), think_from_proto(request)
        count = await self._service.inference.models.count(given_model(request.model), chat, think)
        return inference_pb2.CountTokensResponse(tokens=count)

    async def Embed(
        self, request: inference_pb2.EmbedTextsRequest, context: Context
    ) -> inference_pb2.EmbedTextsResponse:
        """Embed: return one vector for each text."""
        _check(request.model, list(request.texts), "texts")
        if any(not text for text in request.texts):
            raise InvalidRequest("texts must not be empty", param="texts")
        if request.HasField("dimensions") and request.dimensions < 1:
            raise InvalidRequest("dimensions must be at least 1", param="dimensions")
        question = EmbedQuestion(
            dialect=Dialect.GRPC,
            model=request.model,
            inputs=tuple(request.texts),
            keep_alive_ms=self._keep_alive_ms(request),
            **_given(request, "normalize", "dimensions", "context_tokens", truncate=True),
        )
        with _recorded("Embed") as record:
            answer = await self._service.embed(question, record)
        return inference_pb2.EmbedTextsResponse(
            embeddings=[
                runner_pb2.Embedding(vector=vector, prompt_tokens=tokens)
                for vector, tokens in zip(answer.vectors, answer.prompt_tokens, strict=True)
            ],
            total_duration_ns=answer.counts.total_duration_ns,
            load_duration_ns=answer.counts.load_duration_ns,
            prompt_duration_ns=answer.counts.prompt_duration_ns,
        )

    async def Rerank(
        self, request: inference_pb2.RerankTextsRequest, context: Context
    ) -> inference_pb2.RerankTextsResponse:
        """Rerank: return one score for each document."""
        _check(request.model, list(request.documents), "documents")
        if not request.query:
            raise InvalidRequest("query is required", param="query")
        question = RerankQuestion(
            dialect=Dialect.GRPC,
            model=request.model,
            query=request.query,
            documents=tuple(request.documents),
            keep_alive_ms=self._keep_alive_ms(request),
            **_given(request, "normalize", "document_tokens_max", "context_tokens", truncate=True),
        )
        with _recorded("Rerank") as record:
            answer = await self._service.rerank(question, record)
        return inference_pb2.RerankTextsResponse(scores=answer.scores, **asdict(answer.counts))

    async def LoadModel(
        self, request: inference_pb2.LoadModelRequest, context: Context
    ) -> AsyncIterator[inference_pb2.InferenceEvent]:
        """Load a model; ends when it is ready."""
        started_ns = time.monotonic_ns()
        record = RequestRecord(dialect=Dialect.GRPC, route="LoadModel", method="grpc")
        record.begin_trace()
        load = self._service.inference.models.load(
            given_model(request.model),
            keep_alive_ms=request.keep_alive_ms if request.HasField("keep_alive_ms") else None,
            context_tokens=request.context_tokens if request.HasField("context_tokens") else None,
            record=record,
            at_once=True,
        )
        with recording(record):
            async for progress in load:
                yield _event(progress, record)
        duration_ns = time.monotonic_ns() - started_ns
        done = inference_pb2.Done(total_duration_ns=duration_ns, load_duration_ns=duration_ns)
        yield inference_pb2.InferenceEvent(done=done)

    async def ListModels(
        self, request: inference_pb2.ListModelsRequest, context: Context
    ) -> inference_pb2.ListModelsResponse:
        """List every model, newest first."""
        models = self._service.inference.models
        return inference_pb2.ListModelsResponse(
            models=[models.routes.proto_of(route) for route in models.visible()],
            aliases=[
                scheduler_pb2.Alias(name=one.name, target=one.alias_of) for one in models.listed() if one.alias_of
            ],
        )

    async def ShowModel(self, request: inference_pb2.ShowModelRequest, context: Context) -> scheduler_pb2.ModelRoute:
        """Show one model."""
        route = self._service.inference.models.known_route(given_model(request.model))
        return self._service.inference.models.routes.proto_of(route)

    async def UnloadModel(
        self, request: scheduler_pb2.UnloadModelRequest, context: Context
    ) -> scheduler_pb2.UnloadModelResponse:
        """Stop a model's replicas once they are idle."""
        record = RequestRecord(dialect=Dialect.GRPC, route="UnloadModel", method="grpc")
        with recording(record):
            route = self._service.inference.models.known_route(given_model(request.model_name))
            record.found(route.model)
            record.changes_replicas(route.replicas)
            replicas = await self._service.scheduler.unload_model(route.model.name)
        return scheduler_pb2.UnloadModelResponse(replicas=replicas)

    async def PullModel(
        self, request: inference_pb2.PullModelRequest, context: Context
    ) -> AsyncIterator[store_pb2.StoreProgress]:
        """Fetch a model from its registry; ends when it can be used."""
        name = new_name(request.model)
        check_visible(name)
        record = RequestRecord(dialect=Dialect.GRPC, route="PullModel", method="grpc", stream=True)
        async with self._service.work_feed(self._service.stores.pull(name, insecure=request.insecure), record) as feed:
            with recording(record), self._service.inference.models.changing(name, record):
                async for step in feed:
                    yield step

    def _keep_alive_ms(
        self, request: inference_pb2.AnswerOptions | inference_pb2.EmbedTextsRequest | inference_pb2.RerankTextsRequest
    ) -> int | None:
        """Limit a keep_alive to the maximum of the caller."""
        return self._service.clamped_keep_alive_ms(request.keep_alive_ms if request.HasField("keep_alive_ms") else None)

    async def _answer(
        self, request: AnswerRequest, method: str, context: Context
    ) -> AsyncIterator[inference_pb2.InferenceEvent]:
        record = RequestRecord(dialect=Dialect.GRPC, route=method, method="grpc", stream=True)
        record.begin_trace()
        record.may_resume = (RESUME_KEY, "0") not in (context.invocation_metadata() or ())
        async with self._service.feed(request, record) as feed:
            with recording(record):
                record.begin_work(0)
                async for event in feed:
                    yield _event(event, record)

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
            model=given_model(model),
            prompt=prompt,
            options=_options(options),
            keep_alive_ms=self._keep_alive_ms(options),
            think=think,
            top_logprobs=check_top_logprobs(options.top_logprobs) if options.HasField("top_logprobs") else None,
            format=_format(options),
            deadline_s=None if remaining_s is None else time.monotonic() + remaining_s,
            **_given(options, truncate=True, shift=True),
        )


def _check(model: str, texts: list[str], param: str) -> None:
    given_model(model)
    if not 1 <= len(texts) <= INPUTS_MAX:
        raise InvalidRequest(f"{param} must have 1 to {INPUTS_MAX} items", param=param)


@contextmanager
def _recorded(route: str) -> Iterator[RequestRecord]:
    """Make a record of its own for a unary answer."""
    record = RequestRecord(dialect=Dialect.GRPC, route=route, method="grpc")
    record.begin_trace()
    with recording(record):
        record.begin_work(0)
        yield record


@contextmanager
def recording(record: RequestRecord) -> Iterator[None]:
    """Finish the record with what came of the work inside."""
    status = "CANCELLED"
    try:
        yield
        status = "OK"
    except RequestCanceled:
        raise
    except PunaError as error:
        record.error = status = error.reason
        raise
    except Exception:
        record.error = status = "internal_error"
        raise
    finally:
        record.finish(status)


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
    if options.speculative:
        values["speculative"] = options.speculative
    if options.stop:
        values["stop"] = list(options.stop)
    values |= {_LIMIT_FIELDS[name]: value for name, value in _given(options, *_LIMIT_FIELDS).items()}
    return dict(check_options(values).values)


def _format(options: inference_pb2.AnswerOptions) -> AnswerFormat | None:
    match options.WhichOneof("constraint"):
        case "grammar" if options.grammar:
            return parse_grammar_field(options.grammar)
        case "json_schema" if options.json_schema:
            return AnswerFormat(field="json_schema", json_schema=options.json_schema)
        case _:
            return None


def _given(message: ProtoMessage, *names: str, **defaults: object) -> dict[str, Any]:
    """Return those of the fields that are set, over the defaults that this API has."""
    return defaults | {name: getattr(message, name) for name in (*names, *defaults) if message.HasField(name)}


def _event(event: AnswerEvent, record: RequestRecord) -> inference_pb2.InferenceEvent:
    match event:
        case Queued():
            return inference_pb2.InferenceEvent(queued=converters.QUEUED.to_proto(event))
        case LoadUpdate():
            return inference_pb2.InferenceEvent(loading=converters.LOADING.to_proto(event))
        case PromptProgress():
            return inference_pb2.InferenceEvent(prompt=converters.PROMPT_PROGRESS.to_proto(event))
        case Delta():
            tokens = [converters.TOKEN.to_proto(token) for token in event.tokens]
            calls = [
                inference_pb2.ToolCallDelta(index=call.index, id=call.id, name=call.name, arguments=call.arguments)
                for call in event.tool_calls
            ]
            delta = inference_pb2.Delta(
                content=event.content, tokens=tokens, reasoning=event.reasoning, tool_calls=calls
            )
            return inference_pb2.InferenceEvent(delta=delta)
        case Done():
            return inference_pb2.InferenceEvent(done=_done(event, record))


def _done(event: Done, record: RequestRecord) -> inference_pb2.Done:
    assert record.placed is not None  # a replica has answered
    return inference_pb2.Done(
        **asdict(event.usage),
        reason=_REASONS[event.reason],
        stop_string=event.stop_string,
        seed=event.seed,
        placement=converters.placement_to_proto(record.placed),
        called_tools=event.reason is FinishReason.TOOL_CALLS,
        resumes=event.resumes,
        cut_by=_CUTS.get(event.reason, runner_pb2.CUT_BY_UNSPECIFIED),
    )
