"""Answers about models in OpenAI's dialect, and in Anthropic's for its clients."""

from pydantic import Field, RootModel

from gateway.http.endpoint.answer_body import Answer


class ModelPuna(Answer):
    """Beyond what OpenAI says."""

    state: str = Field(description="ready, loading, unloaded or broken")
    context_length: int
    capabilities: list[str]
    alias_of: str | None = Field(description="The model that this name points to; null: it is the model's own")
    template_flaw: str | None = Field(description="What its template was seen to do that it must not; null: nothing")


class ModelObject(Answer):
    """A model as OpenAI lists it."""

    id: str
    object: str
    created: int
    owned_by: str
    puna: ModelPuna


class ModelList(Answer):
    """GET /v1/models."""

    object: str
    data: list[ModelObject]


class AnthropicModel(Answer):
    """A model as Anthropic lists it."""

    type: str
    id: str
    display_name: str
    created_at: str


class AnthropicModelList(Answer):
    """GET /v1/models with the header `anthropic-version`."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


class AnyModel(RootModel[ModelObject | AnthropicModel]):
    """A model; with the header `anthropic-version` as Anthropic has it."""


class AnyModelList(RootModel[ModelList | AnthropicModelList]):
    """Every model; with the header `anthropic-version` as Anthropic has it."""
