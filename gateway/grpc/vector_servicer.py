"""Embed and Rerank of puna.v1.Inference."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from grpc import aio

from common.errors import InvalidRequest
from gateway.answers.record import RequestRecord
from gateway.core.prepare.vectors import INPUTS_MAX, EmbedQuestion, RerankQuestion
from gateway.core.request.answers import Dialect
from gateway.grpc.recorded import recording
from gateway.http.endpoint.service import Service
from protos import inference_pb2, inference_pb2_grpc, runner_pb2

Context = aio.ServicerContext[Any, Any]


class VectorServicer(inference_pb2_grpc.InferenceServicer):
    """The part of the service that answers in numbers."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def _keep_alive_ms(
        self, request: inference_pb2.AnswerOptions | inference_pb2.EmbedTextsRequest | inference_pb2.RerankTextsRequest
    ) -> int | None:
        """Limit a keep_alive to the maximum of the caller."""
        return self._service.clamped_keep_alive_ms(request.keep_alive_ms if request.HasField("keep_alive_ms") else None)

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
            truncate=request.truncate if request.HasField("truncate") else True,
            normalize=request.normalize if request.HasField("normalize") else True,
            dimensions=request.dimensions if request.HasField("dimensions") else None,
            context_tokens=request.context_tokens if request.HasField("context_tokens") else None,
            keep_alive_ms=self._keep_alive_ms(request),
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
            truncate=request.truncate if request.HasField("truncate") else True,
            normalize=request.normalize if request.HasField("normalize") else True,
            document_tokens_max=request.document_tokens_max if request.HasField("document_tokens_max") else None,
            context_tokens=request.context_tokens if request.HasField("context_tokens") else None,
            keep_alive_ms=self._keep_alive_ms(request),
        )
        with _recorded("Rerank") as record:
            answer = await self._service.rerank(question, record)
        return inference_pb2.RerankTextsResponse(
            scores=answer.scores,
            prompt_tokens=answer.counts.prompt_tokens,
            total_duration_ns=answer.counts.total_duration_ns,
            load_duration_ns=answer.counts.load_duration_ns,
            prompt_duration_ns=answer.counts.prompt_duration_ns,
        )


def _check(model: str, texts: list[str], param: str) -> None:
    if not model:
        raise InvalidRequest("model is required", param="model")
    if not 1 <= len(texts) <= INPUTS_MAX:
        raise InvalidRequest(f"{param} must have 1 to {INPUTS_MAX} items", param=param)


@contextmanager
def _recorded(route: str) -> Iterator[RequestRecord]:
    """Make a record of its own for a unary answer."""
    record = RequestRecord(dialect=Dialect.GRPC, route=route, method="grpc")
    record.begin_trace()
    with recording(record):
        yield record
