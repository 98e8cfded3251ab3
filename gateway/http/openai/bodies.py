"""Bodies and answers of the OpenAI dialect."""

from typing import Annotated, Any

from pydantic import Field

from gateway.core.request.conversation import TOOLS_MAX
from gateway.http.endpoint.fields import AnswerBody, Between, Body
from gateway.http.endpoint.response_model import DebugFields, LogprobEntry, ResponseModel, StopReason

_INT32_MAX = 2**31 - 1
Penalty = Annotated[float, Between(-2, 2)]
Count = Annotated[int, Between(1, _INT32_MAX, whole=True)]
# Clients of llama-server and LM Studio send -1.
TokenLimit = Annotated[int, Between(1, _INT32_MAX, whole=True, unlimited=-1)]
TopLogprobs = Annotated[int, Between(-(2**31), _INT32_MAX, whole=True)]
LABEL_LENGTH_MAX = 512
_NOT_OBEYED = "Not obeyed; named in x-puna-ignored"


class StreamOptions(Body):
    """Parts of a stream besides the answer."""

    include_usage: bool = False


class ReasoningOptions(Body):
    """`reasoning.effort`, the newer spelling of `reasoning_effort`."""

    effort: str | None = None


class OpenAiAnswerBody(AnswerBody):
    """Fields that both endpoints share."""

    model: str = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: TokenLimit | None = None
    temperature: Annotated[float, Between(0, 2)] | None = None
    top_p: Annotated[float, Between(0, 1)] | None = None
    seed: Annotated[int, Between(-(2**63), 2**63 - 1, whole=True)] | None = None
    stop: Any = Field(default=None, description="A string, or up to 16 of them")
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: dict[str, Any] | None = None
    n: Annotated[int, Between(1, 8, whole=True)] = 1
    user: Annotated[str, Field(max_length=LABEL_LENGTH_MAX)] | None = None
    safety_identifier: Annotated[str, Field(max_length=LABEL_LENGTH_MAX)] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=LABEL_LENGTH_MAX)] | None = None
    response_format: Any = Field(default=None, description="Of type text, json_object or json_schema")
    grammar: Any = Field(default=None, description="Puna: a grammar (GBNF) that the answer matches")
    guided_json: Any = Field(default=None, description="vLLM: a JSON schema, or its text")
    guided_choice: Any = Field(default=None, description="vLLM: strings, one of which is the answer")
    guided_grammar: Any = Field(default=None, description="vLLM: as `grammar`")
    guided_regex: Any = Field(default=None, description=_NOT_OBEYED)
    structured_outputs: Any = Field(default=None, description="vLLM: an object with json, choice or grammar")
    ignore_eos: Any = Field(default=None, description=_NOT_OBEYED)
    min_tokens: Any = Field(default=None, description=_NOT_OBEYED)
    stop_token_ids: Any = Field(default=None, description=_NOT_OBEYED)
    store: Any = Field(default=None, description=_NOT_OBEYED)
    verbosity: Any = Field(default=None, description=_NOT_OBEYED)
    web_search_options: Any = Field(default=None, description=_NOT_OBEYED)


class OpenAiMessage(Body):
    """One turn. Content is a string, null beside tool calls, or a list of parts."""

    role: str
    content: Any = None
    name: str = ""
    tool_calls: list[dict[str, Any]] = Field(default_factory=list)
    tool_call_id: str = ""
    reasoning: str = ""
    reasoning_content: str = ""


class ChatCompletionBody(OpenAiAnswerBody):
    """POST /v1/chat/completions."""

    messages: list[OpenAiMessage] = Field(max_length=2048)
    max_completion_tokens: TokenLimit | None = None
    logprobs: bool = False
    top_logprobs: TopLogprobs | None = None
    tools: list[dict[str, Any]] = Field(default_factory=list, max_length=TOOLS_MAX)
    tool_choice: Any = Field(default=None, description='"none", "auto", "required", or a function by its name')
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    reasoning: ReasoningOptions | None = None
    think: Any = Field(default=None, description="Puna: as in /api/chat")
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, description="Puna: scalars only")
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None


class CompletionBody(OpenAiAnswerBody):
    """POST /v1/completions."""

    prompt: Any = Field(description="A string, a list of up to 32 strings, token ids, or a list of lists of them")
    suffix: str = ""
    logprobs: TopLogprobs | None = None
    echo: bool = False
    best_of: Annotated[int, Between(1, 8, whole=True)] | None = None


class PromptDetails(ResponseModel):
    """Of the prompt."""

    cached_tokens: int


class CompletionDetails(ResponseModel):
    """Of the answer."""

    reasoning_tokens: int


class Usage(ResponseModel):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class ChoiceCallFunction(ResponseModel):
    """A call; its arguments are JSON in a text."""

    name: str
    arguments: str


class ChoiceCall(ResponseModel):
    """A call and its id."""

    index: int
    id: str
    type: str
    function: ChoiceCallFunction


class ChoiceMessage(ResponseModel):
    """Message of the model; content is null if there are only calls."""

    role: str
    content: str | None
    refusal: None
    reasoning: str = ""
    reasoning_content: str = ""
    tool_calls: list[ChoiceCall] = Field(default_factory=list)


class ChatLogprobs(ResponseModel):
    """By token."""

    content: list[LogprobEntry]
    refusal: None


class ChatChoice(ResponseModel):
    """One of `n` answers."""

    index: int
    message: ChoiceMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: StopReason | None = None


class ChatCompletionAnswer(ResponseModel):
    """The answer of POST /v1/chat/completions; streams have the same as chunks with `delta`."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    puna: DebugFields | None = None


class CompletionLogprobs(ResponseModel):
    """Columns, a row for each token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(ResponseModel):
    """One of `n` answers to one of the prompts."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str
    stop_reason: StopReason | None = None


class CompletionAnswer(ResponseModel):
    """The answer of POST /v1/completions."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage
    puna: DebugFields | None = None


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
