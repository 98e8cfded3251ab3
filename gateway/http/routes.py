"""Every HTTP route of the gateway."""

import asyncio
from dataclasses import dataclass, replace
from functools import partial

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
    RunningList,
    ShowBody,
    ShownModel,
    StatusAnswer,
    TagList,
    VersionAnswer,
)
from gateway.http.ollama.embeddings import OllamaEmbeddings
from gateway.http.ollama.model_store import store_routes
from gateway.http.ollama.models import OllamaModels
from gateway.http.openai.absent_routes import absent_routes
from gateway.http.openai.answers import OpenAiAnswers
from gateway.http.openai.bodies import (
    ChatCompletionAnswer,
    ChatCompletionBody,
    CompactBody,
    CompactionObject,
    CompletionAnswer,
    CompletionBody,
    InputTokensAnswer,
    InputTokensBody,
    ResponseObject,
    ResponsesBody,
)
from gateway.http.openai.models import AnyModel, AnyModelList, OpenAiModels
from gateway.http.openai.responses_answers import ResponsesAnswers
from gateway.http.openai.vectors import EmbeddingsAnswer, EmbeddingsBody, OpenAiVectors, RerankAnswer, RerankBody
from gateway.http.openapi import openapi_document
from gateway.http.puna.aliases import alias_routes
from gateway.http.puna.chaos import chaos_routes
from gateway.http.puna.keys import key_routes
from gateway.http.puna.operations import operation_routes
from gateway.http.puna.page_routes import page_routes
from gateway.http.puna.placements import placement_routes
from gateway.http.puna.prompt_explanations import prompt_explanation_routes
from gateway.http.puna.states import state_routes
from gateway.http.puna.tokens import token_routes

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
    # Made once, for all that wait for it: it takes longer than an event loop may be held up.
    _text: asyncio.Task[bytes] | None = None

    async def respond(self, exchange: Exchange) -> None:
        """GET /openapi.json."""
        if self._text is None:
            self._text = asyncio.create_task(asyncio.to_thread(self._made), name="openapi")
        text = await asyncio.shield(self._text)  # a client that leaves takes it from no other
        await exchange.respond(200, text, {"content-type": "application/json"})

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
        *chaos_routes(service),
        *state_routes(service),
        *placement_routes(service),
        *prompt_explanation_routes(service),
        *token_routes(service),
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
    infer = partial(Route, "POST", scope=Scope.INFER, media_types=(_JSON, _NDJSON))
    embed = partial(Route, "POST", scope=Scope.EMBED)
    read = partial(Route, scope=Scope.MODELS_READ)
    look = partial(Route, "GET", scope=None, quiet=True)
    on_names = OF_MODEL_NAMES | OF_THE_CLUSTER
    return [
        Route("GET", "/", models.root, "Liveness", scope=None, media_types=("text/plain",), statuses=(200, 302)),
        infer("/api/generate", answers.generate, "Continue a prompt", body=GenerateBody, response=GenerateChunk),
        infer("/api/chat", answers.chat, "Answer a conversation", body=ChatBody, response=ChatChunk),
        embed("/api/embed", embeddings.embed, "Vectors of texts", body=EmbedBody, response=EmbedAnswer),
        embed(
            "/api/embeddings",
            embeddings.legacy,
            "The vector of one text, not normalised",
            body=LegacyEmbeddingBody,
            response=LegacyEmbeddingAnswer,
        ),
        read("GET", "/api/tags", models.tags, "Every model", response=TagList),
        read("GET", "/api/ps", models.running, "Loaded models", response=RunningList),
        read("POST", "/api/show", models.show, "One model", body=ShowBody, response=ShownModel, errors=on_names),
        look("/api/version", models.version, "Versions", response=VersionAnswer),
        look("/api/status", models.status, "No cloud", response=StatusAnswer),
    ]


def _openai_routes(service: Service) -> list[Route]:
    answers, models, vectors = OpenAiAnswers(service), OpenAiModels(service), OpenAiVectors(service)
    responses = ResponsesAnswers(service)
    infer = partial(Route, "POST", scope=Scope.INFER)
    stream = partial(infer, media_types=(_JSON, _SSE))
    embed = partial(Route, "POST", scope=Scope.EMBED)
    read = partial(Route, "GET", scope=Scope.MODELS_READ)
    rank = partial(embed, endpoint=vectors.rerank, summary="Documents by how well they answer a query")
    return [
        stream(
            "/v1/chat/completions",
            answers.chat,
            "Answer a conversation",
            body=ChatCompletionBody,
            response=ChatCompletionAnswer,
        ),
        stream(
            "/v1/completions",
            answers.complete,
            "Continue a prompt, without a template",
            body=CompletionBody,
            response=CompletionAnswer,
        ),
        stream(
            "/v1/responses",
            responses.create,
            "Answer a conversation, item by item",
            body=ResponsesBody,
            response=ResponseObject,
        ),
        infer(
            "/v1/responses/input_tokens",
            responses.input_tokens,
            "Tokens of a conversation",
            body=InputTokensBody,
            response=InputTokensAnswer,
        ),
        infer(
            "/v1/responses/compact",
            responses.compact,
            "Items that stand for a longer conversation",
            body=CompactBody,
            response=CompactionObject,
        ),
        embed("/v1/embeddings", vectors.embeddings, "Vectors of texts", body=EmbeddingsBody, response=EmbeddingsAnswer),
        *(rank(path, body=RerankBody, response=RerankAnswer) for path in _RERANK_PATHS),
        read("/v1/models", models.list_all, "Every model", response=AnyModelList),
        read("/v1/models/{id}", models.get, "One model", response=AnyModel, errors=OF_MODEL_NAMES),
    ]


def _anthropic_routes(service: Service) -> list[Route]:
    answers = AnthropicAnswers(service)
    infer = partial(Route, "POST", scope=Scope.INFER)
    return [
        infer(
            "/v1/messages",
            answers.messages,
            "Answer a conversation",
            body=MessagesBody,
            response=MessagesAnswer,
            media_types=(_JSON, _SSE),
        ),
        infer(
            "/v1/messages/count_tokens",
            answers.count_tokens,
            "Tokens of a conversation",
            body=CountTokensBody,
            response=CountTokensAnswer,
        ),
    ]
