"""Anthropic bodies into requests of the gateway."""

import re
from collections.abc import Mapping
from typing import Any

from common.errors import InvalidRequest
from gateway.core.asked.answer_format import parse_grammar_field
from gateway.core.asked.answers import AnswerRequest, Chat, Dialect, Message, Think, ToolCall
from gateway.core.asked.conversation import template_kwargs
from gateway.core.asked.images import URLS_REFUSED, Image, PlacedImage
from gateway.core.asked.thinking import EFFORTS, parse_think
from gateway.core.asked.tool_choice import anthropic_choice
from gateway.core.prepare.options import OPENAI_DEFAULTS
from gateway.http.anthropic.bodies import AnthropicMessage, AnthropicTool, CountTokensBody, MessagesBody
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.service import Service, checked_options

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_BLOCKS_MAX = 64
_MAX_TOKENS_TEXT = "max_tokens is required and must be positive"


def check_max_tokens(data: object) -> None:
    """Raises InvalidRequest in Anthropic's words for a body without a positive max_tokens."""
    value = data.get("max_tokens") if isinstance(data, dict) else None
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value < 1):
        raise InvalidRequest(_MAX_TOKENS_TEXT, param="max_tokens")


def messages_request(service: Service, exchange: Exchange, body: MessagesBody) -> AnswerRequest:
    """The request of POST /v1/messages.

    Raises:
        PunaError: the body cannot be honoured; `param` names the field.
    """
    if body.thinking is not None and (body.thinking.budget_tokens or 0) >= body.max_tokens:
        raise InvalidRequest("thinking.budget_tokens must be less than max_tokens", param="thinking.budget_tokens")
    own = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "repeat_penalty": body.repeat_penalty,
        "stop": body.stop_sequences or None,
        "num_predict": body.max_tokens,
        "think_budget": body.thinking.budget_tokens if body.thinking and body.thinking.type == "enabled" else None,
    }
    options = {**body.options, **{name: value for name, value in own.items() if value is not None}}
    return AnswerRequest(
        dialect=Dialect.ANTHROPIC,
        model=body.model,
        prompt=chat_of(body),
        options=checked_options(service, exchange, options).values,
        dialect_defaults=OPENAI_DEFAULTS,
        keep_alive_ms=service.keep_alive_ms(body.keep_alive),
        think=think_of(body),
        truncate=body.truncate,
        shift=body.shift,
        format=parse_grammar_field(body.grammar),
    )


def chat_of(body: CountTokensBody) -> Chat:
    """The conversation of a body.

    Raises:
        InvalidRequest: a role, a block or a tool that is not supported.
    """
    for name in ("mcp_servers", "container"):
        if getattr(body, name):
            raise InvalidRequest(f"{name} is not supported", param=name)
    choice = body.tool_choice or {}
    tools = () if choice.get("type") == "none" else tuple(_tool(tool) for tool in body.tools)
    forced = anthropic_choice(choice, tools)
    if forced and getattr(body, "grammar", None):
        raise InvalidRequest("grammar and a forced tool_choice exclude each other", param="grammar")
    system = _system(body.system)
    return Chat(
        messages=(*system, *(turn for message in body.messages for turn in _turns(message))),
        tools=tools,
        forced_tools=forced,
        template_kwargs=template_kwargs(body.chat_template_kwargs),
        parallel_calls=choice.get("disable_parallel_tool_use") is not True,
    )


def think_of(body: CountTokensBody) -> Think | None:
    """Whether to reason. Coding agents ask every model for it, so one that cannot is not an error here."""
    if body.think is not None:
        return parse_think(body.think)
    if body.thinking is not None:
        if body.thinking.type not in ("enabled", "adaptive", "disabled"):
            raise InvalidRequest("thinking.type must be enabled, adaptive or disabled", param="thinking.type")
        return Think.OFF if body.thinking.type == "disabled" else Think.ON
    effort = body.output_config.effort if body.output_config is not None else None
    if effort is None:
        return None
    if effort not in EFFORTS:
        raise InvalidRequest(f"output_config.effort must be one of {', '.join(EFFORTS)}", param="output_config.effort")
    return EFFORTS[effort]


def _system(value: Any) -> tuple[Message, ...]:
    match value:
        case None | "" | []:
            return ()
        case str():
            return (Message(role="system", content=value),)
        case list() if all(isinstance(block, dict) and isinstance(block.get("text"), str) for block in value):
            return (Message(role="system", content="\n".join(block["text"] for block in value)),)
        case _:
            raise InvalidRequest("system must be a string or text blocks", param="system")


def _tool(tool: AnthropicTool) -> Mapping[str, object]:
    if tool.type != "custom":
        raise InvalidRequest(f"tools of type {tool.type[:64]} are not supported", param="tools")
    if not _TOOL_NAME.fullmatch(tool.name):
        raise InvalidRequest("tools must have names of 1 to 64 letters, digits, _ and -", param="tools")
    function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
    return {"type": "function", "function": function}


def _turns(message: AnthropicMessage) -> list[Message]:
    """One message of theirs as ours: results of tools are turns of their own, before the text beside them."""
    if message.role not in ("user", "assistant"):
        raise InvalidRequest(f'messages: role "{message.role[:64]}" must be user or assistant', param="messages")
    if isinstance(message.content, str):
        return [Message(role=message.role, content=message.content)]
    if not isinstance(message.content, list) or len(message.content) > _BLOCKS_MAX:
        raise InvalidRequest(f"content must be a string or at most {_BLOCKS_MAX} blocks", param="messages")
    turn = _Turn(message.role)
    for block in message.content:
        turn.add(block)
    return turn.messages()


class _Turn:
    """Gathers the blocks of one message."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._text = ""
        self._images: list[PlacedImage] = []
        self._thinking = ""
        self._calls: list[ToolCall] = []
        self._results: list[Message] = []
        self._last_was_text = False

    def add(self, block: object) -> None:
        """Take a block.

        Raises:
            InvalidRequest: of a kind that is not supported.
        """
        was_text, self._last_was_text = self._last_was_text, False
        match block:
            case {"type": "text", "text": str(text)}:
                self._add_text(text, was_text)
            case {"type": "document", "source": {"type": "text", "data": str(text)}}:
                self._add_text(text, was_text)
            case {"type": "image", "source": source}:
                self._images.append(PlacedImage(_image(source), len(self._text)))
            case {"type": "thinking", "thinking": str(text)}:
                self._thinking += text
            case {"type": "redacted_thinking"}:
                pass
            case {"type": "tool_use", "id": str(id_), "name": str(name), "input": dict() as arguments}:
                self._calls.append(ToolCall(id=id_, name=name, arguments=arguments))
            case {"type": "tool_result", "tool_use_id": str(id_)}:
                assert isinstance(block, dict)
                self._results.append(_result(id_, block))
            case {"type": str(kind)}:
                raise InvalidRequest(f"content blocks of type {kind[:64]} are not supported", param="messages")
            case _:
                raise InvalidRequest("content blocks must be objects with a type", param="messages")

    def messages(self) -> list[Message]:
        """The turns."""
        has_own = self._text or self._images or self._thinking or self._calls or not self._results
        own = Message(
            role=self._role,
            content=self._text,
            images=tuple(self._images),
            thinking=self._thinking,
            tool_calls=tuple(self._calls),
        )
        return [*self._results, *([own] if has_own else [])]

    def _add_text(self, text: str, was_text: bool) -> None:
        # A line end between texts, so that no two of them make a special token together.
        self._text += f"\n{text}" if was_text else text
        self._last_was_text = True


def _result(tool_use_id: str, block: Mapping[str, Any]) -> Message:
    inner = _Turn("tool")
    content = block.get("content", "")
    for part in [{"type": "text", "text": content}] if isinstance(content, str) else content or []:
        inner.add(part)
    (message,) = inner.messages()
    text = f"Error: {message.content}" if block.get("is_error") is True else message.content
    return Message(role="tool", content=text, images=message.images, tool_call_id=tool_use_id)


def _image(source: object) -> Image:
    match source:
        case {"type": "base64", "data": str(data)}:
            return Image(data)
        case {"type": "url"}:
            raise InvalidRequest(URLS_REFUSED, param="messages")
        case _:
            raise InvalidRequest("images must have a base64 source", param="messages")
