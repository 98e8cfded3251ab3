"""Every HTTP route of the gateway."""

from dataclasses import dataclass, replace

from gateway.core.keys import Scope
from gateway.http.anthropic_answers import AnthropicAnswers
from gateway.http.anthropic_bodies import CountTokensAnswer, CountTokensBody, MessagesAnswer, MessagesBody
from gateway.http.config import Config
from gateway.http.exchange import Exchange
from gateway.http.key_routes import key_routes
from gateway.http.nodes import Nodes
from gateway.http.ollama_answers import OllamaAnswers
from gateway.http.ollama_bodies import (
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
from gateway.http.ollama_embeddings import OllamaEmbeddings
from gateway.http.ollama_models import OllamaModels
from gateway.http.openai_answers import OpenAiAnswers
from gateway.http.openai_bodies import ChatCompletionBody, CompletionBody, ModelList, ModelObject, OpenAiAnswer
from gateway.http.openai_models import OpenAiModels
from gateway.http.openai_vector_bodies import EmbeddingsAnswer, EmbeddingsBody, RerankAnswer, RerankBody
from gateway.http.openai_vectors import OpenAiVectors
from gateway.http.openapi import openapi_document
from gateway.http.operations import Operations
from gateway.http.page_routes import page_routes
from gateway.http.placement_bodies import ClearDeviceBody, ConstraintsBody, ExplainBody, LoadBody, UnloadBody
from gateway.http.placements import Placements
from gateway.http.responses_answers import ResponsesAnswers
from gateway.http.responses_bodies import ResponseObject, ResponsesBody
from gateway.http.router import Route
from gateway.http.service import Service
from gateway.http.store_routes import store_routes

_JSON = "application/json"
_NDJSON = "application/x-ndjson"
_SSE = "text/event-stream"
# One endpoint under the three names that Jina's, Cohere's and llama-server's clients ask for.
_RERANK_PATHS = ("/v1/rerank", "/v2/rerank", "/rerank")
_HEAD_TOO = frozenset({"/", "/api/version", "/api/tags"})


@dataclass(frozen=True, slots=True)
class _Document:
    routes: list[Route]
    version: str

    async def respond(self, exchange: Exchange) -> None:
        """GET /openapi.json."""
        await exchange.respond_json(openapi_document(self.routes, self.version))


def make_routes(service: Service) -> list[Route]:
    """The table."""
    routes = [
        *_ollama_routes(service),
        *store_routes(service),
        *_openai_routes(service),
        *_anthropic_routes(service),
        *_operation_routes(service),
        *_placement_routes(service),
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
    return routes + [replace(route, method="HEAD") for route in routes if route.path in _HEAD_TOO]


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
        Route(method="GET", path="/api/tags", scope=Scope.MODELS_READ, endpoint=models.tags, summary="Every model"),
        Route(method="GET", path="/api/ps", scope=Scope.MODELS_READ, endpoint=models.running, summary="Loaded models"),
        Route(
            method="POST",
            path="/api/show",
            scope=Scope.MODELS_READ,
            endpoint=models.show,
            summary="One model",
            body=ShowBody,
        ),
        Route(method="GET", path="/api/version", scope=None, endpoint=models.version, summary="Versions", quiet=True),
        Route(method="GET", path="/api/status", scope=None, endpoint=models.status, summary="No cloud", quiet=True),
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
            response=OpenAiAnswer,
            media_types=(_JSON, _SSE),
        ),
        Route(
            method="POST",
            path="/v1/completions",
            scope=Scope.INFER,
            endpoint=answers.complete,
            summary="Continue a prompt, without a template",
            body=CompletionBody,
            response=OpenAiAnswer,
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
            response=ModelList,
        ),
        Route(
            method="GET",
            path="/v1/models/{id}",
            scope=Scope.MODELS_READ,
            endpoint=models.get,
            summary="One model",
            response=ModelObject,
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


def _operation_routes(service: Service) -> list[Route]:
    operations = Operations(service)
    text = ("text/plain",)
    return [
        Route(method="GET", path="/healthz", scope=None, endpoint=operations.health, summary="Alive", quiet=True),
        Route(
            method="GET",
            path="/readyz",
            scope=None,
            endpoint=operations.ready,
            summary="Admitting requests",
            quiet=True,
        ),
        Route(
            method="GET",
            path="/metrics",
            scope=Scope.METRICS,
            endpoint=operations.metrics,
            summary="Prometheus metrics",
            media_types=text,
            quiet=True,
        ),
        Route(
            method="GET",
            path="/puna/v1/targets",
            scope=Scope.METRICS,
            endpoint=operations.targets,
            summary="What Prometheus is to scrape",
            quiet=True,
        ),
        Route(
            method="GET",
            path="/puna/v1/config",
            scope=Scope.ADMIN_CLUSTER,
            endpoint=Config(service).respond,
            summary="The settings of this gateway as they are in effect, without secrets",
            quiet=True,
        ),
        Route(
            method="GET",
            path="/puna/v1/nodes",
            scope=Scope.MODELS_READ,
            endpoint=operations.nodes,
            summary="Nodes and their devices",
        ),
    ]


def _placement_routes(service: Service) -> list[Route]:
    placements, nodes = Placements(service), Nodes(service)
    one = "/puna/v1/placements/{model}"
    return [
        Route(
            method="GET",
            path="/puna/v1/placements",
            scope=Scope.MODELS_READ,
            endpoint=placements.list_all,
            summary="What is loaded and wanted",
        ),
        Route(
            method="GET",
            path=one,
            scope=Scope.MODELS_READ,
            endpoint=placements.get,
            summary="What is wanted of a model, and its replicas",
        ),
        Route(
            method="PUT",
            path=one,
            scope=Scope.ADMIN_CLUSTER,
            endpoint=placements.put,
            summary="Set what is wanted of a model",
            body=ConstraintsBody,
        ),
        Route(
            method="DELETE",
            path=one,
            scope=Scope.ADMIN_CLUSTER,
            endpoint=placements.delete,
            summary="Forget what is wanted of a model",
        ),
        Route(
            method="GET",
            path="/puna/v1/explain",
            scope=Scope.MODELS_READ,
            endpoint=placements.explain_get,
            summary="Why a model lies there",
        ),
        Route(
            method="POST",
            path="/puna/v1/explain",
            scope=Scope.MODELS_READ,
            endpoint=placements.explain_post,
            summary="Where a model would go",
            body=ExplainBody,
        ),
        Route(
            method="POST",
            path="/puna/v1/load",
            scope=Scope.MODELS_WRITE,
            endpoint=placements.load,
            summary="Have a replica",
            body=LoadBody,
            media_types=(_NDJSON,),
        ),
        Route(
            method="POST",
            path="/puna/v1/unload",
            scope=Scope.MODELS_WRITE,
            endpoint=placements.unload,
            summary="Stop the replicas of a model",
            body=UnloadBody,
        ),
        Route(
            method="POST",
            path="/puna/v1/devices/clear",
            scope=Scope.ADMIN_CLUSTER,
            endpoint=placements.clear_device,
            summary="Test an excluded device again",
            body=ClearDeviceBody,
        ),
        *(
            Route(
                method="POST",
                path=f"/puna/v1/nodes/{{node}}/{name}",
                scope=Scope.ADMIN_CLUSTER,
                endpoint=endpoint,
                summary=summary,
            )
            for name, endpoint, summary in (
                ("drain", nodes.drain, "Take a node out of use"),
                ("undrain", nodes.undrain, "Put a node into use again"),
            )
        ),
    ]
