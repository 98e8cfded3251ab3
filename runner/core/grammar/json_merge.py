"""Several JSON schemas that must all hold as one. Pure."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from common.errors import InvalidRequest

Schema = Mapping[str, Any]
TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")


def refusal(reason: str) -> InvalidRequest:
    """Return the error of a schema that cannot be used."""
    return InvalidRequest(f"json_schema cannot be used: {reason}", param="json_schema")


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


def merge(left: Schema, right: Schema) -> dict[str, Any]:
    """One schema that holds where both hold.

    Raises:
        InvalidRequest: two keywords cannot be joined.
    """
    joined = dict(left)
    for keyword, value in right.items():
        if keyword not in joined or joined[keyword] is value or _are_equal_scalars(joined[keyword], value):
            joined[keyword] = value
        elif keyword == "type":
            joined["type"] = _common_types(left, right)
        elif keyword == "properties":
            joined["properties"] = _properties(left, right)
        elif keyword in _JOINS:
            try:
                joined[keyword] = _JOINS[keyword](joined[keyword], value)
            except (TypeError, AttributeError):
                raise refusal(f"{keyword!r} has a value of the wrong type") from None
        else:
            raise refusal(f"two schemas that must both hold differ in {keyword!r}")
    return joined


def _are_equal_scalars(one: Any, other: Any) -> bool:
    return not isinstance(one, dict | list) and type(one) is type(other) and bool(one == other)


def same_text(value: Any) -> str:
    """Return a text that equal constants have in common: 1 is 1.0, true is not 1."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def _common_values(left: list[Any], right: list[Any]) -> list[Any]:
    allowed = {same_text(value) for value in right}
    return [value for value in left if same_text(value) in allowed]


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
    """Join declared properties; what one side alone declares must fit what the other says of all others."""
    own, theirs = left["properties"], right["properties"]
    if not isinstance(own, Mapping) or not isinstance(theirs, Mapping):
        raise refusal("properties must be an object")
    joined = {name: _both(schema, theirs.get(name, right.get("additionalProperties"))) for name, schema in own.items()}
    return joined | {
        name: _both(left.get("additionalProperties"), schema) for name, schema in theirs.items() if name not in own
    }


def _both(one: Any, other: Any) -> Any:
    """Return the schema that holds where both do; None and true say nothing."""
    if one is None or one is True or one is other:
        return True if other is None else other
    if other is None or other is True:
        return one
    return False if one is False or other is False else {"allOf": [one, other]}


_JOINS: Mapping[str, Callable[[Any, Any], Any]] = {
    "enum": _common_values,
    "required": lambda left, right: list(dict.fromkeys([*left, *right])),
    "minimum": max,
    "exclusiveMinimum": max,
    "maximum": min,
    "exclusiveMaximum": min,
    "minLength": max,
    "maxLength": min,
    "minItems": max,
    "maxItems": min,
    "items": _both,
    "additionalProperties": _both,
}
