"""Several JSON schemas that must all hold as one. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from common.errors import InvalidRequest

Schema = Mapping[str, Any]
ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "$schema", "$id", "$anchor", "$defs", "definitions", "contentEncoding", "contentMediaType"),
        *("discriminator", "propertyOrdering"),
    }
)
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


def types_of(schema: Schema) -> frozenset[str] | None:
    """Return the types that a schema names; None: it names none.

    Raises:
        InvalidRequest: a type that does not exist.
    """
    named = schema.get("type")
    if named is None:
        return None
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name in TYPES for name in names):
        raise refusal(f"type must be one of {', '.join(TYPES)}, or a list of them")
    return frozenset(names)


def refusal(reason: str) -> InvalidRequest:
    """Return the error of a schema that cannot be used."""
    return InvalidRequest(f"json_schema cannot be used: {reason}", param="json_schema")


def merge(left: Schema, right: Schema) -> dict[str, Any]:
    """One schema that holds where both hold.

    Raises:
        InvalidRequest: two keywords cannot be joined.
    """
    joined = dict(left)
    for keyword, value in right.items():
        if keyword not in joined or keyword in ANNOTATIONS or joined[keyword] == value:
            joined[keyword] = value
        elif keyword == "type":
            joined["type"] = _common_types(left, right)
        elif keyword in _JOINS:
            try:
                joined[keyword] = _JOINS[keyword](joined[keyword], value)
            except (TypeError, AttributeError):
                raise refusal(f"{keyword!r} has a value of the wrong type") from None
        else:
            raise refusal(f"two schemas that must both hold differ in {keyword!r}")
    return joined


def _common_types(left: Schema, right: Schema) -> list[str]:
    one, other = types_of(left) or frozenset(TYPES), types_of(right) or frozenset(TYPES)
    common = one & other
    # Every integer is a number.
    if ("integer" in one and "number" in other) or ("number" in one and "integer" in other):
        common |= {"integer"}
    if not common:
        raise refusal("two schemas that must both hold have no type in common")
    return sorted(common)


def _properties(left: Schema, right: Schema) -> dict[str, Any]:
    joined = dict(left)
    for name, schema in right.items():
        known = joined.get(name)
        both = isinstance(known, Mapping) and isinstance(schema, Mapping)
        joined[name] = {"allOf": [known, schema]} if both else schema if known is None or known is True else known
    return joined


def _enumeration(left: list[Any], right: list[Any]) -> list[Any]:
    common = [value for value in left if value in right]
    if not common:
        raise refusal("two schemas that must both hold have no value in common")
    return common


_JOINS: Mapping[str, Callable[[Any, Any], Any]] = {
    "properties": _properties,
    "required": lambda left, right: [*left, *(name for name in right if name not in left)],
    "enum": _enumeration,
    "minimum": max,
    "exclusiveMinimum": max,
    "maximum": min,
    "exclusiveMaximum": min,
    "minLength": max,
    "maxLength": min,
    "minItems": max,
    "maxItems": min,
    "additionalProperties": lambda left, right: False if left is False or right is False else left,
}
