"""Bodies of /v1/responses into requests of the gateway."""

from collections.abc import Mapping
from typing import Any

from common.errors import InvalidRequest
from gateway.core.asked.answer_format import AnswerFormat, only_one, parse_grammar_field, parse_response_format
from gateway.core.asked.answers import AnswerRequest, Chat, Dialect, Message, Think, ToolCall
from gateway.core.asked.conversation import template_kwargs
from gateway.core.asked.images import URLS_REFUSED, Image, PlacedImage
from gateway.core.asked.logprobs import check_top_logprobs
from gateway.core.asked.thinking import EFFORTS, parse_think
from gateway.core.asked.tool_choice import openai_choice
from gateway.core.prepare.options import OPENAI_DEFAULTS
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.service import Service, checked_options
from gateway.http.openai.requests import call_arguments, checked_tools, joined_parts
from gateway.http.openai.responses_bodies import ResponsesBody

LOGPROBS_INCLUDE = "message.output_text.logprobs"
_ITEMS_MAX = 2048
_FUNCTION_KEYS = ("name", "description", "parameters", "strict")
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def responses_request(service: Service, exchange: Exchange, body: ResponsesBody) -> AnswerRequest:
    """The request of a body.

    Raises:
        PunaError: it cannot be honoured; `param` names the field.
    """
    for name in ("previous_response_id", "conversation", "background"):
        if getattr(body, name):
            raise InvalidRequest(f"{name} is not supported: nothing is stored between requests", param=name)
    if body.truncation not in ("auto", "disabled"):
        raise InvalidRequest("truncation must be auto or disabled", param="truncation")
    tools = () if body.tool_choice == "none" else _tools(body.tools)
    if body.grammar and body.tool_choice not in (None, "none", "auto"):
        raise InvalidRequest("grammar and a forced tool_choice exclude each other", param="grammar")
    own = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "num_predict": body.max_output_tokens,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "repeat_penalty": body.repeat_penalty,
    }
    options = {**body.options, **{name: value for name, value in own.items() if value is not None}}
    wants_logprobs = body.top_logprobs is not None or LOGPROBS_INCLUDE in body.include
    return AnswerRequest(
        dialect=Dialect.OPENAI,
        model=body.model,
        prompt=Chat(
            messages=_messages(body),
            tools=tools,
            forced_tools=openai_choice(body.tool_choice, tools),
            template_kwargs=template_kwargs(body.chat_template_kwargs),
            parallel_calls=body.parallel_tool_calls,
        ),
        options=checked_options(service, exchange, options).values,
        dialect_defaults=OPENAI_DEFAULTS,
        keep_alive_ms=service.keep_alive_ms(body.keep_alive),
        think=_think(body),
        top_logprobs=check_top_logprobs(body.top_logprobs or 0) if wants_logprobs else None,
        truncate=body.truncate or body.truncation == "auto",
        shift=body.shift,
        format=only_one(_format(body), parse_grammar_field(body.grammar)),
    )


def _messages(body: ResponsesBody) -> tuple[Message, ...]:
    system = (Message(role="system", content=body.instructions),) if body.instructions else ()
    if isinstance(body.input, str):
        return (*system, Message(role="user", content=body.input))
    if not isinstance(body.input, list) or not 1 <= len(body.input) <= _ITEMS_MAX:
        raise InvalidRequest(f"input must be a string or 1 to {_ITEMS_MAX} items", param="input")
    messages: list[Message] = []
    for index, item in enumerate(body.input):
        _add_item(messages, item, f"input[{index}]")
    return (*system, *messages)


def _add_item(messages: list[Message], item: object, where: str) -> None:
    """Add an item; what one answer said in several items is one turn again."""
    match item:
        case {"type": "function_call", "call_id": str(id_), "name": str(name), "arguments": str(arguments)}:
            call = ToolCall(id=id_, name=name, arguments=call_arguments(arguments))
            _extend(messages, Message(role="assistant", tool_calls=(call,)))
        case {"type": "function_call_output", "call_id": str(id_), "output": output}:
            text, images = _content(output, where)
            messages.append(Message(role="tool", content=text, images=images, tool_call_id=id_))
        case {"type": "reasoning", "summary": list() as summary}:
            text = "\n".join(part["text"] for part in summary if isinstance(part, dict) and "text" in part)
            _extend(messages, Message(role="assistant", thinking=text))
        case {"role": str(role), "content": content, **rest} if rest.get("type", "message") == "message":
            if role not in _ROLES:
                raise InvalidRequest(f'invalid message role: "{role[:64]}"', param=where)
            text, images = _content(content, where)
            message = Message(role=_ROLES[role], content=text, images=images)
            if role == "assistant":
                _extend(messages, message)
            else:
                messages.append(message)
        case {"type": str(kind)}:
            raise InvalidRequest(f"items of type {kind[:64]} are not supported", param=where)
        case _:
            raise InvalidRequest(f"{where} is no item", param=where)


def _extend(messages: list[Message], said: Message) -> None:
    last = messages[-1] if messages and messages[-1].role == "assistant" else None
    if last is None or (said.content and (last.content or last.tool_calls)):
        messages.append(said)
        return
    messages[-1] = Message(
        role="assistant",
        content=last.content + said.content,
        thinking=last.thinking + said.thinking,
        tool_calls=last.tool_calls + said.tool_calls,
    )


def _content(content: object, where: str) -> tuple[str, tuple[PlacedImage, ...]]:
    if isinstance(content, str):
        return content, ()
    if not isinstance(content, list):
        raise InvalidRequest(f"{where} must have a string or parts as content", param=where)
    return joined_parts([_part(part, where) for part in content])


def _part(part: object, where: str) -> str | Image:
    match part:
        case {"type": "input_text" | "output_text" | "text", "text": str(text)}:
            return text
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case {"type": "input_image", "image_url": str(url)}:
            if url.startswith(("http:", "https:")):
                raise InvalidRequest(URLS_REFUSED, param=where)
            return Image(url)
        case _:
            raise InvalidRequest(f"{where} has a content part that is not supported", param=where)


def _tools(tools: list[dict[str, Any]]) -> tuple[Mapping[str, object], ...]:
    """Functions, which stand flat here and one level deeper in the other dialects."""
    found = []
    for index, tool in enumerate(tools):
        if tool.get("type") != "function":
            raise InvalidRequest("only tools of type function are supported", param=f"tools[{index}]")
        function = {key: tool[key] for key in _FUNCTION_KEYS if tool.get(key) is not None}
        found.append({"type": "function", "function": function})
    return checked_tools(found)


def _think(body: ResponsesBody) -> Think | None:
    effort = body.reasoning.effort if body.reasoning is not None else None
    if body.think is not None or effort is None:
        return parse_think(body.think)
    if effort not in EFFORTS:
        raise InvalidRequest(f"reasoning.effort must be one of {', '.join(EFFORTS)}", param="reasoning.effort")
    return EFFORTS[effort]


def _format(body: ResponsesBody) -> AnswerFormat | None:
    """`text.format`: as response_format, but flat."""
    wanted = body.text.format if body.text is not None else None
    if wanted is None:
        return None
    if wanted.get("type") == "json_schema":
        return parse_response_format({"type": "json_schema", "json_schema": wanted}, "text.format")
    return parse_response_format(wanted, "text.format")
