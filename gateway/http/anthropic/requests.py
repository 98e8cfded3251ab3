"""Anthropic bodies into requests of the gateway."""

from common.errors import InvalidRequest
from gateway.core.request.answer_format import AnswerFormat, only_one, parse_grammar_field, parse_output_format
from gateway.core.request.answers import AnswerRequest, Chat, Dialect, Think
from gateway.core.request.conversation import template_kwargs
from gateway.core.request.thinking import parse_effort, parse_think
from gateway.core.request.tool_choice import anthropic_choice
from gateway.http.anthropic.bodies import CountTokensBody, MessagesBody
from gateway.http.anthropic.conversation import MessagesReader
from gateway.http.anthropic.tools import offered_tools
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.service import Service, checked_options

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
    level = None if effort is None else parse_effort(effort, "output_config.effort")
    if thinking is not None and thinking.type in _THINKING_OFF:
        return Think.OFF
    return level if level is not None or thinking is None else Think.ON
