"""Answer formats: any JSON object, JSON of a schema, or text of a grammar. Pure.

In the fields of each dialect, and in vLLM's, `structured_outputs` and the older `guided_*`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from common.errors import InvalidRequest
from common.gbnf import literal

_GUIDED = "guided_"
NEWER = "structured_outputs"
_KINDS = ("json", "json_object", "choice", "grammar", "regex", "structural_tag")
# A character of a choice is an escape of this many bytes in its grammar.
_ESCAPE_BYTES = 10


SCHEMA_BYTES_MAX = 128 * 1024
# Of a client. Grammars that are made of schemas and tools may be longer.
GRAMMAR_BYTES_MAX = 64 * 1024
_ANY_OBJECT = '{"type":"object"}'
_FORMAT_TEXT = 'format must be "json" or a JSON schema'
_RESPONSE_FORMAT_TEXT = "{} must be of type text, json_object or json_schema"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """One of the two texts is set. `field` is how the client's dialect calls it."""

    field: str
    json_schema: str = ""
    grammar: str = ""


def parse_format(value: object) -> AnswerFormat | None:
    """Parse Ollama's `format`.

    Raises:
        InvalidRequest: neither "json" nor an object.
    """
    match value:
        case None | "":
            return None
        case "json":
            return AnswerFormat(field="format", json_schema=_ANY_OBJECT)
        case dict():
            return schema_format(value, "format")
        case _:
            raise InvalidRequest(_FORMAT_TEXT, param="format")


def parse_response_format(value: object, field: str = "response_format") -> AnswerFormat | None:
    """Parse OpenAI's `response_format`, or a field of the same form elsewhere.

    Raises:
        InvalidRequest: another type, or a schema that is not there.
    """
    match value:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object", "schema": dict() as schema}:  # llama-server's form
            return schema_format(schema, field)
        case {"type": "json_object"}:
            return AnswerFormat(field=field, json_schema=_ANY_OBJECT)
        case {"type": "json_schema", "json_schema": {"schema": dict() as schema}}:
            return schema_format(schema, field)
        case {"type": "json_schema"}:
            raise InvalidRequest(f"{field} must have a schema that is an object", param=field)
        case _:
            raise InvalidRequest(_RESPONSE_FORMAT_TEXT.format(field), param=field)


def parse_output_format(value: object, field: str) -> AnswerFormat | None:
    """Return the form that Anthropic's `output_config.format` asks for.

    Raises:
        InvalidRequest: another type, or a schema that is not there.
    """
    match value:
        case None:
            return None
        case {"type": "json_schema"}:
            return parse_response_format({"type": "json_schema", "json_schema": value}, field)
        case _:
            raise InvalidRequest(f"{field} must be of type json_schema", param=field)


def schema_format(schema: dict[str, Any], field: str) -> AnswerFormat:
    """Return the format of JSON that a schema describes, whose parts are checked before it is compiled.

    Raises:
        InvalidRequest: the schema is too long.
    """
    return AnswerFormat(field=field, json_schema=_schema_text(schema, field))


def parse_grammar_field(value: object, field: str = "grammar") -> AnswerFormat | None:
    """Parse Puna's `grammar`: a text in llama.cpp's notation.

    Raises:
        InvalidRequest: not a text, or a long one.
    """
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise InvalidRequest(f"{field} must be a string", param=field)
    if len(value.encode(errors="replace")) > GRAMMAR_BYTES_MAX:
        raise InvalidRequest(f"{field} has more than {GRAMMAR_BYTES_MAX} bytes", param=field)
    return AnswerFormat(field=field, grammar=value)


def only_one(*formats: AnswerFormat | None) -> AnswerFormat | None:
    """Return the one that is set, if any.

    Raises:
        InvalidRequest: more than one.
    """
    wanted = [one for one in formats if one is not None]
    if len(wanted) > 1:
        raise InvalidRequest(f"{wanted[0].field} and {wanted[1].field} exclude each other", param=wanted[1].field)
    return wanted[0] if wanted else None


def in_words_of_the_client(error: InvalidRequest, wanted: AnswerFormat | None) -> InvalidRequest:
    """Rewrite the error: name the field as the client wrote it instead of as runners call it."""
    if wanted is None or error.param not in ("json_schema", "grammar"):
        return error
    message = error.message.replace(error.param, wanted.field, 1)
    return InvalidRequest(message, param=wanted.field)


def _schema_text(schema: dict[str, Any], field: str) -> str:
    text = orjson.dumps(schema)
    if len(text) > SCHEMA_BYTES_MAX:
        raise InvalidRequest(f"the schema in {field} is longer than {SCHEMA_BYTES_MAX} bytes", param=field)
    return text.decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Guided:
    """Formats that are obeyed, and names of fields that no grammar here can hold."""

    formats: tuple[AnswerFormat, ...] = ()
    ignored: tuple[str, ...] = ()


def parse_guided(fields: Mapping[str, object]) -> Guided:
    """Read the fields of a body by their names; null means absent.

    Raises:
        InvalidRequest: another type, or too long.
    """
    formats: list[AnswerFormat] = []
    ignored: list[str] = []
    for field, kind, value in _entries(fields):
        match kind:
            case "json":
                formats.append(_of_json(value, field))
            case "json_object":
                formats.append(schema_format({"type": "object"}, field))
            case "choice":
                formats.append(_of_choices(value, field))
            case "grammar":
                formats += filter(None, [parse_grammar_field(value, field)])
            case _:
                ignored.append(field)
    return Guided(formats=tuple(formats), ignored=tuple(ignored))


def _entries(fields: Mapping[str, object]) -> Iterator[tuple[str, str, object]]:
    """Yield the name, the kind and the value of each constraint."""
    for name, value in fields.items():
        if value is None:
            continue
        if name != NEWER:
            yield name, name.removeprefix(_GUIDED), value
        elif not isinstance(value, dict):
            raise InvalidRequest(f"{NEWER} must be of type object", param=NEWER)
        else:
            yield from ((f"{NEWER}.{kind}", kind, value[kind]) for kind in _KINDS if value.get(kind))


def _of_json(value: object, field: str) -> AnswerFormat:
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            value = None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field} must be a JSON schema", param=field)
    return schema_format(value, field)


def _of_choices(value: object, field: str) -> AnswerFormat:
    if not isinstance(value, list) or not value or not all(isinstance(one, str) and one for one in value):
        raise InvalidRequest(f"{field} must be an array of strings that are not empty", param=field)
    longest = GRAMMAR_BYTES_MAX // _ESCAPE_BYTES
    if sum(map(len, value)) > longest:
        raise InvalidRequest(f"{field} has more than {longest} characters", param=field)
    return AnswerFormat(field=field, grammar="root ::= " + " | ".join(map(literal, value)))
