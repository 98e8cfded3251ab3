"""Bodies of the Anthropic dialect."""

from typing import Annotated, Any

from pydantic import Field

from gateway.core.request.conversation import MESSAGES_MAX, TOOLS_MAX
from gateway.http.endpoint.fields import AnswerBody, Between, Body
from gateway.http.endpoint.response_model import DebugFields, ResponseModel

USER_ID_LENGTH_MAX = 512


class Thinking(Body):
    """Reasoning: on or off, for how many tokens at most, and shown or not."""

    type: str
    display: str | None = None
    budget_tokens: Annotated[int, Between(1, 2**31 - 1, whole=True)] | None = None


class OutputConfig(Body):
    """Effort of the reasoning, and the form of the answer."""

    effort: str | None = None
    format: Any = Field(default=None, description="`{type: json_schema, schema}`")
    task_budget: Any = Field(default=None, description="Without effect")


class Metadata(Body):
    """A label of the caller's own."""

    user_id: Annotated[str, Field(max_length=USER_ID_LENGTH_MAX)] | None = None


class AnthropicMessage(Body):
    """One turn of `user`, `assistant` or `system`. Content is a string or a list of blocks."""

    role: str
    content: Any = None
    clear_at: str | None = None


class AnthropicTool(Body):
    """A function that the model may call, or a type that Anthropic defines."""

    name: str = ""
    description: str = ""
    input_schema: dict[str, Any] | None = None
    type: str = "custom"
    strict: bool = False
    display_width_px: int | None = None
    display_height_px: int | None = None


class CountTokensBody(Body):
    """POST /v1/messages/count_tokens, and what it shares with POST /v1/messages."""

    model: str = Field(min_length=1)
    messages: list[AnthropicMessage] = Field(min_length=1, max_length=MESSAGES_MAX)
    system: Any = Field(default=None, description="A string or text blocks")
    tools: list[AnthropicTool] = Field(default_factory=list, max_length=TOOLS_MAX)
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: Any = Field(default=None, description="The older name of output_config.format")
    context_management: Any = Field(default=None, description="Taken; no edit is ever applied")
    cache_control: Any = Field(default=None, description="Taken; prefixes are reused anyway")
    mcp_servers: Any = Field(default=None, description="400")
    container: Any = Field(default=None, description="400")
    compaction: Any = Field(default=None, description="400")
    thread: Any = Field(default=None, description="400")
    billing_policy: Any = Field(default=None, description="Without effect")
    diagnostics: Any = Field(default=None, description="Without effect")
    fallback_credit_token: Any = Field(default=None, description="Without effect")
    fallbacks: Any = Field(default=None, description="Without effect")
    inference_geo: Any = Field(default=None, description="Without effect")
    service_tier: Any = Field(default=None, description="Without effect")
    speed: Any = Field(default=None, description="Without effect")
    user_profile_id: Any = Field(default=None, description="Without effect")
    workspace_id: Any = Field(default=None, description="Without effect")
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, description="Puna: scalars for the template")
    think: Any = Field(default=None, description="Puna: wins over thinking")


class MessagesBody(CountTokensBody, AnswerBody):
    """POST /v1/messages, Puna's extensions included."""

    max_tokens: Annotated[int, Between(1, 2**31 - 1, whole=True)]
    stream: bool = False
    temperature: Annotated[float, Between(0, 1)] | None = None
    top_p: Annotated[float, Between(0, 1)] | None = None
    top_k: Any = None
    stop_sequences: list[str] = Field(default_factory=list, max_length=16)
    metadata: Metadata | None = None
    grammar: Any = Field(default=None, description="Puna: a text in GBNF that the answer matches")


class OutputTokensDetails(ResponseModel):
    """Output tokens that were reasoning."""

    thinking_tokens: int


class AnthropicUsage(ResponseModel):
    """Counts. Input tokens are those that were not found in the cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    output_tokens_details: OutputTokensDetails | None = None


class ContextManagementAnswer(ResponseModel):
    """Edits of the conversation that were applied: none."""

    applied_edits: list[Any]


class AnswerBlock(ResponseModel):
    """A piece of an answer: `text`, `thinking` with its signature, or `tool_use`."""

    type: str
    text: str = ""
    thinking: str = ""
    signature: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = Field(default_factory=dict)


class MessagesAnswer(ResponseModel):
    """The answer of POST /v1/messages."""

    id: str
    type: str
    role: str
    model: str
    content: list[AnswerBlock]
    stop_reason: str
    stop_sequence: str | None
    usage: AnthropicUsage
    context_management: ContextManagementAnswer | None = None
    puna: DebugFields | None = None


class CountedContext(ResponseModel):
    """Tokens before edits of the conversation: there are none."""

    original_input_tokens: int


class CountTokensAnswer(ResponseModel):
    """The answer of POST /v1/messages/count_tokens."""

    input_tokens: int
    context_management: CountedContext | None = None
