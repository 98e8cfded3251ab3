"""/puna/v1/tokenize and /puna/v1/detokenize."""

from functools import partial
from typing import Annotated, Any

from pydantic import Field

from common.errors import InvalidRequest
from gateway.core.keys.keys import Scope
from gateway.core.request.answers import Chat, RawPrompt, Think
from gateway.core.request.conversation import MESSAGES_MAX, TOOLS_MAX
from gateway.core.request.thinking import parse_think
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import Between, OwnBody, validated
from gateway.http.endpoint.response_model import ResponseModel
from gateway.http.endpoint.route_errors import OF_ANSWERS
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Endpoints, Service
from gateway.http.ollama.bodies import OllamaMessage
from gateway.http.ollama.requests import message_of

_TokenId = Annotated[int, Between(0, 2**32 - 1, whole=True)]
TOKENS_MAX = 200_000


def token_routes(service: Service) -> list[Route]:
    """List the routes of tokens."""
    tokens = Tokens(service)
    read = partial(Route, "POST", scope=Scope.MODELS_READ, errors=OF_ANSWERS)
    return [
        read(
            "/puna/v1/tokenize",
            tokens.tokenize,
            "Tokens of a text or of messages",
            body=TokenizeBody,
            response=TokenizeAnswer,
        ),
        read(
            "/puna/v1/detokenize",
            tokens.detokenize,
            "The text of tokens",
            body=DetokenizeBody,
            response=DetokenizeAnswer,
        ),
    ]


class TokenizeBody(OwnBody):
    """POST /puna/v1/tokenize and /puna/v1/explain/prompt: a text as it is, or messages as an answer reads them."""

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


class Tokens(Endpoints):
    """The vocabulary of a model, for clients."""

    async def tokenize(self, exchange: Exchange) -> None:
        """POST /puna/v1/tokenize."""
        body = validated(TokenizeBody, await exchange.json())
        prompt, think = prompt_of_body(body)
        exchange.record.model = body.model
        ids = await self.service.whole(self.models.tokenize(body.model, prompt, think), exchange.record)
        await exchange.respond_json({"tokens": list(ids), "count": len(ids)})

    async def detokenize(self, exchange: Exchange) -> None:
        """POST /puna/v1/detokenize."""
        body = validated(DetokenizeBody, await exchange.json())
        exchange.record.model = body.model
        text = await self.service.whole(self.models.detokenize(body.model, body.tokens), exchange.record)
        await exchange.respond_json({"text": text.decode(errors="replace")})


def prompt_of_body(body: TokenizeBody) -> tuple[Chat | RawPrompt, Think | None]:
    """Return the prompt that a body has.

    Raises:
        InvalidRequest: it has none, or two.
    """
    if (body.text is None) == (body.messages is None):
        raise InvalidRequest("give either text or messages", param="text")
    think = parse_think(body.think)
    if body.messages is None:
        return RawPrompt(text=body.text or ""), think
    if not body.messages:
        raise InvalidRequest("messages must not be empty", param="messages")
    return Chat(messages=tuple(message_of(message) for message in body.messages), tools=tuple(body.tools)), think
