"""Answers about models in Ollama's dialect."""

from typing import Any

from pydantic import Field

from gateway.http.endpoint.response_model import ResponseModel


class VersionAnswer(ResponseModel):
    """GET /api/version. `version` is the level of Ollama's API that is spoken."""

    version: str
    puna: str


class Cloud(ResponseModel):
    """There is none."""

    disabled: bool
    source: str


class StatusAnswer(ResponseModel):
    """GET /api/status."""

    cloud: Cloud


class ModelDetails(ResponseModel):
    """Kind of a model."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class TaggedModel(ResponseModel):
    """One model that there is."""

    name: str
    model: str
    modified_at: str
    size: int = Field(description="Bytes")
    digest: str
    details: ModelDetails
    capabilities: list[str]
    nodes: list[str] = Field(description="Nodes that have or run it")
    alias_of: str = Field(default="", description="The model that this name points to; absent: it is the model's own")
    error: str = Field(default="", description="Why it cannot be loaded; absent: it can")
    template_flaw: str = Field(default="", description="Fault of its chat template, as far as it was rendered")


class TagList(ResponseModel):
    """GET /api/tags."""

    models: list[TaggedModel]


class MeasuredDevice(ResponseModel):
    """Layers and bytes on one device."""

    id: str
    name: str
    layers: int
    bytes: int


class HeldByDevice(MeasuredDevice):
    """Layers and bytes of a replica on one device; id `host`: the memory of the machine."""

    node: str


class RunningReplica(ResponseModel):
    """One replica."""

    placement: str
    node: str
    state: str
    context_length: int
    expires_at: str
    slots_total: int
    slots_busy: int
    devices: list[HeldByDevice]


class RunningModel(ResponseModel):
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


class RunningList(ResponseModel):
    """GET /api/ps."""

    models: list[RunningModel]


class ShownMessage(ResponseModel):
    """A message that every conversation with the model begins with."""

    role: str
    content: str


class MeasuredMemory(ResponseModel):
    """Memory of a replica, as its runner counted it."""

    context_length: int
    slots: int
    placement: str
    node: str
    devices: list[MeasuredDevice]
    host_bytes: int


class ShownPuna(ResponseModel):
    """Beyond what Ollama says."""

    digest: str
    template_source: str
    template_flaw: str | None = Field(description="Fault of the template; null: none was found")
    measured: list[MeasuredMemory]


class TensorRow(ResponseModel):
    """One tensor of the file."""

    name: str
    type: Any
    shape: list[int]


class ShownModel(ResponseModel):
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
