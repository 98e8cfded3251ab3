"""The prompt of one request as the runner gets it, cut to the context where the client allows that."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.converters import segment_to_proto, token_ids_segment, tokenize_request
from gateway.core.answers import AnswerRequest, Chat, RawPrompt
from gateway.core.literals import Literal, Segment, Text
from gateway.core.routes import ModelInfo
from gateway.core.truncation import DropSearch, droppable_indices, without_oldest
from gateway.ports import Runner
from gateway.templates.chat_prompt import ChatPrompts
from protos import runner_pb2

# Special tokens that a tokenizer may add around the text.
_ADDED_TOKENS_MAX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Segments for the runner, and what ends a turn of a model without a token for it."""

    segments: tuple[runner_pb2.Segment, ...]
    stop: tuple[str, ...] = ()
    bytes_max: int = 0  # text bytes plus ready tokens: no prompt has more tokens than this


async def make_prompt(prompts: ChatPrompts, model: ModelInfo, request: AnswerRequest) -> Prompt:
    """Render what was asked.

    Raises:
        TemplateFailed: the template refused; tell the client.
    """
    match request.prompt:
        case RawPrompt(text=text, token_ids=token_ids):
            return _prompt(token_ids, (Text(text),) if text else ())
        case Chat() as chat:
            rendered = await prompts.make(model, chat, request.think)
            return _prompt(chat.earlier_token_ids, rendered.segments, rendered.stop)


async def fit_prompt(
    prompt: Prompt,
    *,
    prompts: ChatPrompts,
    model: ModelInfo,
    request: AnswerRequest,
    runner: Runner,
    context_tokens: int,
) -> Prompt:
    """Forget the oldest messages until `context_tokens` hold the prompt; what is still too long the runner cuts."""
    chat = request.prompt
    if not (request.truncate and isinstance(chat, Chat)) or prompt.bytes_max + _ADDED_TOKENS_MAX <= context_tokens:
        return prompt
    search = DropSearch(0, len(droppable_indices(chat.messages)))
    while not search.found:
        candidate = await _without(search.probe, prompts, model, request, chat)
        search = search.after(fits=await count_tokens(runner, candidate.segments) <= context_tokens)
    return prompt if search.low == 0 else await _without(search.low, prompts, model, request, chat)


async def count_tokens(runner: Runner, segments: Sequence[runner_pb2.Segment]) -> int:
    """How many tokens the runner would read."""
    answer = await runner.tokenize(tokenize_request(segments))
    return len(answer.ids)


async def _without(
    drop_count: int, prompts: ChatPrompts, model: ModelInfo, request: AnswerRequest, chat: Chat
) -> Prompt:
    shorter = replace(chat, messages=without_oldest(chat.messages, drop_count))
    return await make_prompt(prompts, model, replace(request, prompt=shorter))


def _prompt(token_ids: tuple[int, ...], segments: Sequence[Segment], stop: tuple[str, ...] = ()) -> Prompt:
    head = (token_ids_segment(token_ids),) if token_ids else ()
    text_bytes = sum(len(_text_of(segment).encode()) for segment in segments)
    return Prompt(segments=(*head, *map(segment_to_proto, segments)), stop=stop, bytes_max=text_bytes + len(token_ids))


def _text_of(segment: Text | Literal) -> str:
    return segment.text
