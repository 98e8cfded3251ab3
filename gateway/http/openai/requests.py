"""OpenAI bodies into requests of the gateway, one per choice."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from common.errors import InvalidRequest
from gateway.core.request.answer_format import NEWER, only_one, parse_grammar_field, parse_guided, parse_response_format
from gateway.core.request.answers import AnswerRequest, Chat, Dialect, Message, RawPrompt, Think, ToolCall
from gateway.core.request.conversation import template_kwargs
from gateway.core.request.images import URLS_REFUSED, PlacedImage, RequestImage
from gateway.core.request.logprobs import check_top_logprobs
from gateway.core.request.option_table import OptionValue
from gateway.core.request.thinking import parse_think
from gateway.core.request.tool_choice import offered_tools, openai_choice
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.service import Service, checked_options
from gateway.http.openai.bodies import ChatCompletionBody, CompletionBody, OpenAiAnswerBody, OpenAiMessage

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# Fields that change an answer of the servers that have them, and nothing here.
_NOT_OBEYED = ("ignore_eos", "min_tokens", "stop_token_ids", "store", "verbosity", "web_search_options")
_GUIDED = ("guided_json", "guided_choice", "guided_grammar", "guided_regex", NEWER)
_PARTS = ("text", "input_text", "output_text", "refusal", "image_url")
_PARTS_MAX = 64
_PROMPTS_MAX = 32
# Spreads the seeds of choices over the 64 bits (the golden ratio, as in SplitMix64).
_SEED_STEP = 0x9E3779B97F4A7C15
_TOKEN_ID_MAX = 2**32 - 1


def chat_requests(service: Service, exchange: Exchange, body: ChatCompletionBody) -> list[AnswerRequest]:
    """Parse the requests of POST /v1/chat/completions, in the order of their choices.

    Raises:
        PunaError: the body cannot be honoured; `param` names the field.
    """
    if not body.messages:
        raise InvalidRequest("[] is too short - 'messages'", param="messages")
    _refuse_chat_fields(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    top_logprobs = check_top_logprobs(body.top_logprobs or 0)
    offered = checked_tools(_functions(exchange, body.tools)) if body.tool_choice != "none" else ()
    tools = offered_tools(body.tool_choice, offered)
    chat = Chat(
        messages=tuple(_message(message, f"messages[{index}]") for index, message in enumerate(body.messages)),
        tools=tools,
        forced_tools=openai_choice(body.tool_choice, tools),
        parallel_calls=body.parallel_tool_calls,
        template_kwargs=template_kwargs(body.chat_template_kwargs),
    )
    request = _request(
        service,
        exchange,
        body,
        chat,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        think=_think(body),
        top_logprobs=top_logprobs if body.logprobs else None,
    )
    return [_choice(request, index) for index in range(body.n)]


def completion_requests(service: Service, exchange: Exchange, body: CompletionBody) -> list[AnswerRequest]:
    """Parse the requests of POST /v1/completions: prompt i, choice j has index i * n + j.

    Raises:
        PunaError: the body cannot be honoured; `param` names the field.
    """
    if body.best_of is not None and body.best_of != body.n:
        raise InvalidRequest("best_of must equal n", param="best_of")
    prompts = parse_prompts(body.prompt)
    if body.suffix:
        if any(prompt.token_ids for prompt in prompts):
            raise InvalidRequest("suffix works with text prompts only", param="suffix")
        prompts = [replace(prompt, suffix=body.suffix) for prompt in prompts]
    if body.echo and (body.logprobs is not None or any(prompt.token_ids for prompt in prompts)):
        raise InvalidRequest("echo works with text prompts and without logprobs only", param="echo")
    top_logprobs = None if body.logprobs is None else check_top_logprobs(body.logprobs, param="logprobs")
    requests = [
        _request(service, exchange, body, prompt, max_tokens=body.max_tokens, think=None, top_logprobs=top_logprobs)
        for prompt in prompts
    ]
    return [_choice(request, index) for request in requests for index in range(body.n)]


def parse_prompts(prompt: object) -> list[RawPrompt]:
    """Parse a string, a list of strings, token ids, or a list of lists of token ids.

    Raises:
        InvalidRequest: anything else, an empty list, or too many prompts.
    """
    if isinstance(prompt, str):
        return [RawPrompt(text=prompt)]
    if is_token_ids(prompt):
        return [RawPrompt(token_ids=tuple(prompt))]  # type: ignore[arg-type]  # checked by is_token_ids
    if isinstance(prompt, list) and 1 <= len(prompt) <= _PROMPTS_MAX:
        if all(isinstance(item, str) for item in prompt):
            return [RawPrompt(text=item) for item in prompt]
        if all(is_token_ids(item) for item in prompt):
            return [RawPrompt(token_ids=tuple(item)) for item in prompt]
    raise InvalidRequest(
        f"prompt must be a string, token ids, or a list of 1 to {_PROMPTS_MAX} of either", param="prompt"
    )


def is_token_ids(value: object) -> bool:
    """Return True for a list of token ids that is not empty."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item <= _TOKEN_ID_MAX for item in value)
    )


def _request(
    service: Service,
    exchange: Exchange,
    body: OpenAiAnswerBody,
    prompt: Chat | RawPrompt,
    *,
    max_tokens: int | None,
    think: Think | None,
    top_logprobs: int | None,
) -> AnswerRequest:
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream to be true", param="stream_options")
    own = {
        **body.sampling(),
        "seed": body.seed,
        "stop": [body.stop] if isinstance(body.stop, str) else body.stop,
        "frequency_penalty": body.frequency_penalty,
        "presence_penalty": body.presence_penalty,
        "logit_bias": body.logit_bias,
        "num_predict": max_tokens,
    }
    guided = parse_guided({name: getattr(body, name) for name in _GUIDED})
    exchange.ignore(*guided.ignored, *(name for name in _NOT_OBEYED if getattr(body, name)))
    return AnswerRequest(
        dialect=Dialect.OPENAI,
        model=body.model,
        prompt=prompt,
        options=checked_options(service, exchange, body.options, own),
        keep_alive_ms=service.keep_alive_ms(body.keep_alive),
        think=think,
        top_logprobs=top_logprobs,
        truncate=body.truncate,
        shift=body.shift,
        format=only_one(
            parse_response_format(body.response_format), parse_grammar_field(body.grammar), *guided.formats
        ),
    )


def _choice(request: AnswerRequest, index: int) -> AnswerRequest:
    """Derive a choice: the first uses the seed itself, the others one derived from it, if there is one."""
    seed = request.options.get("seed", -1)
    if index == 0 or not isinstance(seed, int) or seed == -1:
        return request
    options: dict[str, OptionValue] = {**request.options, "seed": (seed + index * _SEED_STEP) % 2**63}
    return replace(request, options=options)


def _refuse_chat_fields(body: ChatCompletionBody) -> None:
    """Refuse fields that are known, change the answer, and cannot be honoured."""
    for name in ("functions", "function_call", "audio"):
        if getattr(body, name) is not None:
            raise InvalidRequest(f"{name} is not supported", param=name)
    if body.modalities not in (None, ["text"]):
        raise InvalidRequest("only the modality text is supported", param="modalities")
    if (body.grammar or body.guided_grammar) and body.tool_choice not in (None, "none", "auto"):
        raise InvalidRequest("grammar and a forced tool_choice exclude each other", param="grammar")


def _functions(exchange: Exchange, tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Drop the tools that a server would run itself; their names stand in a header."""
    found: list[Mapping[str, Any]] = []
    for index, tool in enumerate(tools):
        kind = tool.get("type")
        if kind == "function" or not isinstance(kind, str) or not _WORD.fullmatch(kind):
            found.append(tool)
        else:
            exchange.ignore(f"tools[{index}].{kind}")
    return found


def checked_tools(tools: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, object], ...]:
    """Translate tools to the form of templates.

    Raises:
        InvalidRequest: one is no function with a name.
    """
    for index, tool in enumerate(tools):
        function = tool.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if tool.get("type") != "function" or not isinstance(name, str) or not name:
            raise InvalidRequest(f"tools[{index}] is no function with a valid name", param=f"tools[{index}]")
    return tuple(tools)


def _think(body: ChatCompletionBody) -> Think | None:
    effort = body.reasoning_effort or (body.reasoning.effort if body.reasoning else None)
    return parse_think(body.think, effort, param="reasoning_effort")


def _message(message: OpenAiMessage, place: str) -> Message:
    if message.role not in _ROLES:
        raise InvalidRequest(f'invalid message role: "{message.role[:64]}"', param="messages")
    if message.content is None and message.role != "assistant":
        raise InvalidRequest(f"messages must have content: {place} has none", param="messages")
    content, images = _content(message.content, f"{place}.content")
    return Message(
        role=_ROLES[message.role],
        content=content,
        images=images,
        thinking=message.reasoning_content or message.reasoning,
        tool_calls=tuple(
            _tool_call(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls)
        ),
        tool_name=message.name if message.role == "tool" else "",
        tool_call_id=message.tool_call_id,
    )


def _content(content: object, place: str) -> tuple[str, tuple[PlacedImage, ...]]:
    """Return the text of a message, and the images at their places in it.

    Neighbouring texts are joined by line ends, so that no two of them make a special token together.
    """
    match content:
        case None:
            return "", ()
        case str():
            return content, ()
        case list() if len(content) <= _PARTS_MAX:
            return joined_parts([_part(part, f"{place}[{index}]") for index, part in enumerate(content)])
        case _:
            raise InvalidRequest(f"content must be a string or at most {_PARTS_MAX} parts", param="messages")


def joined_parts(parts: list[str | RequestImage]) -> tuple[str, tuple[PlacedImage, ...]]:
    """Join parts to one text, with the places of the images in it."""
    text = ""
    images: list[PlacedImage] = []
    for index, part in enumerate(parts):
        if isinstance(part, RequestImage):
            images.append(PlacedImage(part, len(text)))
        else:
            text += f"\n{part}" if index and not isinstance(parts[index - 1], RequestImage) else part
    return text, tuple(images)


def _part(part: object, place: str) -> str | RequestImage:
    match part:
        case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
            return text
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            if url.startswith(("http:", "https:")):
                raise InvalidRequest(URLS_REFUSED, param="messages")
            return RequestImage(url)
        case {"type": str(kind)} if kind not in _PARTS:
            raise InvalidRequest(
                f'{place} is of type "{kind[:64]}"; content parts must be of type text, image_url or refusal',
                param="messages",
            )
        case _:
            raise InvalidRequest(f"{place} must have a text, an image_url with its url, or a refusal", param="messages")


def _tool_call(call: Mapping[str, Any], place: str) -> ToolCall:
    match call:
        case {"function": {"name": str(name), **rest}} if isinstance(
            arguments := rest.get("arguments"), str | dict | None
        ):
            return ToolCall(id=str(call.get("id") or ""), name=name, arguments=call_arguments(arguments or ""))
        case _:
            raise InvalidRequest(f"{place} must have a function with name and arguments", param="messages")


def call_arguments(arguments: str | dict[str, Any]) -> str | dict[str, Any]:
    """Read a call's arguments, which templates write as JSON themselves.

    Calls without parameters come back as an empty text. Text that is no JSON reaches templates as it is.
    """
    if isinstance(arguments, dict):
        return arguments
    if not arguments.strip():
        return {}
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    return value if isinstance(value, dict) else arguments
