"""GET /v1/models and /v1/models/{id}, in OpenAI's dialect, and in Anthropic's for its clients."""

from collections.abc import Collection
from typing import Any

from pydantic import Field, RootModel

from common.clock import NS_PER_S, rfc3339_ns
from gateway.core.models.model_card import model_id
from gateway.core.models.routes import ReplicaState, RouteInfo
from gateway.core.prepare.capabilities import THINKING, VISION
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.response_model import ResponseModel
from gateway.http.endpoint.service import Endpoints

# A client that sends this header reads the same routes in Anthropic's form.
ANTHROPIC_VERSION = "anthropic-version"
_YES, _NO = {"supported": True}, {"supported": False}
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


class ModelPuna(ResponseModel):
    """Beyond what OpenAI says."""

    state: str = Field(description="ready, loading, unloaded or broken")
    context_length: int
    capabilities: list[str]
    alias_of: str | None = Field(description="The model that this name points to; null: it is the model's own")
    template_flaw: str | None = Field(description="Fault of its template; null: none was found")


class ModelObject(ResponseModel):
    """A model as OpenAI lists it."""

    id: str
    object: str
    created: int
    owned_by: str
    puna: ModelPuna


class ModelList(ResponseModel):
    """GET /v1/models."""

    object: str
    data: list[ModelObject]


class AnthropicModel(ResponseModel):
    """A model as Anthropic lists it."""

    type: str
    id: str
    display_name: str
    created_at: str
    lifecycle: str
    max_input_tokens: int | None = Field(description="Prompt and answer share it; null: not known")
    max_tokens: int | None
    capabilities: dict[str, Any]


class AnthropicModelList(ResponseModel):
    """GET /v1/models with the header `anthropic-version`."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


class AnyModel(RootModel[ModelObject | AnthropicModel]):
    """A model; with the header `anthropic-version` as Anthropic has it."""


class AnyModelList(RootModel[ModelList | AnthropicModelList]):
    """Every model; with the header `anthropic-version` as Anthropic has it."""


class OpenAiModels(Endpoints):
    """Models of the cluster, in OpenAI's format, or in Anthropic's for its clients."""

    async def list_all(self, exchange: Exchange) -> None:
        """GET /v1/models."""
        listed = self.models.listed()
        if ANTHROPIC_VERSION in exchange.headers:
            await exchange.respond_json(_anthropic_list([one.route for one in listed]))
            return
        await exchange.respond_json(
            {"object": "list", "data": [self._model_object(one.route, one.alias_of) for one in listed]}
        )

    async def get(self, exchange: Exchange) -> None:
        """GET /v1/models/{id}; ids may contain slashes. The answer echoes the id as asked."""
        route = self.models.known_route(exchange.path_value)
        exchange.record.found(route.model)
        if ANTHROPIC_VERSION in exchange.headers:
            await exchange.respond_json(_anthropic_object(route) | {"id": exchange.path_value})
            return
        _, alias = self.models.resolve(exchange.path_value)
        shown = self._model_object(route, route.model.name if alias is not None else "")
        await exchange.respond_json(shown | {"id": exchange.path_value})

    def _model_object(self, route: RouteInfo, alias_of: str) -> dict[str, object]:
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
                "alias_of": alias_of or None,
                "template_flaw": self.models.prompts.flaw_seen(model) or None,
            },
        }


def _anthropic_list(routes: list[RouteInfo]) -> dict[str, object]:
    data = [_anthropic_object(route) for route in routes]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"data": data, "has_more": False, "first_id": first, "last_id": last}


def _anthropic_object(route: RouteInfo) -> dict[str, object]:
    model = route.model
    return {
        "type": "model",
        "id": model_id(model),
        "display_name": model_id(model),
        "created_at": rfc3339_ns(model.modified_at_unix_s * NS_PER_S),
        "lifecycle": "active",
        # Prompt and answer share the context that the model was trained for.
        "max_input_tokens": model.context_tokens or None,
        "max_tokens": model.context_tokens or None,
        "capabilities": _anthropic_capabilities(model.capabilities),
    }


def _anthropic_capabilities(capabilities: Collection[str]) -> dict[str, object]:
    """Return the features of the Messages API that have an effect for a model with these capabilities."""
    thinks = _YES if THINKING in capabilities else _NO
    return {
        "batch": _NO,
        "citations": _NO,
        "code_execution": _NO,
        "context_management": _NO,
        "effort": thinks | dict.fromkeys(_EFFORTS, thinks),
        "image_input": _YES if VISION in capabilities else _NO,
        "pdf_input": _NO,
        "server_tools": _NO | {"code_execution": _NO, "web_search": _NO},
        "structured_outputs": _YES if not capabilities or "completion" in capabilities else _NO,
        "thinking": thinks
        | {"types": {"adaptive": thinks, "between_tools": _YES, "disabled": _YES, "enabled": thinks}},
    }


def _state(route: RouteInfo) -> str:
    states = {replica.state for replica in route.replicas}
    if route.model.error:
        return "broken"
    for state in (ReplicaState.READY, ReplicaState.LOADING):
        if state in states:
            return str(state)
    return "unloaded"
