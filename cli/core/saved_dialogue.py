"""A dialogue as a file or as a model. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from cli.core.conversation import ChatMessage, Conversation, RunOptions

SUFFIX = ".json"
_ROLES = frozenset({"user", "assistant"})


def is_file_name(name: str) -> bool:
    """`/save talk.json` writes a file, `/save talk` makes a model."""
    return name.endswith(SUFFIX)


def to_text(model: str, conversation: Conversation, options: RunOptions) -> str:
    """Return the text of the file."""
    fields = {
        "model": model,
        "system": options.system,
        "think": options.think,
        "format": options.answer_format,
        "keep_alive": options.keep_alive,
        "options": dict(options.options),
        "messages": [message.as_json() for message in conversation.messages],
    }
    return json.dumps({name: value for name, value in fields.items() if value is not None}, indent=2) + "\n"


def from_text(text: str) -> tuple[str, Conversation, RunOptions]:
    """Model, turns and settings of a file.

    Raises:
        ValueError: it is no such file.
    """
    fields = json.loads(text)
    if not isinstance(fields, dict) or not isinstance(fields.get("model"), str):
        raise ValueError("it is no saved dialogue")
    options = fields.get("options", {})
    if not isinstance(options, dict):
        raise ValueError("its options are none")
    return (
        fields["model"],
        Conversation(messages=tuple(_message(one) for one in fields.get("messages") or [])),
        RunOptions(
            system=fields.get("system"),
            keep_alive=fields.get("keep_alive"),
            think=fields.get("think"),
            answer_format=fields.get("format"),
            options=options,
        ),
    )


def model_body(name: str, model: str, conversation: Conversation, options: RunOptions) -> dict[str, Any]:
    """Return the body of POST /api/create for a model that continues this dialogue."""
    body = {
        "model": name,
        "from": model,
        "system": options.system,
        "parameters": dict(options.options) or None,
        "messages": [message.as_json() for message in conversation.messages] or None,
    }
    return {key: value for key, value in body.items() if value is not None}


def _message(fields: Mapping[str, Any]) -> ChatMessage:
    if not isinstance(fields, dict) or fields.get("role") not in _ROLES or not isinstance(fields.get("content"), str):
        raise ValueError("one of its messages is none")
    images = fields.get("images") or []
    return ChatMessage(role=fields["role"], content=fields["content"], images=tuple(str(image) for image in images))
