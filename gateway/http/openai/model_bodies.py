"""Answers about models in OpenAI's dialect, and in Anthropic's for its clients."""

from typing import Any

from pydantic import Field, RootModel

from gateway.http.endpoint.response_model import ResponseModel


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
