"""Formats of an answer in vLLM's fields, `structured_outputs` and the older `guided_*`. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import orjson

from common.errors import InvalidRequest
from common.gbnf import literal
from gateway.core.request.answer_format import GRAMMAR_BYTES_MAX, AnswerFormat, parse_grammar_field, schema_format

_GUIDED = "guided_"
NEWER = "structured_outputs"
_KINDS = ("json", "json_object", "choice", "grammar", "regex", "structural_tag")
# A character of a choice is an escape of this many bytes in its grammar.
_ESCAPE_BYTES = 10


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
