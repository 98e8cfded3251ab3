"""POST /api/embed and /api/embeddings."""

from typing import Any

from common.errors import InvalidRequest
from gateway.core.prepare.vectors import Embedded, EmbedQuestion, check_embeds, check_input_count
from gateway.core.request.answers import Dialect
from gateway.core.request.model_names import given_model
from gateway.core.request.option_table import whole_number
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import validated
from gateway.http.endpoint.service import Endpoints, checked_options
from gateway.http.ollama.bodies import EmbedBody, LegacyEmbeddingBody


class OllamaEmbeddings(Endpoints):
    """Vectors, in Ollama's words."""

    async def embed(self, exchange: Exchange) -> None:
        """POST /api/embed."""
        body = validated(EmbedBody, await exchange.json())
        answer = await self._answer(exchange, body, _texts(body.input), normalize=True)
        if answer is None:
            await exchange.respond_json({"model": body.model, "embeddings": []})
            return
        await exchange.respond_json(
            {
                "model": body.model,
                "embeddings": [vector.tolist() for vector in answer.vectors],
                "total_duration": answer.counts.total_duration_ns,
                "load_duration": answer.counts.load_duration_ns,
                "prompt_eval_count": answer.counts.prompt_tokens,
            }
        )

    async def legacy(self, exchange: Exchange) -> None:
        """POST /api/embeddings."""
        body = validated(LegacyEmbeddingBody, await exchange.json())
        answer = await self._answer(exchange, body, (body.prompt,) if body.prompt else (), normalize=False)
        await exchange.respond_json({"embedding": answer.vectors[0].tolist() if answer is not None else []})

    async def _answer(
        self, exchange: Exchange, body: EmbedBody | LegacyEmbeddingBody, texts: tuple[str, ...], *, normalize: bool
    ) -> Embedded | None:
        """Return the vectors; None if there was nothing to embed, and the model was loaded only."""
        given_model(body.model)
        keep_alive_ms = self.service.keep_alive_ms(body.keep_alive)
        options = checked_options(self.service, exchange, body.options)
        if not texts:
            check_embeds(self.models.known_route(body.model).model)
            await self.service.load(body.model, keep_alive_ms, exchange.record)
            return None
        question = EmbedQuestion(
            dialect=Dialect.OLLAMA,
            model=body.model,
            inputs=texts,
            truncate=body.truncate if isinstance(body, EmbedBody) else True,
            normalize=normalize,
            dimensions=body.dimensions if isinstance(body, EmbedBody) else None,
            context_tokens=whole_number(options.get("num_ctx")),
            keep_alive_ms=keep_alive_ms,
        )
        return await self.service.embed(question, exchange.record)


def _texts(value: Any) -> tuple[str, ...]:
    """Return the inputs of a body; none asks for a load."""
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidRequest("invalid input type", param="input")
    check_input_count(len(value), param="input")
    return tuple(value)
