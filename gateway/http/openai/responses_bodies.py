"""Bodies of POST /v1/responses."""

from typing import Annotated, Any

from pydantic import Field

from gateway.http.endpoint.answer_body import Answer, DebugFields
from gateway.http.endpoint.fields import Between, Body
from gateway.http.openai.bodies import LABEL_LENGTH_MAX, Count


class ResponsesReasoning(Body):
    """How hard to think, and whether the summary is wanted. All of the reasoning is the summary here."""

    effort: str | None = None
    summary: Any = None


class TextOptions(Body):
    """What the text looks like."""

    format: dict[str, Any] | None = None


class ResponsesBody(Body):
    """POST /v1/responses, stateless; Puna's extensions from `options` on."""

    model: str = Field(min_length=1)
    input: Any = Field(description="A string, or items: message, function_call, function_call_output, reasoning")
    instructions: str = ""
    tools: list[dict[str, Any]] = Field(default_factory=list, max_length=128)
    tool_choice: Any = None
    parallel_tool_calls: bool = True
    stream: bool = False
    temperature: Annotated[float, Between(0, 2)] | None = None
    top_p: Annotated[float, Between(0, 1)] | None = None
    max_output_tokens: Count | None = None
    reasoning: ResponsesReasoning | None = None
    text: TextOptions | None = None
    truncation: str = Field(default="disabled", description='"auto": forget the oldest turns if it is too long')
    top_logprobs: Annotated[int, Between(-(2**31), 2**31 - 1, whole=True)] | None = None
    include: list[str] = Field(default_factory=list)
    metadata: dict[str, Any] = Field(default_factory=dict, description="Comes back as it is")
    user: Annotated[str, Field(max_length=LABEL_LENGTH_MAX)] | None = None
    previous_response_id: Any = None
    conversation: Any = None
    background: bool = False
    options: dict[str, Any] = Field(default_factory=dict, description="Puna: native options, see docs/api.md")
    keep_alive: Any = Field(default=None, description="Puna: seconds or a duration")
    truncate: bool = Field(default=False, description='Puna: as truncation "auto"')
    shift: bool = Field(default=False, description="Puna: forget the middle of a full context and go on")
    think: Any = Field(default=None, description="Puna: wins over reasoning.effort")
    top_k: Any = Field(default=None, description="Puna: as the option")
    min_p: Any = Field(default=None, description="Puna: as the option")
    repeat_penalty: Any = Field(default=None, description="Puna: as the option")
    grammar: Any = Field(default=None, description="Puna: a text in GBNF that the answer matches")
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, description="Puna: scalars for the template")


class CachedTokens(Answer):
    """Of the prompt."""

    cached_tokens: int


class ReasoningTokens(Answer):
    """Of the answer."""

    reasoning_tokens: int


class ResponseUsage(Answer):
    """Token counts."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ResponseItem(Answer):
    """A piece of the answer: `message`, `reasoning` or `function_call`."""

    type: str
    id: str
    status: str
    role: str = ""
    content: list[dict[str, Any]] = Field(default_factory=list)
    summary: list[dict[str, Any]] = Field(default_factory=list)
    call_id: str = ""
    name: str = ""
    arguments: str = ""


class ResponseObject(Answer):
    """The answer of POST /v1/responses. What the request said is said again."""

    id: str
    object: str
    created_at: int
    status: str
    error: dict[str, Any] | None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[ResponseItem]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, Any]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_p: float
    truncation: str
    usage: ResponseUsage | None
    user: str | None
    metadata: dict[str, Any]
    puna: DebugFields | None = None
