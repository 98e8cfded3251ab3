"""What a client wants its answer to look like: any JSON object, JSON of a schema, or text of a grammar."""

from dataclasses import dataclass
from typing import Any

import orjson

from common.errors import InvalidRequest
from gateway.core.asked.schema_limits import check_schema

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
    """Ollama's `format`.

    Raises:
        InvalidRequest: neither "json" nor an object.
    """
    match value:
        case None | "":
            return None
        case "json":
            return AnswerFormat(field="format", json_schema=_ANY_OBJECT)
        case dict():
            return AnswerFormat(field="format", json_schema=_schema_text(value, "format"))
        case _:
            raise InvalidRequest(_FORMAT_TEXT, param="format")


def parse_response_format(value: object, field: str = "response_format") -> AnswerFormat | None:
    """OpenAI's `response_format`, or what has its form elsewhere.

    Raises:
        InvalidRequest: another type, or a schema that is not there.
    """
    match value:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return AnswerFormat(field=field, json_schema=_ANY_OBJECT)
        case {"type": "json_schema", "json_schema": {"schema": dict() as schema}}:
            return AnswerFormat(field=field, json_schema=_schema_text(schema, field))
        case {"type": "json_schema"}:
            raise InvalidRequest(f"{field} must have a schema that is an object", param=field)
        case _:
            raise InvalidRequest(_RESPONSE_FORMAT_TEXT.format(field), param=field)


def parse_grammar_field(value: object) -> AnswerFormat | None:
    """Puna's `grammar`: a text in llama.cpp's notation.

    Raises:
        InvalidRequest: not a text, or a long one.
    """
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise InvalidRequest("grammar must be a string", param="grammar")
    if len(value.encode(errors="replace")) > GRAMMAR_BYTES_MAX:
        raise InvalidRequest(f"grammar has more than {GRAMMAR_BYTES_MAX} bytes", param="grammar")
    return AnswerFormat(field="grammar", grammar=value)


def only_one(*formats: AnswerFormat | None) -> AnswerFormat | None:
    """The one that is set, if any.

    Raises:
        InvalidRequest: more than one.
    """
    wanted = [one for one in formats if one is not None]
    if len(wanted) > 1:
        raise InvalidRequest(f"{wanted[0].field} and {wanted[1].field} exclude each other", param=wanted[1].field)
    return wanted[0] if wanted else None


def in_words_of_the_client(error: InvalidRequest, wanted: AnswerFormat | None) -> InvalidRequest:
    """The same error, naming the field as the client wrote it instead of as runners call it."""
    if wanted is None or error.param not in ("json_schema", "grammar"):
        return error
    message = error.message.replace(error.param, wanted.field, 1)
    return InvalidRequest(message, param=wanted.field)


def _schema_text(schema: dict[str, Any], field: str) -> str:
    text = orjson.dumps(schema)
    if len(text) > SCHEMA_BYTES_MAX:
        raise InvalidRequest(f"the schema in {field} is longer than {SCHEMA_BYTES_MAX} bytes", param=field)
    check_schema(schema, field)
    return text.decode()
