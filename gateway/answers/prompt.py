"""The prompt of one request as the runner gets it, cut to the context where the client allows that."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from math import inf

import orjson

from common.errors import UnsupportedCapability
from common.fill_in import TokenName, fill_in_tokens
from gateway.converters.generation import tokenize_request
from gateway.core.models.routes import ModelInfo
from gateway.core.prepare.literals import Literal, Picture, Segment, Text, TokenIds
from gateway.core.prepare.prompt import Prompt, prompt_of
from gateway.core.prepare.turns import DropSearch, droppable_indices, without_oldest
from gateway.core.request.answers import AnswerRequest, Chat, RawPrompt
from gateway.core.request.images import RequestImage, decode_image, split_at_images
from gateway.large_texts import beside_loop
from gateway.templates.chat_prompt import ChatPrompts
from protos import runner_pb2
from runner.client import RunnerClient

# Special tokens that a tokenizer may add around the text.
_ADDED_TOKENS_MAX = 2


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
            ids = [TokenIds(token_ids)] if token_ids else []
            # Megabytes of base64 are read off the event loop.
            size = inf if images else len(text)
            return await beside_loop(size, lambda: prompt_of([*ids, *_decoded(split_at_images(text, images))]))
        case Chat() as chat:
            return await prompts.make(model, chat, request.think)


def _fill_in(raw: RawPrompt, model: ModelInfo) -> Prompt:
    """Join the text before a gap and the text behind it with the tokens that the model learned for that."""
    tokens = fill_in_tokens(orjson.loads(model.metadata_json), model.special_tokens)
    if tokens is None:
        raise UnsupportedCapability(f'"{model.name}" does not support insert', param="suffix")
    before, behind = Literal(raw.text), Literal(raw.suffix)
    return prompt_of([_token(tokens.prefix), before, _token(tokens.suffix), behind, _token(tokens.middle)])


def _token(name: TokenName) -> Segment:
    return Text(name) if isinstance(name, str) else TokenIds((name,))


def _decoded(pieces: Iterable[str | RequestImage]) -> list[Segment]:
    return [Picture(decode_image(piece)) if isinstance(piece, RequestImage) else Text(piece) for piece in pieces]


def surely_fits(prompt: Prompt, context_tokens: int) -> bool:
    """Return True if no runner has to be asked whether a context holds the prompt."""
    return prompt.tokens_max + _ADDED_TOKENS_MAX <= context_tokens


async def fit_prompt(
    prompt: Prompt,
    *,
    prompts: ChatPrompts,
    model: ModelInfo,
    request: AnswerRequest,
    runner: RunnerClient,
    context_tokens: int,
) -> Prompt:
    """Forget the oldest messages until `context_tokens` hold the prompt; what is still too long the runner cuts."""
    chat = request.prompt
    if not (request.truncate and isinstance(chat, Chat)) or surely_fits(prompt, context_tokens):
        return prompt

    async def without(count: int) -> Prompt:
        shorter = replace(chat, messages=without_oldest(chat.messages, count))
        return await make_prompt(prompts, model, replace(request, prompt=shorter))

    search = DropSearch(0, len(droppable_indices(chat.messages)))
    while not search.found:
        candidate = await without(search.probe)
        search = search.after(fits=await count_tokens(runner, candidate) <= context_tokens)
    return prompt if search.low == 0 else await without(search.low)


async def count_tokens(runner: RunnerClient, prompt: Prompt) -> int:
    """Count the places of the context that the runner would fill: tokens, and rows of images."""
    answer = await tokenize(runner, prompt)
    return len(answer.ids) + answer.media_rows


async def tokenize(runner: RunnerClient, prompt: Prompt) -> runner_pb2.TokenizeResponse:
    """Have a runner read a prompt as an answer would."""
    return await runner.tokenize(await beside_loop(prompt.size_bytes, partial(tokenize_request, prompt)))
