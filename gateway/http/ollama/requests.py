"""Ollama bodies into requests of the gateway."""

from common.errors import InvalidRequest
from gateway.core.request.answer_format import parse_format
from gateway.core.request.answers import AnswerRequest, Chat, Dialect, Message, RawPrompt, ToolCall
from gateway.core.request.conversation import ROLES
from gateway.core.request.images import RequestImage, before_text, place_by_markers
from gateway.core.request.logprobs import check_top_logprobs
from gateway.core.request.thinking import parse_think
from gateway.http.endpoint.exchange import Exchange
from gateway.http.endpoint.service import Service, checked_options
from gateway.http.ollama.bodies import ChatBody, GenerateBody, OllamaAnswerBody, OllamaMessage


def chat_request(service: Service, exchange: Exchange, body: ChatBody) -> AnswerRequest:
    """Parse the request of POST /api/chat."""
    chat = Chat(messages=tuple(message_of(message) for message in body.messages), tools=tuple(body.tools))
    return _request(service, exchange, body, chat)


def generate_request(service: Service, exchange: Exchange, body: GenerateBody) -> AnswerRequest:
    """Parse the request of POST /api/generate."""
    if body.raw and (body.template or body.system or body.context):
        raise InvalidRequest("raw mode does not support template, system, or context", param="raw")
    if body.suffix:
        return _request(service, exchange, body, _fill_in(body), wants_context=not body.raw)
    images = [RequestImage(text) for text in body.images]
    if body.raw:
        text, placed = place_by_markers(body.prompt, images)
        return _request(service, exchange, body, RawPrompt(text=text, images=placed))
    system = (Message(role="system", content=body.system),) if body.system else ()
    chat = Chat(
        messages=(*system, Message(role="user", content=body.prompt, images=before_text(images))),
        template=_template(service, exchange, body),
        earlier_token_ids=tuple(body.context),
    )
    return _request(service, exchange, body, chat, wants_context=True)


def _fill_in(body: GenerateBody) -> RawPrompt:
    if body.images or body.system or body.template or body.context:
        raise InvalidRequest("suffix goes with neither images, system, template nor context", param="suffix")
    return RawPrompt(text=body.prompt, suffix=body.suffix)


def _template(service: Service, exchange: Exchange, body: GenerateBody) -> str:
    """Return the client's own template, from callers who may manage models."""
    if body.template and not service.may_manage_models():
        exchange.ignore("template")
        return ""
    return body.template


def _request(
    service: Service,
    exchange: Exchange,
    body: OllamaAnswerBody,
    prompt: Chat | RawPrompt,
    *,
    wants_context: bool = False,
) -> AnswerRequest:
    top_logprobs = check_top_logprobs(body.top_logprobs)
    return AnswerRequest(
        dialect=Dialect.OLLAMA,
        model=body.model,
        prompt=prompt,
        options=checked_options(service, exchange, body.options),
        keep_alive_ms=service.keep_alive_ms(body.keep_alive),
        think=parse_think(body.think),
        top_logprobs=top_logprobs if body.logprobs else None,
        truncate=body.truncate,
        shift=body.shift,
        format=parse_format(body.format),
        wants_context=wants_context,
    )


def message_of(message: OllamaMessage) -> Message:
    """Translate one turn of a conversation.

    Raises:
        InvalidRequest: a role that there is not.
    """
    role = message.role.lower()
    if role not in ROLES:
        raise InvalidRequest(f'invalid message role: "{message.role[:64]}"', param="messages")
    return Message(
        role=role,
        content=message.content,
        thinking=message.thinking,
        tool_calls=tuple(
            ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in message.tool_calls
        ),
        tool_name=message.tool_name,
        tool_call_id=message.tool_call_id,
        images=before_text([RequestImage(text) for text in message.images]),
    )
