"""POST /v1/embeddings and /v1/rerank."""

import base64
from typing import Annotated, Any

from pydantic import Field

from common.errors import InvalidRequest
from common.ids import random_id
from gateway.core.prepare.vectors import EmbedQuestion, Input, RerankQuestion, Vector, best_first, check_input_count
from gateway.core.request.answers import Dialect
from gateway.core.request.option_table import whole_number
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import Between, Body, validated
from gateway.http.endpoint.response_model import ResponseModel
from gateway.http.endpoint.service import Endpoints, checked_options
from gateway.http.openai.bodies import LABEL_LENGTH_MAX, Count
from gateway.http.openai.requests import is_token_ids

_FORMATS = ("float", "base64")


class EmbeddingsBody(Body):
    """POST /v1/embeddings, with Puna's `truncate`, `options` and `keep_alive`."""

    model: str = Field(min_length=1)
    input: Any = Field(description="A string, strings, token ids, or lists of token ids; 1 to 2,048 inputs, none empty")
    dimensions: Count | None = None
    encoding_format: str = Field(default="float", description='"float" or "base64" (little-endian float32)')
    user: Annotated[str, Field(max_length=LABEL_LENGTH_MAX)] | None = None
    truncate: bool = Field(default=False, description="Puna: cut inputs that are too long")
    options: dict[str, Any] = Field(default_factory=dict, description="Puna: num_ctx counts, see docs/api.md")
    keep_alive: Any = Field(default=None, description="Puna: seconds or a duration")


class EmbeddingObject(ResponseModel):
    """One vector; as a string if base64 was asked for."""

    object: str = "embedding"
    index: int
    embedding: Any


class VectorUsage(ResponseModel):
    """Tokens that were evaluated."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(ResponseModel):
    """The answer of /v1/embeddings."""

    object: str = "list"
    data: list[EmbeddingObject]
    model: str
    usage: VectorUsage


class RerankBody(Body):
    """POST /v1/rerank, /v2/rerank and /rerank, as Jina and Cohere have it."""

    model: str = Field(min_length=1)
    query: str = Field(min_length=1)
    documents: list[Any] = Field(description='1 to 2,048 strings, or objects {"text": …}')
    top_n: Count | None = None
    return_documents: bool = False
    max_tokens_per_doc: Annotated[int, Between(1, 2**31 - 1, whole=True)] | None = None
    normalize: bool = Field(default=True, description="Puna: scores in 0..1; false: the raw ones")
    truncate: bool = Field(default=True, description="Puna: cut documents that are too long")
    options: dict[str, Any] = Field(default_factory=dict, description="Puna: num_ctx counts, see docs/api.md")
    keep_alive: Any = Field(default=None, description="Puna: seconds or a duration")


class RerankResult(ResponseModel):
    """One document's place."""

    index: int
    relevance_score: float
    document: dict[str, str] | None = None


class RerankAnswer(ResponseModel):
    """Best first."""

    id: str
    object: str = "list"
    model: str
    results: list[RerankResult]
    usage: VectorUsage
    meta: dict[str, Any]


class OpenAiVectors(Endpoints):
    """Vectors and scores, in OpenAI's, Jina's and Cohere's words."""

    async def embeddings(self, exchange: Exchange) -> None:
        """POST /v1/embeddings."""
        body = validated(EmbeddingsBody, await exchange.json())
        if body.encoding_format not in _FORMATS:
            raise InvalidRequest("encoding_format must be float or base64", param="encoding_format")
        question = EmbedQuestion(
            dialect=Dialect.OPENAI,
            model=body.model,
            inputs=_inputs(body.input),
            truncate=body.truncate,
            dimensions=body.dimensions,
            context_tokens=self._context_tokens(exchange, body.options),
            keep_alive_ms=self.service.keep_alive_ms(body.keep_alive),
        )
        answer = await self.service.embed(question, exchange.record)
        encode = _base64 if body.encoding_format == "base64" else _numbers
        await exchange.respond_json(
            {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": index, "embedding": encode(vector)}
                    for index, vector in enumerate(answer.vectors)
                ],
                "model": body.model,
                "usage": _usage(answer.counts.prompt_tokens),
            }
        )

    async def rerank(self, exchange: Exchange) -> None:
        """POST /v1/rerank."""
        body = validated(RerankBody, await exchange.json())
        documents = _documents(body.documents)
        question = RerankQuestion(
            dialect=Dialect.OPENAI,
            model=body.model,
            query=body.query,
            documents=documents,
            truncate=body.truncate,
            normalize=body.normalize,
            document_tokens_max=body.max_tokens_per_doc,
            context_tokens=self._context_tokens(exchange, body.options),
            keep_alive_ms=self.service.keep_alive_ms(body.keep_alive),
        )
        answer = await self.service.rerank(question, exchange.record)
        results: list[dict[str, Any]] = []
        for index in best_first(answer.scores, body.top_n):
            result: dict[str, Any] = {"index": index, "relevance_score": answer.scores[index]}
            if body.return_documents:
                result["document"] = {"text": documents[index]}
            results.append(result)
        await exchange.respond_json(
            {
                "id": random_id("rerank-", 24),
                "object": "list",
                "model": body.model,
                "results": results,
                "usage": _usage(answer.counts.prompt_tokens),
                "meta": {"billed_units": {"search_units": 1}},
            }
        )

    def _context_tokens(self, exchange: Exchange, options: dict[str, Any]) -> int | None:
        return whole_number(checked_options(self.service, exchange, options).get("num_ctx"))


def _inputs(value: Any) -> tuple[Input, ...]:
    """Return the inputs of a body.

    Raises:
        InvalidRequest: another type, none, too many, or one of them is empty.
    """
    items = [value] if isinstance(value, str) or is_token_ids(value) else value
    if not isinstance(items, list) or not items:
        raise InvalidRequest("input must be a string, token ids, or a list of either", param="input")
    check_input_count(len(items), param="input")
    inputs: list[Input] = []
    for index, item in enumerate(items):
        if isinstance(item, str) and item:
            inputs.append(item)
        elif is_token_ids(item):
            inputs.append(tuple(item))
        elif item in ("", []):
            raise InvalidRequest(f"input[{index}] is empty", param="input")
        else:
            raise InvalidRequest(f"input[{index}] must be a string or token ids", param="input")
    return tuple(inputs)


def _documents(items: list[Any]) -> tuple[str, ...]:
    if not items:
        raise InvalidRequest("documents must not be empty", param="documents")
    check_input_count(len(items), param="documents")
    texts: list[str] = []
    for index, item in enumerate(items):
        text = item.get("text") if isinstance(item, dict) else item
        if not isinstance(text, str):
            raise InvalidRequest(f'documents[{index}] must be a string or {{"text": …}}', param="documents")
        texts.append(text)
    return tuple(texts)


def _numbers(vector: Vector) -> list[float]:
    numbers: list[float] = vector.tolist()
    return numbers


def _base64(vector: Vector) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}
