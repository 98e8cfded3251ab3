"""Bodies of tokenize and detokenize."""

from typing import Annotated, Any

from pydantic import Field

from gateway.core.request.conversation import MESSAGES_MAX, TOOLS_MAX
from gateway.http.endpoint.fields import Between, OwnBody
from gateway.http.endpoint.response_model import ResponseModel
from gateway.http.ollama.bodies import OllamaMessage

_TokenId = Annotated[int, Between(0, 2**32 - 1, whole=True)]
TOKENS_MAX = 200_000


class TokenizeBody(OwnBody):
    """POST /puna/v1/tokenize: a text as it is, or messages as an answer would read them."""

    model: str = Field(min_length=1)
    text: str | None = None
    messages: list[OllamaMessage] | None = Field(default=None, max_length=MESSAGES_MAX)
    tools: list[dict[str, Any]] = Field(default_factory=list, description="Beside messages", max_length=TOOLS_MAX)
    think: Any = Field(default=None, description="Beside messages")


class TokenizeAnswer(ResponseModel):
    """The answer of /puna/v1/tokenize."""

    tokens: list[int]
    count: int


class DetokenizeBody(OwnBody):
    """POST /puna/v1/detokenize."""

    model: str = Field(min_length=1)
    tokens: list[_TokenId] = Field(max_length=TOKENS_MAX)


class DetokenizeAnswer(ResponseModel):
    """The answer of /puna/v1/detokenize. Bytes that are not UTF-8 became U+FFFD."""

    text: str
