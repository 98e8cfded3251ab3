"""Bodies and answers of the Ollama dialect."""

from typing import Annotated, Any

from pydantic import Field

from gateway.http.endpoint.fields import Between, Body
from gateway.http.endpoint.response_model import DebugFields, LogprobEntry, ResponseModel, StopReason

_TokenId = Annotated[int, Between(0, 2**32 - 1, whole=True)]


class FunctionCall(Body):
    """A call that an assistant message made."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class OllamaToolCall(Body):
    """A call and its id."""

    id: str = ""
    function: FunctionCall


class OllamaMessage(Body):
    """One turn."""

    role: str
    content: str = ""
    thinking: str = ""
    images: list[str] = Field(default_factory=list)
    tool_calls: list[OllamaToolCall] = Field(default_factory=list)
    tool_name: str = ""
    tool_call_id: str = ""


class OllamaAnswerBody(Body):
    """Fields that /api/generate and /api/chat share."""

    model: str = Field(min_length=1)
    stream: bool = True
    format: Any = Field(default=None, description='"json" or a JSON schema that the answer matches')
    keep_alive: Any = Field(default=None, description='Seconds, or a duration such as "10m"; negative: for ever')
    options: dict[str, Any] = Field(default_factory=dict, description="See docs/api.md for the table")
    think: Any = Field(default=None, description='true, false, "low", "medium", "high" or "max"')
    truncate: bool = True
    shift: bool = True
    logprobs: bool = False
    top_logprobs: Annotated[int, Between(-(2**31), 2**31 - 1, whole=True)] = 0
    debug_render_only: bool = Field(default=False, alias="_debug_render_only")


class GenerateBody(OllamaAnswerBody):
    """POST /api/generate."""

    prompt: str = ""
    suffix: str = ""
    system: str = ""
    template: str = Field(default="", description="A Jinja template instead of the model's own")
    context: list[_TokenId] = Field(default_factory=list, description="Token ids that stand before the prompt")
    raw: bool = Field(default=False, description="Read the prompt as it is, without a template")
    images: list[str] = Field(default_factory=list)


class ChatBody(OllamaAnswerBody):
    """POST /api/chat."""

    messages: list[OllamaMessage] = Field(default_factory=list)
    tools: list[dict[str, Any]] = Field(default_factory=list)


class EmbedBody(Body):
    """POST /api/embed."""

    model: str = ""
    input: Any = Field(default=None, description="A string or a list of strings")
    truncate: bool = True
    dimensions: Annotated[int, Between(1, 2**31 - 1, whole=True)] | None = None
    options: dict[str, Any] = Field(default_factory=dict, description="num_ctx counts; see docs/api.md")
    keep_alive: Any = Field(default=None, description='Seconds, or a duration such as "10m"; negative: for ever')


class LegacyEmbeddingBody(Body):
    """POST /api/embeddings: one text, and a vector that is not normalised."""

    model: str = ""
    prompt: str = ""
    options: dict[str, Any] = Field(default_factory=dict)
    keep_alive: Any = None


class EmbedAnswer(ResponseModel):
    """The answer of /api/embed. Durations in nanoseconds; absent where there was nothing to compute."""

    model: str
    embeddings: list[list[float]]
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0


class LegacyEmbeddingAnswer(ResponseModel):
    """The answer of /api/embeddings."""

    embedding: list[float]


class ShowBody(Body):
    """POST /api/show. `name` is the older spelling of `model`."""

    model: str = ""
    name: str = ""
    verbose: bool = Field(default=False, description="Long arrays of model_info, too")
    system: str = Field(default="", description="Show the model as if this were its system text")
    template: str = Field(default="", description="Show the model as if this were its template")
    options: dict[str, Any] = Field(default_factory=dict, description="Show the model as if these were its parameters")


class CalledFunction(ResponseModel):
    """A call as the model made it."""

    index: int
    name: str
    arguments: dict[str, Any]


class AnsweredCall(ResponseModel):
    """A call and its id."""

    id: str
    function: CalledFunction


class AnswerMessage(ResponseModel):
    """Message of the model."""

    role: str
    content: str
    thinking: str = ""
    tool_calls: list[AnsweredCall] = Field(default_factory=list)


class RenderInfo(ResponseModel):
    """Prompt and images, as `_debug_render_only` asks for them."""

    rendered_template: str
    image_count: int


class AnswerChunk(ResponseModel):
    """One line of an answer, or the whole of it. What follows `done_reason` comes with the last line only."""

    model: str
    created_at: str
    logprobs: list[LogprobEntry] = Field(default_factory=list)
    done: bool
    done_reason: str = ""
    stop_sequence: str = Field(default="", description="The stop string that ended it")
    stop_reason: StopReason | None = None
    total_duration: int = Field(default=0, description="Nanoseconds")
    load_duration: int = 0
    prompt_eval_count: int = 0
    prompt_eval_duration: int = 0
    prompt_cached_count: int = 0
    eval_count: int = 0
    eval_duration: int = 0
    puna: DebugFields | None = None
    debug_info: RenderInfo | None = Field(default=None, alias="_debug_info")


class GenerateChunk(AnswerChunk):
    """Of POST /api/generate."""

    response: str
    thinking: str = ""
    tool_calls: list[AnsweredCall] = Field(default_factory=list)
    context: list[int] = Field(default_factory=list)


class ChatChunk(AnswerChunk):
    """Of POST /api/chat."""

    message: AnswerMessage


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
    reason: str | None = Field(None, description="Why it does not serve")
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
