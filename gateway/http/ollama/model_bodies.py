"""Answers about models in Ollama's dialect."""

from typing import Any

from pydantic import Field

from gateway.http.endpoint.answer_body import Answer


class VersionAnswer(Answer):
    """GET /api/version. `version` is the level of Ollama's API that is spoken."""

    version: str
    puna: str


class Cloud(Answer):
    """There is none."""

    disabled: bool
    source: str


class StatusAnswer(Answer):
    """GET /api/status."""

    cloud: Cloud


class ModelDetails(Answer):
    """What kind of model it is."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class TaggedModel(Answer):
    """One model that there is."""

    name: str
    model: str
    modified_at: str
    size: int = Field(description="Bytes")
    digest: str
    details: ModelDetails
    capabilities: list[str]
    nodes: list[str] = Field(description="Where it lies or runs")
    alias_of: str = Field(default="", description="The model that this name points to; absent: it is the model's own")
    error: str = Field(default="", description="Why it cannot be loaded; absent: it can")
    template_flaw: str = Field(default="", description="What its chat template was seen to do that it must not")


class TagList(Answer):
    """GET /api/tags."""

    models: list[TaggedModel]


class HeldByDevice(Answer):
    """What one device holds of a replica; id `host`: the memory of the machine."""

    node: str
    id: str
    name: str
    layers: int
    bytes: int


class RunningReplica(Answer):
    """One replica."""

    placement: str
    node: str
    state: str
    context_length: int
    expires_at: str
    slots_total: int
    slots_busy: int
    devices: list[HeldByDevice]


class RunningModel(Answer):
    """One model that is loaded, or being loaded."""

    name: str
    model: str
    size: int = Field(description="Bytes of all replicas")
    size_vram: int
    digest: str
    details: ModelDetails
    expires_at: str
    context_length: int
    replicas: list[RunningReplica]


class RunningList(Answer):
    """GET /api/ps."""

    models: list[RunningModel]


class ShownMessage(Answer):
    """A message that every conversation with the model begins with."""

    role: str
    content: str


class MeasuredDevice(Answer):
    """What one device holds."""

    id: str
    name: str
    layers: int
    bytes: int


class Measured(Answer):
    """What a replica holds, as its runner counted it."""

    context_length: int
    slots: int
    placement: str
    node: str
    devices: list[MeasuredDevice]
    host_bytes: int


class ShownPuna(Answer):
    """Beyond what Ollama says."""

    digest: str
    template_source: str
    template_flaw: str | None = Field(description="What the template does that it must not; null: nothing was found")
    measured: list[Measured]


class TensorRow(Answer):
    """One tensor of the file."""

    name: str
    type: Any
    shape: list[int]


class ShownModel(Answer):
    """POST /api/show."""

    license: str
    modelfile: str
    parameters: str
    template: str
    system: str
    details: ModelDetails
    messages: list[ShownMessage]
    model_info: dict[str, Any] = Field(description="The keys of the GGUF")
    capabilities: list[str]
    modified_at: str
    puna: ShownPuna
    tensors: list[TensorRow] = Field(default_factory=list, description="With `verbose`")
    alias_of: str = Field(default="", description="The model that the name in the request points to")
    projector_info: dict[str, Any] = Field(default_factory=dict, description="Of models that see")
