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
from gateway.http.ollama.models import OllamaModels
from gateway.http.ollama.store_routes import store_routes
from gateway.http.openai.answers import OpenAiAnswers
from gateway.http.openai.bodies import ChatCompletionAnswer, ChatCompletionBody, CompletionAnswer, CompletionBody
from gateway.http.openai.model_bodies import AnyModel, AnyModelList
from gateway.http.openai.models import OpenAiModels
from gateway.http.openai.responses_answers import ResponsesAnswers
from gateway.http.openai.responses_bodies import ResponseObject, ResponsesBody
from gateway.http.openai.vector_bodies import EmbeddingsAnswer, EmbeddingsBody, RerankAnswer, RerankBody
from gateway.http.openai.vectors import OpenAiVectors
from gateway.http.openapi import openapi_document
from gateway.http.puna.aliases import alias_routes
from gateway.http.puna.key_routes import key_routes
from gateway.http.puna.operation_routes import operation_routes, placement_routes
from gateway.http.puna.page_routes import page_routes
from gateway.http.puna.puna_routes import puna_routes

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
    """The table."""
    routes = [
        *_ollama_routes(service),
        *store_routes(service),
        *_openai_routes(service),
        *_anthropic_routes(service),
        *operation_routes(service),
        *placement_routes(service),
        *puna_routes(service),
        *alias_routes(service),
        *key_routes(service),
        *page_routes(service),
    ]
    routes.append(
        Route(
            method="GET",
            path="/openapi.json",
            scope=None,
            endpoint=_Document(routes, service.version).respond,
            summary="This document",
            quiet=True,
        )
    )
    routes += [replace(route, method="HEAD") for route in routes if route.path in _HEAD_TOO]
    return routes


def _ollama_routes(service: Service) -> list[Route]:
    answers, models, embeddings = OllamaAnswers(service), OllamaModels(service), OllamaEmbeddings(service)
    return [
        Route(
            method="GET",
            path="/",
            scope=None,
            endpoint=models.root,
            summary="Is anybody there",
            media_types=("text/plain",),
            statuses=(200, 302),
        ),
        Route(
            method="POST",
            path="/api/generate",
            scope=Scope.INFER,
            endpoint=answers.generate,
            summary="Continue a prompt",
            body=GenerateBody,
            response=GenerateChunk,
            media_types=(_JSON, _NDJSON),
        ),
        Route(
            method="POST",
            path="/api/chat",
            scope=Scope.INFER,
            endpoint=answers.chat,
            summary="Answer a conversation",
            body=ChatBody,
            response=ChatChunk,
            media_types=(_JSON, _NDJSON),
        ),
        Route(
            method="POST",
            path="/api/embed",
            scope=Scope.EMBED,
            endpoint=embeddings.embed,
            summary="Vectors of texts",
            body=EmbedBody,
            response=EmbedAnswer,
        ),
        Route(
            method="POST",
            path="/api/embeddings",
            scope=Scope.EMBED,
            endpoint=embeddings.legacy,
            summary="The vector of one text, not normalised",
            body=LegacyEmbeddingBody,
            response=LegacyEmbeddingAnswer,
        ),
        Route(
            method="GET",
            path="/api/tags",
            scope=Scope.MODELS_READ,
            endpoint=models.tags,
            summary="Every model",
            response=TagList,
        ),
        Route(
            method="GET",
            path="/api/ps",
            scope=Scope.MODELS_READ,
            endpoint=models.running,
            summary="Loaded models",
            response=RunningList,
        ),
        Route(
            method="POST",
            path="/api/show",
            scope=Scope.MODELS_READ,
            endpoint=models.show,
            summary="One model",
            body=ShowBody,
            response=ShownModel,
            errors=OF_MODEL_NAMES | OF_THE_CLUSTER,
        ),
        Route(
            method="GET",
            path="/api/version",
            scope=None,
            endpoint=models.version,
            summary="Versions",
            response=VersionAnswer,
            quiet=True,
        ),
        Route(
            method="GET",
            path="/api/status",
            scope=None,
            endpoint=models.status,
            summary="No cloud",
            response=StatusAnswer,
            quiet=True,
        ),
    ]


def _openai_routes(service: Service) -> list[Route]:
    answers, models, vectors = OpenAiAnswers(service), OpenAiModels(service), OpenAiVectors(service)
    return [
        Route(
            method="POST",
            path="/v1/chat/completions",
            scope=Scope.INFER,
            endpoint=answers.chat,
            summary="Answer a conversation",
            body=ChatCompletionBody,
            response=ChatCompletionAnswer,
            media_types=(_JSON, _SSE),
        ),
        Route(
            method="POST",
            path="/v1/completions",
            scope=Scope.INFER,
            endpoint=answers.complete,
            summary="Continue a prompt, without a template",
            body=CompletionBody,
            response=CompletionAnswer,
            media_types=(_JSON, _SSE),
        ),
        Route(
            method="POST",
            path="/v1/responses",
            scope=Scope.INFER,
            endpoint=ResponsesAnswers(service).create,
            summary="Answer a conversation, item by item",
            body=ResponsesBody,
            response=ResponseObject,
            media_types=(_JSON, _SSE),
        ),
        Route(
            method="POST",
            path="/v1/embeddings",
            scope=Scope.EMBED,
            endpoint=vectors.embeddings,
            summary="Vectors of texts",
            body=EmbeddingsBody,
            response=EmbeddingsAnswer,
        ),
        *(
            Route(
                method="POST",
                path=path,
                scope=Scope.EMBED,
                endpoint=vectors.rerank,
                summary="Documents by how well they answer a query",
                body=RerankBody,
                response=RerankAnswer,
            )
            for path in _RERANK_PATHS
        ),
        Route(
            method="GET",
            path="/v1/models",
            scope=Scope.MODELS_READ,
            endpoint=models.list_all,
            summary="Every model",
            response=AnyModelList,
        ),
        Route(
            method="GET",
            path="/v1/models/{id}",
            scope=Scope.MODELS_READ,
            endpoint=models.get,
            summary="One model",
            response=AnyModel,
            errors=OF_MODEL_NAMES,
        ),
    ]


def _anthropic_routes(service: Service) -> list[Route]:
    answers = AnthropicAnswers(service)
    return [
        Route(
            method="POST",
            path="/v1/messages",
            scope=Scope.INFER,
            endpoint=answers.messages,
            summary="Answer a conversation",
            body=MessagesBody,
            response=MessagesAnswer,
            media_types=(_JSON, _SSE),
        ),
        Route(
            method="POST",
            path="/v1/messages/count_tokens",
            scope=Scope.INFER,
            endpoint=answers.count_tokens,
            summary="Tokens of a conversation",
            body=CountTokensBody,
            response=CountTokensAnswer,
        ),
    ]
