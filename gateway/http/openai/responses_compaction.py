"""Compaction of a conversation: the model's summary of it, as an item that clients send back."""

import base64
import binascii
from typing import Any

import orjson

from common.errors import UnsupportedCapability
from common.ids import random_id
from gateway.core.request.answers import Message

COMPACTION_TOKENS_MAX = 4096
PROMPT = (
    "Write a summary of the conversation above, for an assistant that goes on with it and sees nothing else of it. "
    "Name the user's goal and constraints, what was decided, what was done with which result (files, commands, "
    "values, ids), what failed and why, and the next steps. Write the summary alone, as plain text."
)
_HEAD = "Summary of the conversation so far:\n\n"
_VERSION = 1
_ID_LENGTH = 24
# Amount of the user's texts beside the summary, from the last message back.
KEPT_CHARACTERS_MAX = 16_000


def packed(kind: str, text: str) -> str:
    """Return a text as `encrypted_content`. It is encoded, not encrypted: what is in it came from the caller."""
    return base64.b64encode(orjson.dumps({"puna": _VERSION, kind: text})).decode()


def unpacked(kind: str, content: object) -> str | None:
    """Return the text of an `encrypted_content` of this server; None for that of another one."""
    if not isinstance(content, str):
        return None
    try:
        value = orjson.loads(base64.b64decode(content, validate=True))
    except (binascii.Error, orjson.JSONDecodeError, ValueError):
        return None
    match value:
        case {"puna": 1, **rest} if isinstance(text := rest.get(kind), str):
            return text
    return None


def compaction_item(summary: str) -> dict[str, Any]:
    """Return the item that stands for a conversation.

    Raises:
        UnsupportedCapability: there is no text; a client that took the item would lose what was said.
    """
    if not summary.strip():
        raise UnsupportedCapability("the model wrote no summary: keep the items, or use another model", param="model")
    content = packed("summary", summary.strip())
    return {"type": "compaction", "id": random_id("cmp_", _ID_LENGTH), "encrypted_content": content}


def summary_message(summary: str) -> Message:
    """Return the turn that a compaction item is in a prompt."""
    return Message(role="user", content=_HEAD + summary)


def kept_items(items: object) -> list[dict[str, Any]]:
    """Return what stands before the compaction item: instructions, and the user's newest messages."""
    if isinstance(items, str):
        items = [{"type": "message", "role": "user", "content": items}]
    kept: list[dict[str, Any]] = []
    room = KEPT_CHARACTERS_MAX
    for item in reversed(items if isinstance(items, list) else []):
        role = item.get("role")
        parts = _text_parts(item.get("content"))
        size = sum(len(part["text"]) for part in parts)
        if role == "user":
            room -= size
        if parts and (role in ("system", "developer") or (role == "user" and room >= 0)):
            kept.append(
                {
                    "type": "message",
                    "id": random_id("msg_", _ID_LENGTH),
                    "status": "completed",
                    "role": role,
                    "content": parts,
                }
            )
    return kept[::-1]


def _text_parts(content: object) -> list[dict[str, Any]]:
    parts = [{"text": content}] if isinstance(content, str) else content if isinstance(content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return [{"type": "input_text", "text": text} for text in texts if isinstance(text, str) and text]
