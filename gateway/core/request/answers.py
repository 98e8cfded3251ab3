"""Requests and answers, in no dialect: every dialect translates to and from these."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import orjson

from gateway.core.request.answer_format import AnswerFormat
from gateway.core.request.images import PlacedImage
from gateway.core.request.option_table import OptionValue


class Dialect(StrEnum):
    """Family of routes and bodies that a request came by; also the label of metrics."""

    OLLAMA = "ollama"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that an assistant message made."""

    name: str
    arguments: Mapping[str, object] | str
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str = ""
    thinking: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_name: str = ""
    tool_call_id: str = ""
    images: tuple[PlacedImage, ...] = ()  # in the content


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A conversation: the model's template makes the prompt."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, object], ...] = ()
    template_kwargs: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    template: str = ""  # instead of the model's own
    parallel_calls: bool = True  # False: the answer ends after its first tool call
    forced_tools: tuple[str, ...] = ()  # the answer calls one of these, and is nothing else
    earlier_token_ids: tuple[int, ...] = ()  # tokens that stand before the rendered prompt (/api/generate `context`)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawPrompt:
    """Text or tokens that the model reads as they are."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    images: tuple[PlacedImage, ...] = ()  # in the text
    suffix: str = ""  # the answer stands between the text and this


class Think(StrEnum):
    """Effort of reasoning before the answer."""

    ON = "true"
    OFF = "false"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    MAX = "max"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRequest:
    """One request for one answer. Option values passed the table already; the model may narrow them further."""

    dialect: Dialect
    model: str  # as the client wrote it
    prompt: Chat | RawPrompt
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    keep_alive_ms: int | None = None
    think: Think | None = None  # None: on for a model that can
    top_logprobs: int | None = None
    truncate: bool = False
    shift: bool = False
    format: AnswerFormat | None = None
    wants_context: bool = False  # Done carries the ids of prompt and answer
    deadline_s: float | None = None  # on the gateway's clock; None: its own limit

    @property
    def is_json(self) -> bool:
        """True if the answer behind its reasoning is JSON, whatever it looks like."""
        return self.format is not None and bool(self.format.json_schema) and not self.forces_tools

    @property
    def forces_tools(self) -> bool:
        """True if the answer must be calls of tools."""
        return isinstance(self.prompt, Chat) and bool(self.prompt.forced_tools)


def images_of(prompt: Chat | RawPrompt) -> tuple[PlacedImage, ...]:
    """List all images of a request."""
    if isinstance(prompt, RawPrompt):
        return prompt.images
    return tuple(image for message in prompt.messages for image in message.images)


class FinishReason(StrEnum):
    """Reason for the end of an answer."""

    END_TOKEN = "end_token"  # noqa: S105  # a token of text
    STOP_STRING = "stop_string"
    LENGTH = "length"
    CONTEXT_FULL = "context_full"
    REPETITION = "repetition"  # one token, over and over
    TOOL_CALLS = "tool_calls"

    @property
    def is_cut(self) -> bool:
        """Return True if a limit ended the answer, and not the model or a stop string."""
        return self in (FinishReason.LENGTH, FinishReason.CONTEXT_FULL, FinishReason.REPETITION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """Waits for a slot, or its model for its turn; 1 is next."""

    position: int
    waits_for: str = ""  # what must happen first; empty: not known
    eta_s: float | None = None  # seconds until the model can serve; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadUpdate:
    """The model is being loaded."""

    fraction: float
    bytes_done: int = 0
    bytes_total: int = 0
    waits_for: str = ""  # its files, while another node sends them
    eta_s: float | None = None  # seconds until the model can serve; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptProgress:
    """The runner reads the prompt. The first event of a runner."""

    done_tokens: int
    total_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAlternative:
    """A token that could have been chosen."""

    id: int
    piece: bytes
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedToken:
    """A token of the answer. `logprob` None: not asked for."""

    id: int
    piece: bytes
    logprob: float | None = None
    top: tuple[TokenAlternative, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDelta:
    """A piece of a tool call. The first of a call has its id and name, the others raw characters of its arguments."""

    index: int  # of the call within the answer
    id: str = ""
    name: str = ""
    arguments: str = ""

    def arguments_object(self) -> dict[str, object]:
        """Return the arguments of a whole call. Clients insist on an object; other text stands in one as it is."""
        try:
            value = orjson.loads(self.arguments)
        except orjson.JSONDecodeError:
            value = None
        return value if isinstance(value, dict) else {"arguments": self.arguments}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A piece of the answer: content, reasoning or tool calls; tokens are those behind it."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[CallDelta, ...] = ()
    tokens: tuple[GeneratedToken, ...] = ()

    @classmethod
    def joined(cls, deltas: Iterable["Delta"]) -> "Delta":
        """Join many pieces."""
        parts = list(deltas)
        return cls(
            content="".join(part.content for part in parts),
            reasoning="".join(part.reasoning for part in parts),
            tool_calls=tuple(whole_calls(call for part in parts for call in part.tool_calls)),
            tokens=tuple(token for part in parts for token in part.tokens),
        )


def whole_calls(pieces: Iterable[CallDelta]) -> list[CallDelta]:
    """Join the pieces of each call."""
    calls: dict[int, CallDelta] = {}
    for piece in pieces:
        known = calls.get(piece.index, CallDelta(index=piece.index))
        calls[piece.index] = CallDelta(
            index=piece.index,
            id=known.id or piece.id,
            name=known.name or piece.name,
            arguments=known.arguments + piece.arguments,
        )
    return list(calls.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerUsage:
    """Counts and times of one answer, as the runner measured them; total and load are the gateway's."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    total_duration_ns: int = 0
    load_duration_ns: int = 0
    prompt_duration_ns: int = 0
    generate_duration_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The last event of an answer, exactly once."""

    reason: FinishReason
    usage: AnswerUsage
    seed: int
    stop_string: str = ""
    resumes: int = 0
    context_token_ids: tuple[int, ...] = ()


AnswerEvent = Queued | LoadUpdate | PromptProgress | Delta | Done
LoadEvent = Queued | LoadUpdate
