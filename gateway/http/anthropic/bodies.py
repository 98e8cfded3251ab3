"""Bodies of the Anthropic dialect."""

from typing import Annotated, Any

from pydantic import Field

from gateway.http.endpoint.answer_body import Answer, DebugFields
from gateway.http.endpoint.fields import Between, Body

USER_ID_LENGTH_MAX = 512


class Thinking(Body):
    """Whether to reason, and for how many tokens at most."""

    type: str
    budget_tokens: Annotated[int, Between(1, 2**31 - 1, whole=True)] | None = None


class OutputConfig(Body):
    """`effort` counts when `thinking` is absent."""

    effort: str | None = None


class Metadata(Body):
    """A label of the caller's own."""

    user_id: Annotated[str, Field(max_length=USER_ID_LENGTH_MAX)] | None = None


class AnthropicMessage(Body):
    """One turn. Content is a string or a list of blocks."""

    role: str
    content: Any


class AnthropicTool(Body):
    """A function that the model may call."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] = Field(default_factory=dict)
    type: str = "custom"


class CountTokensBody(Body):
    """POST /v1/messages/count_tokens, and what it shares with POST /v1/messages."""

    model: str = Field(min_length=1)
    messages: list[AnthropicMessage] = Field(min_length=1, max_length=2048)
    system: Any = Field(default=None, description="A string or text blocks")
    tools: list[AnthropicTool] = Field(default_factory=list, max_length=128)
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    mcp_servers: Any = None
    container: Any = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, description="Puna: scalars for the template")
    think: Any = Field(default=None, description="Puna: wins over thinking")


class MessagesBody(CountTokensBody):
    """POST /v1/messages, Puna's extensions (from `options` on) included."""

    max_tokens: Annotated[int, Between(1, 2**31 - 1, whole=True)]
    stream: bool = False
    temperature: Annotated[float, Between(0, 1)] | None = None
    top_p: Annotated[float, Between(0, 1)] | None = None
    top_k: Any = None
    stop_sequences: list[str] = Field(default_factory=list, max_length=16)
    metadata: Metadata | None = None
    options: dict[str, Any] = Field(default_factory=dict, description="Puna: native options, see docs/api.md")
    keep_alive: Any = Field(default=None, description="Puna: seconds or a duration")
    truncate: bool = Field(default=False, description="Puna: cut a prompt that is too long")
    shift: bool = Field(default=False, description="Puna: forget the middle of a full context and go on")
    min_p: Any = Field(default=None, description="Puna: as the option")
    repeat_penalty: Any = Field(default=None, description="Puna: as the option")
    grammar: Any = Field(default=None, description="Puna: a text in GBNF that the answer matches")


class AnthropicUsage(Answer):
    """Counts. Input tokens are those that were not found in the cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int


class AnswerBlock(Answer):
    """A piece of an answer: `text`, `thinking` with its signature, or `tool_use`."""

    type: str
    text: str = ""
    thinking: str = ""
    signature: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = Field(default_factory=dict)


class MessagesAnswer(Answer):
    """The answer of POST /v1/messages."""

    id: str
    type: str
    role: str
    model: str
    content: list[AnswerBlock]
    stop_reason: str
    stop_sequence: str | None
    usage: AnthropicUsage
    puna: DebugFields | None = None


class CountTokensAnswer(Answer):
    """The answer of POST /v1/messages/count_tokens."""

    input_tokens: int
