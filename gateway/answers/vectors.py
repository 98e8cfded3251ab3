"""Answer questions for vectors and scores. Stateless: a lost runner means a plain retry elsewhere."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

import numpy as np

from common.clock import NS_PER_S, Clock
from common.errors import (
    EmbeddingsUnsupported,
    PromptTooLong,
    PunaError,
    RequestQuarantined,
    RequestTimeout,
    UnsupportedCapability,
)
from common.telemetry import tracing
from gateway import metrics
from gateway.answers.attempts import RETRYABLE, Attempts
from gateway.answers.model_access import ModelAccess, last_step
from gateway.answers.record import RequestRecord
from gateway.converters.generation import placement_to_proto
from gateway.core.dispatch.replica_choice import ReplicaNeed
from gateway.core.dispatch.resume import poison_name
from gateway.core.models.routes import RouteInfo
from gateway.core.models.stored_model import own_context
from gateway.core.prepare.capabilities import check_usable
from gateway.core.prepare.estimates import question_tokens
from gateway.core.prepare.overflow import Overflow, in_openai_words
from gateway.core.prepare.vectors import (
    NO_EMBEDDINGS,
    Counts,
    Embedded,
    EmbedQuestion,
    Input,
    Ranked,
    RerankQuestion,
    check_dimensions,
    check_embeds,
    check_ranks,
    fit_vector,
    relevance,
)
from gateway.core.request.answers import Dialect
from gateway.core.request.model_names import parse_model_name
from gateway.keys.visits import cache_salt, claim, context_max, within_context
from gateway.replicas.dispatch import Dispatcher, SlotRequest
from gateway.replicas.replicas import Connection
from protos import runner_pb2
from runner.client import RunnerClient

Answer = TypeVar("Answer")
Question = TypeVar("Question", EmbedQuestion, RerankQuestion)
# Scaling fewer numbers takes less time than a thread switch.
_INLINE_NUMBERS = 65536


class Vectors:
    """The other half of the application layer, beside `gateway.answers.inference`."""

    def __init__(self, *, dispatcher: Dispatcher, models: ModelAccess, clock: Clock, request_timeout_s: float) -> None:
        self._dispatcher = dispatcher
        self._models = models
        self._clock = clock
        self._request_timeout_s = request_timeout_s

    async def embed(self, question: EmbedQuestion, record: RequestRecord) -> Embedded:
        """Return a vector for each input; one that fails fails all.

        Raises:
            PunaError: translate it to the dialect.
        """
        question, route = await self._prepared(question, record)
        check_embeds(route.model)
        check_dimensions(question.dimensions, route.model.embedding_length)
        message = runner_pb2.EmbedRequest(
            inputs=[runner_pb2.EmbedInput(segments=[_segment(one)]) for one in question.inputs],
            truncate=question.truncate,
            keep_alive_ms=question.keep_alive_ms,
            context_tokens=question.context_tokens,
        )

        try:
            answer = await self._ask(question, route, record, message, lambda runner: runner.embed)
        except UnsupportedCapability as error:  # the runner's word, for a model whose header did not say
            raise EmbeddingsUnsupported(NO_EMBEDDINGS, param="model") from error

        def fitted() -> tuple[np.ndarray, ...]:
            return tuple(
                fit_vector(
                    np.fromiter(one.vector, np.float32, len(one.vector)),
                    dimensions=question.dimensions,
                    normalize=question.normalize,
                )
                for one in answer.embeddings
            )

        numbers = len(answer.embeddings) * (len(answer.embeddings[0].vector) if answer.embeddings else 0)
        vectors = fitted() if numbers <= _INLINE_NUMBERS else await asyncio.to_thread(fitted)
        tokens = tuple(one.prompt_tokens for one in answer.embeddings)
        counts = self._counts(record, route, sum(tokens), answer.prompt_duration_ns)
        return Embedded(vectors=vectors, prompt_tokens=tokens, counts=counts)

    async def rerank(self, question: RerankQuestion, record: RequestRecord) -> Ranked:
        """Return a score for each document; one that fails fails all.

        Raises:
            PunaError: translate it to the dialect.
        """
        question, route = await self._prepared(question, record)
        check_ranks(route.model)
        message = runner_pb2.RerankRequest(
            query=question.query,
            documents=question.documents,
            truncate=question.truncate,
            keep_alive_ms=question.keep_alive_ms,
            context_tokens=question.context_tokens,
            document_tokens_max=question.document_tokens_max,
        )
        answer = await self._ask(question, route, record, message, lambda runner: runner.rerank)
        return Ranked(
            scores=tuple(relevance(one.score, normalize=question.normalize) for one in answer.scores),
            counts=self._counts(
                record, route, sum(one.prompt_tokens for one in answer.scores), answer.prompt_duration_ns
            ),
        )

    async def _prepared(self, question: Question, record: RequestRecord) -> tuple[Question, RouteInfo]:
        """Return the question with the context that it gets, and the route of its model."""
        record.prepared()
        route = await last_step(self._models.find(question.model, question.keep_alive_ms), RouteInfo)
        record.found(route.model)
        check_usable(route.model)
        context_tokens = within_context(question.context_tokens or own_context(route.model))
        return replace(question, context_tokens=context_tokens), route

    async def _ask(
        self,
        question: EmbedQuestion | RerankQuestion,
        route: RouteInfo,
        record: RequestRecord,
        message: runner_pb2.EmbedRequest | runner_pb2.RerankRequest,
        call_of: Callable[[RunnerClient], Callable[..., Awaitable[Answer]]],
    ) -> Answer:
        """Try replicas until one has answered."""
        deadline_s = self._clock.now_s() + self._request_timeout_s
        attempts = Attempts(pool=self._dispatcher.pool, record=record)
        try:
            async with asyncio.timeout(self._request_timeout_s):
                while True:
                    async with self._slot(question, route, record, attempts) as connection:
                        try:
                            with tracing.begin("attempt", kind=tracing.SpanKind.CLIENT) as attempt:
                                attempt.set({"puna.placement": record.replica, "puna.node": record.node})
                                message.placement.CopyFrom(placement_to_proto(connection.info))
                                timeout_s = max(deadline_s - self._clock.now_s(), 0.0)
                                async with attempts.probation(connection, timeout_s):
                                    return await call_of(connection.runner)(message, timeout_s=timeout_s)
                        except RETRYABLE as error:
                            self._judge(error, connection, attempts, question)
                        except PromptTooLong as error:
                            if question.dialect is not Dialect.OPENAI:
                                raise
                            most = context_max(route.model.context_tokens)
                            raise in_openai_words(error, Overflow(prompt=None, context_tokens_max=most)) from error
        except TimeoutError as error:
            raise RequestTimeout("request timed out") from error

    def _judge(
        self, error: PunaError, connection: Connection, attempts: Attempts, question: EmbedQuestion | RerankQuestion
    ) -> None:
        try:
            attempts.retry_or_raise(error, connection)
        except RequestQuarantined:
            name = poison_name(repr(question), salt=cache_salt())
            self._dispatcher.pool.poisoned.add(name, attempts.crashed)
            raise

    @asynccontextmanager
    async def _slot(
        self, question: EmbedQuestion | RerankQuestion, route: RouteInfo, record: RequestRecord, attempts: Attempts
    ) -> AsyncIterator[Connection]:
        name = route.model.name
        slot = SlotRequest(
            key=parse_model_name(name).key,
            model_name=name,
            need=ReplicaNeed(
                context_tokens=question.context_tokens,
                avoided=frozenset(attempts.avoided),
                is_suspect=attempts.suspect is not None,
            ),
            suspicion=attempts.suspect,
            keep_alive_ms=question.keep_alive_ms,
            claim=claim(question_tokens(question)),
        )
        joined_s = self._clock.now_s()
        with tracing.begin("queue", {"gen_ai.request.model": name}):
            connection = await last_step(self._dispatcher.acquire(slot), Connection)
        try:
            record.slot_found(connection.info, waited_s=self._clock.now_s() - joined_s)
            yield connection
        finally:
            self._dispatcher.release(slot, connection)

    def _counts(self, record: RequestRecord, route: RouteInfo, prompt_tokens: int, prompt_duration_ns: int) -> Counts:
        metrics.bound(metrics.TOKENS, route.model.name, "in").inc(prompt_tokens)
        record.vector_tokens += prompt_tokens
        return Counts(
            prompt_tokens=prompt_tokens,
            total_duration_ns=round((self._clock.now_s() - record.started_s) * NS_PER_S),
            load_duration_ns=round((record.load_s or 0.0) * NS_PER_S),
            prompt_duration_ns=prompt_duration_ns,
        )


def _segment(one: Input) -> runner_pb2.Segment:
    if isinstance(one, str):
        return runner_pb2.Segment(literal=one)
    return runner_pb2.Segment(token_ids=runner_pb2.TokenIds(ids=one))
