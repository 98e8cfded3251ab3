"""Bodies of /v1/embeddings and /v1/rerank."""

from typing import Annotated, Any

from pydantic import Field

from gateway.http.endpoint.fields import Between, Body
from gateway.http.endpoint.response_model import ResponseModel
from gateway.http.openai.bodies import LABEL_LENGTH_MAX, Count


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
