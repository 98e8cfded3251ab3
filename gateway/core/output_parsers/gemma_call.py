"""Gemma's calls: `call:name{city:<|"|>Paris<|"|>,days:3}`. Values may be JSON as well."""

import json
import re

from gateway.core.output_parsers.events import CallArguments, CallBegan, Event

_NAME = re.compile(r"\s*call:\s*([A-Za-z0-9_.-]{1,256})\s*")
_QUOTE = '<|"|>'
_KEY = re.compile(r"\s*([^:{}\[\],\"]+?)\s*:")
_WORD = re.compile(r"[^,{}\[\]\"]+")
_SPACE = re.compile(r"\s*")
_DEPTH_MAX = 64
_DECODER = json.JSONDecoder()


class _NoValueError(ValueError):
    """The text is not in this notation."""


def gemma_call(text: str) -> tuple[Event, ...] | None:
    """Parse the call between its markers; None if it is none."""
    named = _NAME.match(text)
    if named is None:
        return None
    try:
        arguments, end = _value(text, named.end(), 0)
        if not isinstance(arguments, dict) or text[end:].strip():
            return None
        return CallBegan(named[1]), CallArguments(json.dumps(arguments, allow_nan=False))
    except (ValueError, IndexError):
        return None


def _value(text: str, at: int, depth: int) -> tuple[object, int]:
    """Parse the value at a place; return it with its end."""
    at = _skip(text, at)
    if depth > _DEPTH_MAX:
        raise _NoValueError
    if text.startswith(_QUOTE, at):
        end = text.index(_QUOTE, at + len(_QUOTE))
        return text[at + len(_QUOTE) : end], end + len(_QUOTE)
    match text[at]:
        case "{":
            return _object(text, at + 1, depth)
        case "[":
            return _array(text, at + 1, depth)
        case '"':
            return _DECODER.raw_decode(text, at)
    word = _WORD.match(text, at)
    if word is None:
        raise _NoValueError
    return json.loads(word[0]), word.end()


def _object(text: str, at: int, depth: int) -> tuple[dict[str, object], int]:
    found: dict[str, object] = {}
    at = _skip(text, at)
    while text[at] != "}":
        key: object
        if text.startswith(_QUOTE, at) or text[at] == '"':
            key, at = _value(text, at, depth)
            at = text.index(":", at) + 1
        else:
            bare = _KEY.match(text, at)
            if bare is None:
                raise _NoValueError
            key, at = bare[1], bare.end()
        found[str(key)], at = _value(text, at, depth + 1)
        at = _behind_comma(text, at, "}")
    return found, at + 1


def _array(text: str, at: int, depth: int) -> tuple[list[object], int]:
    found: list[object] = []
    at = _skip(text, at)
    while text[at] != "]":
        value, at = _value(text, at, depth + 1)
        found.append(value)
        at = _behind_comma(text, at, "]")
    return found, at + 1


def _behind_comma(text: str, at: int, end: str) -> int:
    at = _skip(text, at)
    if text[at] == ",":
        return _skip(text, at + 1)
    if text[at] != end:
        raise _NoValueError
    return at


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None, "it matches nothing, too"
    return found.end()
