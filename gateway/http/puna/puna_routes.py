"""Puna's own routes beside placements: tokens, queues, policies."""

from gateway.core.keys.keys import Scope
from gateway.http.endpoint.route_errors import OF_ANSWERS, OF_MODEL_NAMES, OF_THE_CLUSTER
from gateway.http.endpoint.router import Route
from gateway.http.endpoint.service import Service
from gateway.http.puna.gateway_state import GatewayState
from gateway.http.puna.operation_bodies import QueueList
from gateway.http.puna.placement_answers import ConstraintsAndPlacements, ConstraintsAnswer
from gateway.http.puna.placement_bodies import ConstraintsBody
from gateway.http.puna.placements import Placements
from gateway.http.puna.token_bodies import DetokenizeAnswer, DetokenizeBody, TokenizeAnswer, TokenizeBody
from gateway.http.puna.tokens import Tokens

_POLICY = "/puna/v1/models/{model}/policy"


def puna_routes(service: Service) -> list[Route]:
    """List the routes of tokens, queues and policies."""
    tokens, placements = Tokens(service), Placements(service)
    return [
        Route(
            "POST",
            "/puna/v1/tokenize",
            tokens.tokenize,
            "Tokens of a text or of messages",
            scope=Scope.MODELS_READ,
            body=TokenizeBody,
            response=TokenizeAnswer,
            errors=OF_ANSWERS,
        ),
        Route(
            "POST",
            "/puna/v1/detokenize",
            tokens.detokenize,
            "The text of tokens",
            scope=Scope.MODELS_READ,
            body=DetokenizeBody,
            response=DetokenizeAnswer,
            errors=OF_ANSWERS,
        ),
        Route(
            "GET",
            "/puna/v1/queue",
            GatewayState(service).queues,
            "Requests that wait at this gateway",
            scope=Scope.MODELS_READ,
            response=QueueList,
            quiet=True,
        ),
        Route(
            "GET",
            _POLICY,
            placements.get,
            "Constraints of a model, and its replicas",
            scope=Scope.ADMIN_CLUSTER,
            response=ConstraintsAndPlacements,
            errors=OF_THE_CLUSTER | OF_MODEL_NAMES,
        ),
        Route(
            "PUT",
            _POLICY,
            placements.put,
            "Set the constraints of a model",
            scope=Scope.ADMIN_CLUSTER,
            body=ConstraintsBody,
            response=ConstraintsAnswer,
            errors=OF_THE_CLUSTER | OF_MODEL_NAMES,
        ),
    ]
