"""What `--format` and `/set format` say. Pure."""

import json
from collections.abc import Callable
from typing import Any


def answer_format(word: str, read: Callable[[str], str]) -> Any:
    """The word "json" itself, or the schema in the file that the word names; `read` gives the text of a file.

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
