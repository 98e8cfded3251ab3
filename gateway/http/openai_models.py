"""GET /v1/models and /v1/models/{id}."""

from dataclasses import dataclass

from gateway.core.model_text import model_id
from gateway.core.routes import ReplicaState, RouteInfo
from gateway.http.exchange import Exchange
from gateway.http.service import Service


@dataclass(frozen=True, slots=True)
class OpenAiModels:
    """What the cluster has, in OpenAI's words."""

    service: Service

    async def list_all(self, exchange: Exchange) -> None:
        """GET /v1/models."""
        routes = self.service.inference.models.routes.all()
        await exchange.respond_json({"object": "list", "data": [_model_object(route) for route in routes]})

    async def get(self, exchange: Exchange) -> None:
        """GET /v1/models/{id}; ids may contain slashes. The answer echoes the id as asked."""
        route = self.service.inference.models.known_route(exchange.path_value)
        exchange.record.model = route.model.name
        await exchange.respond_json(_model_object(route) | {"id": exchange.path_value})


def _model_object(route: RouteInfo) -> dict[str, object]:
    model = route.model
    return {
        "id": model_id(model),
        "object": "model",
        "created": model.modified_at_unix_s,
        "owned_by": "library",
        "puna": {
            "state": _state(route),
            "context_length": model.context_tokens,
            "capabilities": list(model.capabilities),
        },
    }


def _state(route: RouteInfo) -> str:
    states = {replica.state for replica in route.replicas}
    if route.model.error:
        return "broken"
    for state in (ReplicaState.READY, ReplicaState.LOADING):
        if state in states:
            return str(state)
    return "unloaded"
