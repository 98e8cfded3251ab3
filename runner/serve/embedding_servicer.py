"""Embed and Rerank of the Runner service: protos in and out, requests to tokens; everything else elsewhere.

Of a question and a document, user text is always literal text.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from common.clock import NS_PER_MS
from common.errors import InvalidRequest, PunaError, UnsupportedCapability
from common.telemetry import tracing
from common.telemetry.logs import get_logger
from protos import runner_pb2
from runner import metrics
from runner.core.model.description import Pooling
from runner.core.pooled.embedding_inputs import frame_input
from runner.core.pooled.rerank_prompt import IdsPart, Place, fill_ids, fill_text, plain_parts, split_template
from runner.engine.contract.engine import TokenTable
from runner.engine.contract.pooling import PooledModel
from runner.serve.embedding_table import NO_TIMES, Computed, EmbeddingTable, Inputs
from runner.serve.prompts import tokenize_prompt
from runner.serve.status import StatusBoard
from runner.serve.streams import check_place

log = get_logger()

INPUTS_MAX = 2048
# An answer has to fit one gRPC message (`common.grpc.server.MESSAGE_BYTES_MAX`) with room for its frame.
ANSWER_BYTES_MAX = 30 * 1024 * 1024
# Tokenizing a smaller request takes less time than a thread switch.
INLINE_REQUEST_BYTES = 2048
# Putting fewer numbers into a message takes less time than others notice.
INLINE_NUMBERS = 65536
NO_EMBEDDINGS = "this model does not support embeddings"
NO_RANKING = "this model does not support reranking"

Request = TypeVar("Request", runner_pb2.EmbedRequest, runner_pb2.RerankRequest)
_VECTOR_POOLINGS = (Pooling.MEAN, Pooling.CLS, Pooling.LAST)


class PairPrompt:
    """The prompt of a ranking model for one question and any document."""

    def __init__(self, model: PooledModel, vocabulary: TokenTable, query: str) -> None:
        """Tokenizes the question and the template once."""
        self._vocabulary = vocabulary
        self._query = query
        self._query_ids = self._literal(query)
        self._texts = split_template(model.rerank_template)
        self._parts: tuple[IdsPart, ...] = tuple(
            part if isinstance(part, Place) else tuple(vocabulary.tokenize(part.encode(), parse_special=True))
            for part in self._texts
        ) or plain_parts(model.pair_tokens)

    def tokens(
        self, document: str, *, context_tokens: int, truncate: bool, document_tokens_max: int | None
    ) -> tuple[int, ...]:
        """Return the pair's tokens, the document cut to `document_tokens_max` and then, if `truncate`, to the context.

        Raises:
            InvalidRequest: no room for any of the document.
            PromptTooLong: longer than the context and `truncate` is off.
        """
        ids = self._literal(document)
        shortened = document_tokens_max is not None and len(ids) > document_tokens_max
        pieces = fill_ids(
            self._parts,
            query=self._query_ids,
            document=ids[:document_tokens_max] if shortened else ids,
            context_tokens=context_tokens,
            truncate=truncate,
        )
        whole = None if shortened else self._as_one_text(document, pieces)
        return whole if whole is not None and len(whole) <= context_tokens else pieces

    def _as_one_text(self, document: str, pieces: Sequence[int]) -> tuple[int, ...] | None:
        """Return the prompt tokenized at once, as the model was trained: tokens may span template and user text.

        None where user text would have become a special token, and without a template.
        """
        if not self._texts:
            return None
        text = fill_text(self._texts, query=self._query, document=document)
        whole = self._vocabulary.tokenize(text.encode(), parse_special=True)
        return tuple(whole) if self._control(whole) == self._control(pieces) else None

    def _control(self, ids: Sequence[int]) -> list[int]:
        return [token_id for token_id in ids if token_id in self._vocabulary.control]

    def _literal(self, text: str) -> list[int]:
        return self._vocabulary.tokenize(text.encode(), parse_special=False)


class PooledService:
    """Answers for a pooled model."""

    def __init__(self, table: EmbeddingTable, board: StatusBoard) -> None:
        self._engine = table.engine
        self._table = table
        self._board = board

    async def embed(self, request: runner_pb2.EmbedRequest) -> runner_pb2.EmbedResponse:
        """Return a vector for each input.

        Raises:
            UnsupportedCapability: the model gives no vectors.
            InvalidRequest: an input is empty, has nothing left after the cut, or there are too many.
            PromptTooLong: an input may not be cut, and is longer than the context.
            QueueFull: every place is taken.
        """
        model = self._engine.pooled_model
        if model.pooling not in _VECTOR_POOLINGS:
            raise UnsupportedCapability(NO_EMBEDDINGS)
        check_count(len(request.inputs), bytes_each=4 * model.vector_length, param="input")
        check_place(self._table)
        inputs = await self._prepared(embed_inputs, request, model)
        computed = await self._compute(inputs)
        numbers = len(inputs) * model.vector_length
        if numbers <= INLINE_NUMBERS:
            return _embed_response(inputs, computed)
        return await asyncio.to_thread(_embed_response, inputs, computed)

    async def rerank(self, request: runner_pb2.RerankRequest) -> runner_pb2.RerankResponse:
        """Return a score for each document.

        Raises:
            UnsupportedCapability: the model has no ranking head.
            InvalidRequest, PromptTooLong, QueueFull: as `embed`.
        """
        model = self._engine.pooled_model
        if model.pooling is not Pooling.RANK:
            raise UnsupportedCapability(NO_RANKING)
        check_count(len(request.documents), bytes_each=4, param="documents")
        check_place(self._table)
        inputs = await self._prepared(rerank_inputs, request, model)
        computed = await self._compute(inputs)
        return runner_pb2.RerankResponse(
            scores=[
                runner_pb2.RerankScore(score=float(vector[0]), prompt_tokens=len(tokens))
                for vector, tokens in zip(computed.vectors, inputs, strict=True)
            ],
            prompt_duration_ns=computed.times.compute_ns,
            queue_duration_ns=computed.times.queue_ns,
        )

    async def _prepared(
        self,
        prepare: Callable[[Request, PooledModel, TokenTable], list[tuple[int, ...]]],
        request: Request,
        model: PooledModel,
    ) -> list[tuple[int, ...]]:
        """Tokenize, off the event loop where it takes longer than a thread switch."""
        if request.ByteSize() <= INLINE_REQUEST_BYTES:
            return prepare(request, model, self._engine.vocabulary)
        return await asyncio.to_thread(prepare, request, model, self._engine.vocabulary)

    async def _compute(self, inputs: Inputs) -> Computed:
        """Compute, with metrics and the one line that each request leaves in the log; never an input."""
        # The runner may have begun to drain while this request was tokenized.
        self._board.check_accepting()
        outcome = "cancelled"
        computed: Computed | None = None
        try:
            attributes = {"gen_ai.usage.input_tokens": sum(len(tokens) for tokens in inputs)}
            with tracing.begin("compute", attributes, kind=tracing.SpanKind.SERVER):
                computed = await self._table.compute(inputs)
            outcome = "done"
        except PunaError:
            outcome = "error"
            raise
        finally:
            metrics.REQUESTS.labels(reason=outcome).inc()
            times = computed.times if computed is not None else NO_TIMES
            log.info(
                "request.done",
                reason=outcome,
                inputs=len(inputs),
                prompt_tokens=sum(len(tokens) for tokens in inputs),
                cached_tokens=0,
                queue_ms=round(times.queue_ns / NS_PER_MS, 3),
                prompt_ms=round(times.compute_ns / NS_PER_MS, 3),
            )
        return computed


def _embed_response(inputs: Inputs, computed: Computed) -> runner_pb2.EmbedResponse:
    return runner_pb2.EmbedResponse(
        embeddings=[
            runner_pb2.Embedding(vector=vector.tolist(), prompt_tokens=len(tokens))
            for vector, tokens in zip(computed.vectors, inputs, strict=True)
        ],
        prompt_duration_ns=computed.times.compute_ns,
        queue_duration_ns=computed.times.queue_ns,
    )


def check_count(count: int, *, bytes_each: int, param: str) -> None:
    """Refuse more inputs than one answer may have.

    Raises:
        InvalidRequest: says how many are allowed.
    """
    allowed = min(INPUTS_MAX, ANSWER_BYTES_MAX // bytes_each)
    if count > allowed:
        raise InvalidRequest(f"at most {allowed} inputs are allowed in a request to this model", param=param)


def embed_inputs(request: runner_pb2.EmbedRequest, model: PooledModel, vocabulary: TokenTable) -> list[tuple[int, ...]]:
    """Return the tokens of every input, cut and framed.

    Raises:
        InvalidRequest, PromptTooLong: see `PooledService.embed`.
    """
    limit = _limit(request.context_tokens if request.HasField("context_tokens") else None, model)
    return [
        frame_input(
            tokenize_prompt(item.segments, add_bos=False, vocabulary=vocabulary).inputs,
            frame=model.frame,
            context_tokens=limit,
            truncate=request.truncate,
        )
        for item in request.inputs
    ]


def rerank_inputs(
    request: runner_pb2.RerankRequest, model: PooledModel, vocabulary: TokenTable
) -> list[tuple[int, ...]]:
    """Return the tokens of every pair.

    Raises:
        InvalidRequest, PromptTooLong: see `PooledService.rerank`.
    """
    limit = _limit(request.context_tokens if request.HasField("context_tokens") else None, model)
    document_tokens_max = request.document_tokens_max if request.HasField("document_tokens_max") else None
    prompt = PairPrompt(model, vocabulary, request.query)
    pairs = [
        prompt.tokens(
            document, context_tokens=limit, truncate=request.truncate, document_tokens_max=document_tokens_max
        )
        for document in request.documents
    ]
    if not all(pairs):
        raise InvalidRequest("no input provided", param="documents")
    return pairs


def _limit(asked_tokens: int | None, model: PooledModel) -> int:
    if asked_tokens == 0:
        raise InvalidRequest("context_tokens must be at least 1", param="context_tokens")
    return min(asked_tokens or model.input_tokens_max, model.input_tokens_max)
