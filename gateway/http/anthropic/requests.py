"""Anthropic bodies into requests of the gateway."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from common.errors import InvalidRequest
from gateway.core.prepare.turns import with_system_first
from gateway.core.request.answer_format import AnswerFormat, only_one, parse_grammar_field, parse_output_format
from gateway.core.request.answers import AnswerRequest, Chat, Dialect, Message, Think
from gateway.core.request.conversation import template_kwargs
from gateway.core.request.thinking import parse_think
from gateway.core.request.tool_choice import anthropic_choice
from gateway.http.anthropic.blocks import Turn, checked_blocks, our_call_id
from gateway.http.anthropic.bodies import AnthropicMessage, AnthropicTool, CountTokensBody, MessagesBody
from gateway.http.anthropic.tools import offered_tools
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.fields import validated
from gateway.http.endpoint.service import Service, checked_options

# Claude Code writes it in front of its system text for the original server, which takes it away. Its `cch` differs in
# every request, so no prefix would be found again. vLLM and SGLang take it away, llama.cpp evens it out.
_BILLING_HEADER = re.compile(r"x-anthropic-billing-header:(?:[ \t]*[\w-]+=[^;\n]*;)*[ \t]*\n?")
_UNEXPECTED_RESULT = (
    "{}: unexpected `tool_use_id` found in `tool_result` blocks: {}. "
    "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
)


@dataclass(slots=True)
class MessagesReader:
    """Gathers messages. Neighbours of one role are one turn, as at the original."""

    messages: list[Message] = field(default_factory=list)
    added_tools: list[AnthropicTool] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    _turn: Turn | None = None
    _called: set[str] = field(default_factory=set)

    def add_system(self, value: Any) -> None:
        """Take the text that stands before all messages.

        Raises:
            InvalidRequest: neither a string nor text blocks.
        """
        match value:
            case None:
                texts = []
            case str():
                texts = [value]
            case list() if all(isinstance(block, dict) and isinstance(block.get("text"), str) for block in value):
                texts = [block["text"] for block in value]
            case _:
                raise InvalidRequest("system must be a string or text blocks", param="system")
        if texts:
            texts[0] = _BILLING_HEADER.sub("", texts[0], count=1) if texts[0].startswith("x-anthropic-") else texts[0]
        if text := "\n".join(text for text in texts if text):
            self.messages.append(Message(role="system", content=text))

    def add_all(self, messages: Sequence[AnthropicMessage]) -> None:
        """Take the messages in order.

        Raises:
            InvalidRequest: a role or a block that is not supported; the text begins with its place.
        """
        last_question = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
        for index, message in enumerate(messages):
            place = f"messages.{index}"
            if message.role in ("user", "assistant"):
                self._add_turn(message, place)
            elif message.role == "system":
                self._end_turn()
                if message.clear_at != "next_user_message" or index > last_question:
                    self._add_later_system(message.content, place)
            else:
                text = f'{place}.role: "{message.role[:64]}" must be user, assistant or system'
                raise InvalidRequest(text, param="messages")
        self._end_turn()
        self.messages = list(with_system_first(self.messages))

    def _add_turn(self, message: AnthropicMessage, place: str) -> None:
        blocks = checked_blocks(message.content, place)
        for index, block in enumerate(blocks):
            self._check_ids(block, message.role, f"{place}.content.{index}")
        if self._turn is None or self._turn.role != message.role:
            self._end_turn()
            self._turn = Turn(message.role)
        self._turn.add_all(blocks, f"{place}.content")

    def _check_ids(self, block: object, role: str, place: str) -> None:
        match block:
            case {"type": "tool_use", "id": str(id_)} if role == "assistant":
                if our_call_id(id_) in self._called:
                    raise InvalidRequest(f"{place}: `tool_use` ids must be unique", param="messages")
                self._called.add(our_call_id(id_))
            case {"type": "tool_result", "tool_use_id": str(id_)} if our_call_id(id_) not in self._called:
                raise InvalidRequest(_UNEXPECTED_RESULT.format(place, id_[:64]), param="messages")

    def _end_turn(self) -> None:
        if self._turn is not None:
            self.messages += self._turn.messages()
        self._turn = None

    def _add_later_system(self, content: object, place: str) -> None:
        turn = Turn("system")
        for index, block in enumerate(checked_blocks("" if content is None else content, place)):
            match block:
                case {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}}:
                    self.added_tools.append(validated(AnthropicTool, definition))
                case {"type": "tool_addition"}:
                    pass  # every tool is offered from the beginning: another list would change the whole prompt
                case {"type": "tool_removal"}:
                    self.ignored.append("tool_removal")
                case _:
                    turn.add(block, f"{place}.content.{index}")
        self.messages += [message for message in turn.messages() if message.content or message.images]


# They change the answer, or what is kept of it.
_REFUSED = ("mcp_servers", "container", "compaction", "thread")
# They change at what price, how fast or where the original answers.
_WITHOUT_EFFECT = (
    "billing_policy",
    "diagnostics",
    "fallback_credit_token",
    "fallbacks",
    "inference_geo",
    "service_tier",
    "speed",
    "user_profile_id",
    "workspace_id",
)
_THINKING_ON, _THINKING_OFF = ("enabled", "adaptive"), ("between_tools", "disabled")
# With this beta the budget is that of all reasoning between calls of tools, and may be larger than one answer.
_INTERLEAVED = "interleaved-thinking"
_MAX_TOKENS_TEXT = "max_tokens is required and must be positive"


def check_max_tokens(data: object) -> None:
    """Check in Anthropic's words that a body has a positive max_tokens; raises InvalidRequest."""
    value = data.get("max_tokens") if isinstance(data, dict) else None
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value < 1):
        raise InvalidRequest(_MAX_TOKENS_TEXT, param="max_tokens")


def messages_request(service: Service, exchange: Exchange, body: MessagesBody) -> AnswerRequest:
    """Parse the request of POST /v1/messages.

    Raises:
        PunaError: the body cannot be honoured; `param` names the field.
    """
    interleaved = _INTERLEAVED in exchange.headers.get("anthropic-beta", "")
    if body.thinking is not None and not interleaved and (body.thinking.budget_tokens or 0) >= body.max_tokens:
        raise InvalidRequest("thinking.budget_tokens must be less than max_tokens", param="thinking.budget_tokens")
    own = {
        **body.sampling(),
        "stop": body.stop_sequences or None,
        "num_predict": body.max_tokens,
        "think_budget": body.thinking.budget_tokens if body.thinking and body.thinking.type == "enabled" else None,
    }
    return AnswerRequest(
        dialect=Dialect.ANTHROPIC,
        model=body.model,
        prompt=chat_of(exchange, body),
        options=checked_options(service, exchange, body.options, own),
        keep_alive_ms=service.keep_alive_ms(body.keep_alive),
        think=think_of(body),
        truncate=body.truncate,
        shift=body.shift,
        format=_format_of(body),
    )


def chat_of(exchange: Exchange, body: CountTokensBody) -> Chat:
    """Return the conversation of a body; the header x-puna-ignored names what of it has no effect.

    Raises:
        InvalidRequest: a role, a block or a tool that is not supported.
    """
    for name in _REFUSED:
        if getattr(body, name):
            raise InvalidRequest(f"{name} is not supported", param=name)
    conversation = MessagesReader()
    conversation.add_system(body.system)
    conversation.add_all(body.messages)
    choice = body.tool_choice or {}
    offered = offered_tools([*body.tools, *conversation.added_tools])
    tools = () if choice.get("type") == "none" else offered.functions
    forced = anthropic_choice(choice, tools)
    if forced and getattr(body, "grammar", None):
        raise InvalidRequest("grammar and a forced tool_choice exclude each other", param="grammar")
    ignored = [*offered.left_out, *conversation.ignored, *(name for name in _WITHOUT_EFFECT if getattr(body, name))]
    if body.output_config is not None and body.output_config.task_budget:
        ignored.append("output_config.task_budget")
    exchange.ignore(*ignored)
    return Chat(
        messages=tuple(conversation.messages),
        tools=tools,
        forced_tools=forced,
        template_kwargs=template_kwargs(body.chat_template_kwargs),
        parallel_calls=choice.get("disable_parallel_tool_use") is not True,
    )


def hides_thinking(body: MessagesBody) -> bool:
    """Return True if the client wants no text in thinking blocks."""
    return body.thinking is not None and body.thinking.display == "omitted"


def _format_of(body: MessagesBody) -> AnswerFormat | None:
    return only_one(
        parse_output_format(body.output_config.format if body.output_config else None, "output_config.format"),
        parse_output_format(body.output_format, "output_format"),
        parse_grammar_field(body.grammar),
    )


def think_of(body: CountTokensBody) -> Think | None:
    """Return how hard to reason. Coding agents ask every model for it: one that cannot is no error here."""
    if body.think is not None:
        return parse_think(body.think)
    thinking, config = body.thinking, body.output_config
    if thinking is not None and thinking.type not in _THINKING_ON + _THINKING_OFF:
        text = "thinking.type must be enabled, adaptive, between_tools or disabled"
        raise InvalidRequest(text, param="thinking.type")
    effort = config.effort if config is not None else None
    level = parse_think(None, effort, param="output_config.effort")
    if thinking is not None and thinking.type in _THINKING_OFF:
        return Think.OFF
    return level if level is not None or thinking is None else Think.ON
