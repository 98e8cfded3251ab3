"""Bodies of /v1/responses and the routes below it into requests of the gateway."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from common.errors import InvalidRequest
from gateway.core.request.answer_format import AnswerFormat, only_one, parse_grammar_field, parse_response_format
from gateway.core.request.answers import AnswerRequest, Chat, Dialect, Message, Think
from gateway.core.request.conversation import template_kwargs
from gateway.core.request.logprobs import check_top_logprobs
from gateway.core.request.thinking import parse_think
from gateway.core.request.tool_choice import offered_tools, openai_choice
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.service import Service, checked_options
from gateway.http.openai.bodies import CompactBody, ConversationBody, InputTokensBody, ResponsesBody
from gateway.http.openai.responses_compaction import COMPACTION_TOKENS_MAX, PROMPT
from gateway.http.openai.responses_items import ReadItems, read_items
from gateway.http.openai.responses_tools import Ignored, ToolTable

LOGPROBS_INCLUDE = "message.output_text.logprobs"
REASONING_INCLUDE = "reasoning.encrypted_content"
_STATE_FIELDS = ("previous_response_id", "conversation", "background", "prompt")
_SERVICE_TIERS = (None, "auto", "default")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest:
    """The request of a body, and what its answer is written with."""

    request: AnswerRequest
    tools: ToolTable
    compacts: bool = False


def responses_request(service: Service, exchange: Exchange, body: ResponsesBody) -> ResponsesRequest:
    """Read a body of POST /v1/responses.

    Raises:
        PunaError: it cannot be honoured; `param` names the field.
    """
    if body.truncation not in ("auto", "disabled"):
        raise InvalidRequest("truncation must be auto or disabled", param="truncation")
    chat, tools, compacts = _chat(service, body)
    if body.grammar and chat.forced_tools:
        raise InvalidRequest("grammar and a forced tool_choice exclude each other", param="grammar")
    own = {**body.sampling(), "num_predict": body.max_output_tokens}
    wants_logprobs = body.top_logprobs is not None or LOGPROBS_INCLUDE in body.include
    request = AnswerRequest(
        dialect=Dialect.OPENAI,
        model=body.model,
        prompt=chat,
        options=checked_options(service, exchange, body.options, own),
        keep_alive_ms=service.keep_alive_ms(body.keep_alive),
        think=_think(body),
        top_logprobs=check_top_logprobs(body.top_logprobs or 0) if wants_logprobs else None,
        truncate=body.truncate or body.truncation == "auto",
        shift=body.shift,
        format=only_one(_format(body), parse_grammar_field(body.grammar)),
    )
    _note_ignored(body, tools.ignored)
    exchange.ignore(*tools.ignored.names)
    if compacts:
        request = _compacting(request)
    return ResponsesRequest(request=request, tools=tools, compacts=compacts)


def count_request(service: Service, exchange: Exchange, body: InputTokensBody) -> tuple[Chat, Think | None]:
    """Read a body of POST /v1/responses/input_tokens.

    Raises:
        InvalidRequest: as for an answer.
    """
    chat, tools, _ = _chat(service, body)
    exchange.ignore(*tools.ignored.names)
    return chat, _think(body)


def compact_request(service: Service, exchange: Exchange, body: CompactBody) -> AnswerRequest:
    """Read a body of POST /v1/responses/compact.

    Raises:
        InvalidRequest: as for an answer.
    """
    tools, conversation = _conversation(body)
    exchange.ignore(*tools.ignored.names)
    request = AnswerRequest(
        dialect=Dialect.OPENAI,
        model=body.model,
        prompt=Chat(messages=conversation.messages),
        keep_alive_ms=service.keep_alive_ms(body.keep_alive),
    )
    return _compacting(request)


def _compacting(request: AnswerRequest) -> AnswerRequest:
    """Return the request for a summary of a conversation.

    It has no tools and does not reason, so that the answer is text. Clients ask for it when the context is full:
    the oldest turns that do not fit are left out, and the summary may go on where the context ends.
    """
    assert isinstance(request.prompt, Chat)
    messages = (*request.prompt.messages, Message(role="user", content=PROMPT))
    limit = request.options.get("num_predict", COMPACTION_TOKENS_MAX)
    tokens = min(limit, COMPACTION_TOKENS_MAX) if isinstance(limit, int) and limit > 0 else COMPACTION_TOKENS_MAX
    return replace(
        request,
        prompt=Chat(messages=messages, template_kwargs=request.prompt.template_kwargs),
        options={**request.options, "num_predict": tokens},
        think=Think.OFF,
        top_logprobs=None,
        format=None,
        truncate=True,
        shift=True,
    )


def _chat(service: Service, body: InputTokensBody) -> tuple[Chat, ToolTable, bool]:
    table, conversation = _conversation(body)
    choice = table.choice(body.tool_choice)
    forced = openai_choice(choice, table.functions)
    for tool in table.tools:
        is_held = tool.holds_format and tool.model_name in forced
        if tool.has_format and not (is_held and service.inference.models.writes_json_arguments(body.model)):
            table.ignored.add(f"{tool.place}.format")
    chat = Chat(
        messages=conversation.messages,
        tools=offered_tools(choice, table.functions),
        forced_tools=forced,
        template_kwargs=template_kwargs(body.chat_template_kwargs),
        parallel_calls=body.parallel_tool_calls,
    )
    return chat, table, conversation.compacts


def _conversation(body: ConversationBody) -> tuple[ToolTable, ReadItems]:
    for name in _STATE_FIELDS:
        if getattr(body, name):
            raise InvalidRequest(f"{name} is not supported: nothing is stored between requests", param=name)
    if body.input is None:
        raise InvalidRequest("input is required", param="input")
    table = ToolTable()
    table.add_all(body.tools, "tools")
    found = read_items(body.input, table)
    if body.instructions:
        system = Message(role="system", content=body.instructions)
        found = replace(found, messages=(system, *found.messages))
    return table, found


def _note_ignored(body: ResponsesBody, ignored: Ignored) -> None:
    """Name the fields that are known and have no effect here."""
    effects: Mapping[str, bool] = {
        "text.verbosity": body.text is not None and body.text.verbosity is not None,
        "context_management": bool(body.context_management),
        "service_tier": body.service_tier not in _SERVICE_TIERS,
        "stream_options.include_obfuscation": body.stream_options.get("include_obfuscation") is True,
    }
    for name, is_set in effects.items():
        if is_set:
            ignored.add(name)


def _think(body: InputTokensBody) -> Think | None:
    effort = body.reasoning.effort if body.reasoning is not None else None
    return parse_think(body.think, effort, param="reasoning.effort")


def _format(body: ResponsesBody) -> AnswerFormat | None:
    """Read `text.format`: as response_format, but flat."""
    wanted = body.text.format if body.text is not None else None
    if wanted is None:
        return None
    if wanted.get("type") == "json_schema":
        return parse_response_format({"type": "json_schema", "json_schema": wanted}, "text.format")
    return parse_response_format(wanted, "text.format")
