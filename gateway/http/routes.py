"""Every HTTP route of the gateway."""

import asyncio
from dataclasses import dataclass, replace

import orjson

from gateway.core.keys.keys import Scope
from gateway.http.anthropic.answers import AnthropicAnswers
from gateway.http.anthropic.bodies import CountTokensAnswer, CountTokensBody, MessagesAnswer, MessagesBody
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.route_errors import OF_MODEL_NAMES, OF_THE_CLUSTER
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Service
from gateway.http.ollama.answers import OllamaAnswers
from gateway.http.ollama.bodies import (
    ChatBody,
    ChatChunk,
    EmbedAnswer,
    EmbedBody,
    GenerateBody,
    GenerateChunk,
    LegacyEmbeddingAnswer,
    LegacyEmbeddingBody,
    ShowBody,
)
from gateway.http.ollama.embeddings import OllamaEmbeddings
from gateway.http.ollama.model_bodies import RunningList, ShownModel, StatusAnswer, TagList, VersionAnswer
from gateway.http.ollama.model_store import store_routes
from gateway.http.ollama.models import OllamaModels
from gateway.http.openai.absent_routes import absent_routes
from gateway.http.openai.answers import OpenAiAnswers
from gateway.http.openai.bodies import ChatCompletionAnswer, ChatCompletionBody, CompletionAnswer, CompletionBody
from gateway.http.openai.models import AnyModel, AnyModelList, OpenAiModels
from gateway.http.openai.responses_answers import ResponsesAnswers
from gateway.http.openai.responses_bodies import (
    CompactBody,
    CompactionObject,
    InputTokensAnswer,
    InputTokensBody,
    ResponseObject,
    ResponsesBody,
)
from gateway.http.openai.vectors import EmbeddingsAnswer, EmbeddingsBody, OpenAiVectors, RerankAnswer, RerankBody
from gateway.http.openapi import openapi_document
from gateway.http.puna.aliases import alias_routes
from gateway.http.puna.keys import key_routes
from gateway.http.puna.operations import node_routes, operation_routes
from gateway.http.puna.page_routes import page_routes
from gateway.http.puna.placements import placement_routes
from gateway.http.puna.tokens import puna_routes

_JSON = "application/json"
_NDJSON = "application/x-ndjson"
_SSE = "text/event-stream"
# One endpoint under the three names that Jina's, Cohere's and llama-server's clients ask for.
_RERANK_PATHS = ("/v1/rerank", "/v2/rerank", "/rerank")
_HEAD_TOO = frozenset({"/", "/api/version", "/api/tags"})


@dataclass(slots=True)
class _Document:
    routes: list[Route]
    version: str
    _text: bytes = b""  # made once: it takes longer than an event loop may be held up

    async def respond(self, exchange: Exchange) -> None:
        """GET /openapi.json."""
        if not self._text:
            self._text = await asyncio.to_thread(self._made)
        await exchange.respond(200, self._text, {"content-type": "application/json"})

    def _made(self) -> bytes:
        return orjson.dumps(openapi_document(self.routes, self.version))


def make_routes(service: Service) -> list[Route]:
    """Make the table of routes."""
    routes = [
        *_ollama_routes(service),
        *store_routes(service),
        *_openai_routes(service),
        *_anthropic_routes(service),
        *absent_routes(),
        *operation_routes(service),
        *placement_routes(service),
        *node_routes(service),
        *puna_routes(service),
        *alias_routes(service),
        *key_routes(service),
        *page_routes(service),
    ]
    routes.append(
        Route(
            "GET", "/openapi.json", _Document(routes, service.version).respond, "This document", scope=None, quiet=True
        )
    )
    routes += [replace(route, method="HEAD") for route in routes if route.path in _HEAD_TOO]
    return routes


def _ollama_routes(service: Service) -> list[Route]:
    answers, models, embeddings = OllamaAnswers(service), OllamaModels(service), OllamaEmbeddings(service)
    return [
        Route("GET", "/", models.root, "Liveness", scope=None, media_types=("text/plain",), statuses=(200, 302)),
        Route(
            "POST",
            "/api/generate",
            answers.generate,
            "Continue a prompt",
            scope=Scope.INFER,
            body=GenerateBody,
            response=GenerateChunk,
            media_types=(_JSON, _NDJSON),
        ),
        Route(
            "POST",
            "/api/chat",
            answers.chat,
            "Answer a conversation",
            scope=Scope.INFER,
            body=ChatBody,
            response=ChatChunk,
            media_types=(_JSON, _NDJSON),
        ),
        Route(
            "POST",
            "/api/embed",
            embeddings.embed,
            "Vectors of texts",
            scope=Scope.EMBED,
            body=EmbedBody,
            response=EmbedAnswer,
        ),
        Route(
            "POST",
            "/api/embeddings",
            embeddings.legacy,
            "The vector of one text, not normalised",
            scope=Scope.EMBED,
            body=LegacyEmbeddingBody,
            response=LegacyEmbeddingAnswer,
        ),
        Route("GET", "/api/tags", models.tags, "Every model", scope=Scope.MODELS_READ, response=TagList),
        Route("GET", "/api/ps", models.running, "Loaded models", scope=Scope.MODELS_READ, response=RunningList),
        Route(
            "POST",
            "/api/show",
            models.show,
            "One model",
            scope=Scope.MODELS_READ,
            body=ShowBody,
            response=ShownModel,
            errors=OF_MODEL_NAMES | OF_THE_CLUSTER,
        ),
        Route("GET", "/api/version", models.version, "Versions", scope=None, response=VersionAnswer, quiet=True),
        Route("GET", "/api/status", models.status, "No cloud", scope=None, response=StatusAnswer, quiet=True),
    ]


def _openai_routes(service: Service) -> list[Route]:
    answers, models, vectors = OpenAiAnswers(service), OpenAiModels(service), OpenAiVectors(service)
    responses = ResponsesAnswers(service)
    return [
        Route(
            "POST",
            "/v1/chat/completions",
            answers.chat,
            "Answer a conversation",
            scope=Scope.INFER,
            body=ChatCompletionBody,
            response=ChatCompletionAnswer,
            media_types=(_JSON, _SSE),
        ),
        Route(
            "POST",
            "/v1/completions",
            answers.complete,
            "Continue a prompt, without a template",
            scope=Scope.INFER,
            body=CompletionBody,
            response=CompletionAnswer,
            media_types=(_JSON, _SSE),
        ),
        Route(
            "POST",
            "/v1/responses",
            responses.create,
            "Answer a conversation, item by item",
            scope=Scope.INFER,
            body=ResponsesBody,
            response=ResponseObject,
            media_types=(_JSON, _SSE),
        ),
        Route(
            "POST",
            "/v1/responses/input_tokens",
            responses.input_tokens,
            "Tokens of a conversation",
            scope=Scope.INFER,
            body=InputTokensBody,
            response=InputTokensAnswer,
        ),
        Route(
            "POST",
            "/v1/responses/compact",
            responses.compact,
            "Items that stand for a longer conversation",
            scope=Scope.INFER,
            body=CompactBody,
            response=CompactionObject,
        ),
        Route(
            "POST",
            "/v1/embeddings",
            vectors.embeddings,
            "Vectors of texts",
            scope=Scope.EMBED,
            body=EmbeddingsBody,
            response=EmbeddingsAnswer,
        ),
        *(
            Route(
                "POST",
                path,
                vectors.rerank,
                "Documents by how well they answer a query",
                scope=Scope.EMBED,
                body=RerankBody,
                response=RerankAnswer,
            )
            for path in _RERANK_PATHS
        ),
        Route("GET", "/v1/models", models.list_all, "Every model", scope=Scope.MODELS_READ, response=AnyModelList),
        Route(
            "GET",
            "/v1/models/{id}",
            models.get,
            "One model",
            scope=Scope.MODELS_READ,
            response=AnyModel,
            errors=OF_MODEL_NAMES,
        ),
    ]


def _anthropic_routes(service: Service) -> list[Route]:
    answers = AnthropicAnswers(service)
    return [
        Route(
            "POST",
            "/v1/messages",
            answers.messages,
            "Answer a conversation",
            scope=Scope.INFER,
            body=MessagesBody,
            response=MessagesAnswer,
            media_types=(_JSON, _SSE),
        ),
        Route(
            "POST",
            "/v1/messages/count_tokens",
            answers.count_tokens,
            "Tokens of a conversation",
            scope=Scope.INFER,
            body=CountTokensBody,
            response=CountTokensAnswer,
        ),
    ]
