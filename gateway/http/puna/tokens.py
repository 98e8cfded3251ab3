"""POST /puna/v1/tokenize and /puna/v1/detokenize."""

from dataclasses import dataclass

from common.errors import InvalidRequest
from gateway.core.request.answers import Chat, RawPrompt
from gateway.core.request.thinking import parse_think
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import validated
from gateway.http.endpoint.service import Service
from gateway.http.ollama.requests import message_of
from gateway.http.puna.token_bodies import DetokenizeBody, TokenizeBody


@dataclass(frozen=True, slots=True)
class Tokens:
    """The vocabulary of a model, for clients."""

    service: Service

    async def tokenize(self, exchange: Exchange) -> None:
        """POST /puna/v1/tokenize."""
        body = validated(TokenizeBody, await exchange.json())
        if (body.text is None) == (body.messages is None):
            raise InvalidRequest("give either text or messages", param="text")
        exchange.record.model = body.model
        think = parse_think(body.think)
        models = self.service.inference.models
        ids = await self.service.whole(models.tokenize(body.model, _prompt(body), think), exchange.record)
        await exchange.respond_json({"tokens": list(ids), "count": len(ids)})

    async def detokenize(self, exchange: Exchange) -> None:
        """POST /puna/v1/detokenize."""
        body = validated(DetokenizeBody, await exchange.json())
        exchange.record.model = body.model
        models = self.service.inference.models
        text = await self.service.whole(models.detokenize(body.model, body.tokens), exchange.record)
        await exchange.respond_json({"text": text.decode(errors="replace")})


def _prompt(body: TokenizeBody) -> Chat | RawPrompt:
    if body.messages is None:
        return RawPrompt(text=body.text or "")
    if not body.messages:
        raise InvalidRequest("messages must not be empty", param="messages")
    return Chat(messages=tuple(message_of(message) for message in body.messages), tools=tuple(body.tools))
