"""Puna's own routes beside placements: tokens, queues, policies."""

from gateway.core.keys.keys import Scope
from gateway.http.endpoint.route_errors import OF_ANSWERS, OF_MODEL_NAMES, OF_THE_CLUSTER
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Service
from gateway.http.puna.operation_bodies import QueueList
from gateway.http.puna.placement_answers import Wanted, WantedAndPlaced
from gateway.http.puna.placement_bodies import ConstraintsBody
from gateway.http.puna.placements import Placements
from gateway.http.puna.queues import Queues
from gateway.http.puna.token_bodies import DetokenizeAnswer, DetokenizeBody, TokenizeAnswer, TokenizeBody
from gateway.http.puna.tokens import Tokens

_POLICY = "/puna/v1/models/{model}/policy"


def puna_routes(service: Service) -> list[Route]:
    """Their part of the table."""
    tokens, placements = Tokens(service), Placements(service)
    return [
        Route(
            method="POST",
            path="/puna/v1/tokenize",
            scope=Scope.MODELS_READ,
            endpoint=tokens.tokenize,
            summary="Tokens of a text or of messages",
            body=TokenizeBody,
            response=TokenizeAnswer,
            errors=OF_ANSWERS,
        ),
        Route(
            method="POST",
            path="/puna/v1/detokenize",
            scope=Scope.MODELS_READ,
            endpoint=tokens.detokenize,
            summary="The text of tokens",
            body=DetokenizeBody,
            response=DetokenizeAnswer,
            errors=OF_ANSWERS,
        ),
        Route(
            method="GET",
            path="/puna/v1/queue",
            scope=Scope.MODELS_READ,
            endpoint=Queues(service).list_all,
            summary="What waits at this gateway",
            response=QueueList,
            quiet=True,
        ),
        Route(
            method="GET",
            path=_POLICY,
            scope=Scope.ADMIN_CLUSTER,
            endpoint=placements.get,
            summary="What is wanted of a model, and its replicas",
            response=WantedAndPlaced,
            errors=OF_THE_CLUSTER | OF_MODEL_NAMES,
        ),
        Route(
            method="PUT",
            path=_POLICY,
            scope=Scope.ADMIN_CLUSTER,
            endpoint=placements.put,
            summary="Set what is wanted of a model",
            body=ConstraintsBody,
            response=Wanted,
            errors=OF_THE_CLUSTER | OF_MODEL_NAMES,
        ),
    ]
