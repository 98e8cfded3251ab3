"""Files that belong to a question: images for models that see, text for all, a schema of its answer. Pure."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from common.image_file import find_format


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """One file: an image as base64, or its text; the other one is None."""

    image: str | None = None
    text: str | None = None


def attachment_of(name: str, data: bytes) -> Attachment:
    """Classify a file by its content.

    Raises:
        ValueError: neither an image that models are shown, nor text in UTF-8.
    """
    if find_format(data) is not None:
        return Attachment(image=base64.b64encode(data).decode("ascii"))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is neither an image (PNG, JPEG, GIF, BMP, WebP) nor text in UTF-8") from error
    if not text.strip() or "\0" in text:
        raise ValueError(f"{name} has no text in it")
    return Attachment(text=f"{name}:\n\n{text.strip()}")


def answer_format(word: str, read: Callable[[str], str]) -> Any:
    """Return the word "json", or the schema in the file that the word names; `read` returns the text of a file.

    Raises:
        ValueError: the file holds no JSON schema.
    """
    if word == "json":
        return "json"
    try:
        schema = json.loads(read(word))
    except json.JSONDecodeError as error:
        raise ValueError(f"{word} is no JSON: {error}") from error
    if not isinstance(schema, dict):
        raise ValueError(f"{word} holds no JSON schema, which is an object")
    return schema
