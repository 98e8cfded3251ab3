"""The prompt of one request as the runner gets it, cut to the context where the client allows that."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import orjson

from common.errors import UnsupportedCapability
from common.fill_in import TokenName, fill_in_tokens
from gateway.converters.generation import segment_to_proto, token_ids_segment, tokenize_request
from gateway.core.asked.answers import AnswerRequest, Chat, RawPrompt
from gateway.core.asked.images import Image, split_at_images
from gateway.core.models.routes import ModelInfo
from gateway.core.prepare.literals import Literal, Picture, Segment, Text
from gateway.core.prepare.truncation import DropSearch, droppable_indices, without_oldest
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
    end: str = ""  # the last of the template's text: it may have opened the answer's reasoning
    size_bytes: int = 0  # as it is sent
    bytes_max: float = 0  # text bytes plus ready tokens: no prompt has more tokens than this; infinite with images


async def make_prompt(prompts: ChatPrompts, model: ModelInfo, request: AnswerRequest) -> Prompt:
    """Render what was asked.

    Raises:
        TemplateFailed: the template refused; tell the client.
        InvalidRequest: an image that is none.
    """
    match request.prompt:
        case RawPrompt(suffix=suffix) as raw if suffix:
            return _fill_in(raw, model)
        case RawPrompt(text=text, token_ids=token_ids, images=images):
            pieces = split_at_images(text, images)
            segments = [Picture(piece) if isinstance(piece, Image) else Text(piece) for piece in pieces]
            return await _prompt(token_ids, segments)
        case Chat() as chat:
            rendered = await prompts.make(model, chat, request.think)
            return await _prompt(chat.earlier_token_ids, rendered.segments, rendered.stop)


def _fill_in(raw: RawPrompt, model: ModelInfo) -> Prompt:
    """The text before a gap and the text behind it, between the tokens that the model learned for that."""
    tokens = fill_in_tokens(orjson.loads(model.metadata_json), model.special_tokens)
    if tokens is None:
        raise UnsupportedCapability(f'"{model.name}" does not support insert', param="suffix")
    before, behind = (segment_to_proto(Literal(text)) for text in (raw.text, raw.suffix))
    segments = (_token(tokens.prefix), before, _token(tokens.suffix), behind, _token(tokens.middle))
    return Prompt(
        segments=segments,
        size_bytes=sum(segment.ByteSize() for segment in segments),
        bytes_max=len(raw.text.encode()) + len(raw.suffix.encode()) + 3,
    )


def _token(name: TokenName) -> runner_pb2.Segment:
    return segment_to_proto(Text(name)) if isinstance(name, str) else token_ids_segment((name,))


def surely_fits(prompt: Prompt, context_tokens: int) -> bool:
    """True if no runner has to be asked whether a context holds the prompt."""
    return prompt.bytes_max + _ADDED_TOKENS_MAX <= context_tokens


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
    if not (request.truncate and isinstance(chat, Chat)) or surely_fits(prompt, context_tokens):
        return prompt
    search = DropSearch(0, len(droppable_indices(chat.messages)))
    while not search.found:
        candidate = await _without(search.probe, prompts, model, request, chat)
        search = search.after(fits=await count_tokens(runner, candidate.segments) <= context_tokens)
    return prompt if search.low == 0 else await _without(search.low, prompts, model, request, chat)


async def count_tokens(runner: Runner, segments: Sequence[runner_pb2.Segment]) -> int:
    """How many places of the context the runner would fill: tokens, and rows of images."""
    answer = await runner.tokenize(tokenize_request(segments))
    return len(answer.ids) + answer.media_rows


async def _without(
    drop_count: int, prompts: ChatPrompts, model: ModelInfo, request: AnswerRequest, chat: Chat
) -> Prompt:
    shorter = replace(chat, messages=without_oldest(chat.messages, drop_count))
    return await make_prompt(prompts, model, replace(request, prompt=shorter))


async def _prompt(token_ids: tuple[int, ...], segments: Sequence[Segment], stop: tuple[str, ...] = ()) -> Prompt:
    head = (token_ids_segment(token_ids),) if token_ids else ()
    has_images = any(isinstance(segment, Picture) for segment in segments)
    text_bytes = inf if has_images else sum(len(_text_of(segment).encode()) for segment in segments)
    # Megabytes of base64 are read off the event loop.
    read = await asyncio.to_thread(_to_protos, segments) if has_images else _to_protos(segments)
    return Prompt(
        segments=(*head, *read),
        size_bytes=sum(segment.ByteSize() for segment in (*head, *read)),
        stop=stop,
        end=_text_of(segments[-1]) if segments else "",
        bytes_max=text_bytes + len(token_ids),
    )


def _to_protos(segments: Sequence[Segment]) -> list[runner_pb2.Segment]:
    return [segment_to_proto(segment) for segment in segments]


def _text_of(segment: Segment) -> str:
    return "" if isinstance(segment, Picture) else segment.text
