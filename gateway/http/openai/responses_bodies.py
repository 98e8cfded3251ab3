"""Bodies of POST /v1/responses and the routes below it."""

from typing import Annotated, Any

from pydantic import Field

from gateway.core.request.conversation import TOOLS_MAX
from gateway.http.endpoint.fields import AnswerBody, Between, Body
from gateway.http.endpoint.response_model import DebugFields, ResponseModel
from gateway.http.openai.bodies import LABEL_LENGTH_MAX, Count


class ResponsesReasoning(Body):
    """Effort of reasoning, and a request for its summary. All of the reasoning is the summary here."""

    effort: str | None = None
    summary: str | None = Field(default=None, description="Returned unchanged")


class TextOptions(Body):
    """Format of the text."""

    format: dict[str, Any] | None = None
    verbosity: str | None = Field(default=None, description="Returned, without effect")


class ConversationBody(Body):
    """A conversation, and fields of a state that no server keeps here."""

    model: str = Field(min_length=1)
    input: Any = Field(default=None, description="A string, or items: messages, calls, their outputs, reasoning, …")
    instructions: str = ""
    tools: list[dict[str, Any]] = Field(default_factory=list, max_length=TOOLS_MAX)
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    background: bool = False


class InputTokensBody(ConversationBody):
    """POST /v1/responses/input_tokens, and what it shares with POST /v1/responses."""

    tool_choice: Any = None
    parallel_tool_calls: bool = True
    reasoning: ResponsesReasoning | None = None
    text: TextOptions | None = None
    truncation: str = Field(default="disabled", description='"auto": forget the oldest turns if it is too long')
    think: Any = Field(default=None, description="Puna: wins over reasoning.effort")
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, description="Puna: scalars for the template")


class CompactBody(ConversationBody):
    """POST /v1/responses/compact."""

    input: Any = Field(default=None, description="As in POST /v1/responses")
    keep_alive: Any = Field(default=None, description="Puna: seconds or a duration")


class ResponsesBody(InputTokensBody, AnswerBody):
    """POST /v1/responses, stateless; Puna's extensions included."""

    stream: bool = False
    stream_options: dict[str, Any] = Field(default_factory=dict)
    temperature: Annotated[float, Between(0, 2)] | None = None
    top_p: Annotated[float, Between(0, 1)] | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Count | None = Field(default=None, description="Returned; it bounds tools of the server alone")
    top_logprobs: Annotated[int, Between(-(2**31), 2**31 - 1, whole=True)] | None = None
    include: list[str] = Field(default_factory=list)
    metadata: dict[str, Any] = Field(default_factory=dict, description="Returned unchanged")
    user: Annotated[str, Field(max_length=LABEL_LENGTH_MAX)] | None = None
    safety_identifier: Annotated[str, Field(max_length=LABEL_LENGTH_MAX)] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=LABEL_LENGTH_MAX)] | None = None
    service_tier: str | None = Field(default=None, description="There is one tier: the answer says default")
    context_management: list[dict[str, Any]] = Field(default_factory=list, description="Without effect")
    truncate: bool = Field(default=False, description='Puna: as truncation "auto"')
    grammar: Any = Field(default=None, description="Puna: a text in GBNF that the answer matches")


class CachedTokens(ResponseModel):
    """Of the prompt."""

    cached_tokens: int
    cache_write_tokens: int


class ReasoningTokens(ResponseModel):
    """Of the answer."""

    reasoning_tokens: int


class ResponseUsage(ResponseModel):
    """Token counts."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ResponseItem(ResponseModel):
    """A piece of the answer: `message`, `reasoning`, a call of a tool, or `compaction`."""

    type: str
    id: str
    status: str = ""
    role: str = ""
    content: list[dict[str, Any]] = Field(default_factory=list)
    summary: list[dict[str, Any]] = Field(default_factory=list)
    encrypted_content: str = Field(default="", description="Encoded, not encrypted")
    call_id: str = ""
    name: str = ""
    namespace: str = ""
    arguments: str | dict[str, Any] = ""
    input: str = ""
    execution: str = ""
    action: dict[str, Any] = Field(default_factory=dict)
    operation: dict[str, Any] = Field(default_factory=dict)


class ResponseObject(ResponseModel):
    """The answer of POST /v1/responses. What the request said is said again."""

    id: str
    object: str
    created_at: int
    completed_at: int | None
    status: str
    background: bool
    conversation: None
    error: dict[str, Any] | None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[ResponseItem]
    parallel_tool_calls: bool
    previous_response_id: None
    prompt: None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: ResponseUsage | None
    user: str | None
    metadata: dict[str, Any]
    puna: DebugFields | None = None


class InputTokensAnswer(ResponseModel):
    """The answer of POST /v1/responses/input_tokens."""

    object: str
    input_tokens: int


class CompactionObject(ResponseModel):
    """The answer of POST /v1/responses/compact: what the client sends instead of the items so far."""

    id: str
    object: str
    created_at: int
    output: list[ResponseItem]
    usage: ResponseUsage
