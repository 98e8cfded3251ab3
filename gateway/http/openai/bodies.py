"""Bodies of the OpenAI dialect."""

from typing import Annotated, Any

from pydantic import Field

from gateway.core.request.conversation import TOOLS_MAX
from gateway.http.endpoint.fields import AnswerBody, Between, Body
from gateway.http.endpoint.response_model import DebugFields, LogprobEntry, ResponseModel

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
