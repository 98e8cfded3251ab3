"""Parts of a stored model that shape a request: its system text, its first messages, its option values. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from common.errors import InvalidRequest
from common.spec.sampling import GGUF_KEYS
from gateway.core.models.routes import ModelInfo
from gateway.core.request.answers import AnswerRequest, Chat, Message
from gateway.core.request.option_table import PLACEMENT_RULES, SAMPLING_RULES, OptionValue, check_option

ROLES = frozenset({"system", "user", "assistant"})
_SYSTEM = "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Option values that apply, and the names of those that are unknown or out of range."""

    values: Mapping[str, OptionValue]
    ignored: tuple[str, ...] = ()


def usable_parameters(parameters: Mapping[str, object]) -> Parameters:
    """Check the parameters of a manifest: it may be from another program, so a bad value spoils only itself."""
    values: dict[str, OptionValue] = {}
    ignored: list[str] = []
    for name, value in parameters.items():
        rule = SAMPLING_RULES.get(name) or PLACEMENT_RULES.get(name)
        try:
            if rule is None or value is None:
                ignored.append(name)
            else:
                values[name] = check_option(name, value, rule)
        except InvalidRequest:
            ignored.append(name)
    return Parameters(values=values, ignored=tuple(sorted(ignored)))


def sampling_of_metadata(metadata: Mapping[str, object]) -> Mapping[str, OptionValue]:
    """Return the option values that the GGUF itself recommends."""
    found = {name: metadata[key] for key, name in GGUF_KEYS.items() if key in metadata}
    return usable_parameters(found).values


def stored_messages(items: Iterable[object]) -> tuple[Message, ...]:
    """Return the messages of a manifest; invalid ones are left out."""
    return tuple(
        Message(role=str(item["role"]).lower(), content=item["content"])
        for item in items
        if isinstance(item, Mapping)
        and isinstance(item.get("content"), str)
        and str(item.get("role", "")).lower() in ROLES
    )


def own_context(model: ModelInfo) -> int | None:
    """Return the context that a model's parameters ask for, within the context of its training."""
    wanted = model.own_options.get("num_ctx")
    if not isinstance(wanted, int):
        return None
    return min(wanted, model.context_tokens) if model.context_tokens else wanted


def with_stored_texts(request: AnswerRequest, model: ModelInfo) -> AnswerRequest:
    """Put the model's texts before a conversation: its system text unless there is one, then its messages.

    A conversation that goes on behind given tokens (`context` of /api/generate) has had the messages already.
    """
    chat = request.prompt
    if not isinstance(chat, Chat) or not (model.system or model.messages):
        return request
    return replace(request, prompt=replace(chat, messages=_begun(chat, model)))


def merged_system(chat: Chat, system: str) -> Chat | None:
    """Return the same conversation with the model's own system text at the head of its first question.

    None: it does not begin with that text, or asks nothing.
    """
    head, rest = chat.messages[:1], chat.messages[1:]
    if not system or not head or (head[0].role, head[0].content) != (_SYSTEM, system):
        return None
    index = next((index for index, message in enumerate(rest) if message.role == "user"), None)
    if index is None:
        return None
    message, before = rest[index], f"{system}\n\n"
    moved = tuple(replace(image, offset=image.offset + len(before)) for image in message.images)
    message = replace(message, content=before + message.content, images=moved)
    return replace(chat, messages=(*rest[:index], message, *rest[index + 1 :]))


def _begun(chat: Chat, model: ModelInfo) -> tuple[Message, ...]:
    count = 0
    while count < len(chat.messages) and chat.messages[count].role == _SYSTEM:
        count += 1
    system, rest = chat.messages[:count], chat.messages[count:]
    if not system and model.system:
        system = (Message(role=_SYSTEM, content=model.system),)
    return (*system, *(() if chat.earlier_token_ids else model.messages), *rest)
