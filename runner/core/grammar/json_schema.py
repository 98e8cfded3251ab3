"""A JSON schema as llguidance takes it: every answer is JSON that validates. Pure.

llguidance follows the schema; what is done here keeps Puna's promises. References lead to places of their own, schemas
that must all hold are joined, an object with declared properties has no others unless it says so, and what a keyword
asks for is asked of its type alone. A keyword that is not supported is refused by name; annotations are passed over.
"""

import json
from collections.abc import Mapping
from typing import Any

from runner.core.grammar.json_merge import TYPES, Schema, merge, refusal, same_text, types_of
from runner.core.grammar.json_pattern import FORMATS, anchored_pattern

SCHEMA_BYTES_MAX = 128 * 1024
_DEPTH_MAX = 64
# Bounds the time: what is joined may be looked at once for every place where it is used.
_PARTS_MAX = 8_000
_PROPERTIES_MAX = 2_000
_COUNT_MAX = 20_000
# A double holds every whole number up to this one, and its neighbours.
_NUMBER_MAX = 2**53
_INTEGER_MAX = 10**15 - 1
# Strings are written in one way only, so that no name of a property is another one in disguise.
OPTIONS = {"whitespace_pattern": " |\\n[ \\t]{0,20}", "json_allowed_escapes": 'nrbtf\\"'}

_ANNOTATIONS = frozenset(
    {
        *("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "$schema", "$id", "$anchor", "$defs", "definitions", "contentEncoding", "contentMediaType"),
        *("discriminator", "propertyOrdering", "nullable"),
    }
)
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength")
_KEYWORDS: Mapping[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({*_BOUNDS, "multipleOf"}),
}
_COMBINING = frozenset({"type", "const", "enum", "anyOf", "oneOf", "allOf", "$ref"})
_KNOWN = frozenset().union(*_KEYWORDS.values()) | _COMBINING | _ANNOTATIONS


def guided_schema(text: str) -> str:
    """Convert a schema to the JSON that stands behind %json in a Lark grammar.

    Raises:
        InvalidRequest: not a schema, too large, or with something that is not supported.
    """
    if len(text.encode(errors="replace")) > SCHEMA_BYTES_MAX:
        raise refusal(f"it is longer than {SCHEMA_BYTES_MAX} bytes")
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        raise refusal("it is not JSON") from None
    if not isinstance(schema, dict | bool):
        raise refusal("it is not an object")
    if schema is False:
        raise refusal("false allows no value")
    converter = _Converter(schema)
    try:
        root = converter.visit(schema, 0)
    except RecursionError:
        raise refusal("it is nested too deeply") from None
    return json.dumps({"allOf": [root], "$defs": converter.definitions, "x-guidance": OPTIONS})


class _Converter:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._parts = 0
        self._names: dict[str, str] = {}
        self._resolved: dict[str, Schema | None] = {}  # None: being resolved
        self.definitions: dict[str, Any] = {}

    def visit(self, schema: Any, depth: int) -> Any:
        """Return the schema for the values of a schema."""
        self._spend(1)
        if depth > _DEPTH_MAX:
            raise refusal(f"it is nested deeper than {_DEPTH_MAX}")
        if isinstance(schema, bool):
            return schema
        kept = self._kept(schema)
        if schema.get("nullable") is True:
            return {"anyOf": [self._combined(kept, depth), {"type": "null"}]}
        return self._combined(kept, depth)

    def _kept(self, schema: Any) -> dict[str, Any]:
        """Return a schema without its annotations."""
        if not isinstance(schema, Mapping):
            raise refusal("a schema must be an object")
        if (unknown := next((keyword for keyword in schema if keyword not in _KNOWN), None)) is not None:
            raise refusal(f"{unknown!r} is not supported")
        return {keyword: value for keyword, value in schema.items() if keyword not in _ANNOTATIONS}

    def _combined(self, schema: dict[str, Any], depth: int) -> Any:
        if schema.keys() == {"$ref"}:
            return self._reference(schema["$ref"], depth)
        schema = dict(self._joined(schema, depth))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._alternatives(schema, keyword, depth)
        types = types_of(schema)
        if types is None and "const" not in schema and "enum" not in schema:
            types = frozenset(name for name, words in _KEYWORDS.items() if words & schema.keys())
        found: dict[str, Any] = {keyword: schema[keyword] for keyword in ("const", "enum") if keyword in schema}
        if types:
            found["type"] = [name for name in TYPES if name in types]
        for keyword in _COUNTS:
            if keyword in schema:
                found[keyword] = _count(schema, keyword)
        self._add_object(schema, found, depth)
        self._add_array(schema, found, depth)
        _add_string(schema, found)
        _add_number(schema, found)
        return found

    def _reference(self, pointer: Any, depth: int) -> Any:
        target = self._target(pointer)
        if pointer not in self._names:
            # Named before it is visited: it may refer to itself.
            name = self._names[pointer] = f"d{len(self._names)}"
            self.definitions[name] = self.visit(target, depth + 1)
        return {"$ref": f"#/$defs/{self._names[pointer]}"}

    def _joined(self, schema: Schema, depth: int) -> Schema:
        """Return a schema with what it refers to and what must hold besides it, as one."""
        if "$ref" not in schema and "allOf" not in schema:
            return schema
        if depth > _DEPTH_MAX:
            raise refusal("schemas that must all hold are nested too deeply")
        joined: Schema = {keyword: value for keyword, value in schema.items() if keyword not in ("$ref", "allOf")}
        if "$ref" in schema:
            joined = self._merge(joined, self._resolve(schema["$ref"], depth))
        for part in _list(schema, "allOf") if "allOf" in schema else ():
            if part is not True:
                joined = self._merge(joined, self._joined(self._kept(part), depth + 1))
        return joined

    def _resolve(self, pointer: Any, depth: int) -> Schema:
        target = self._target(pointer)
        if pointer not in self._resolved:
            self._resolved[pointer] = None
            self._resolved[pointer] = self._joined({} if target is True else self._kept(target), depth + 1)
        found = self._resolved[pointer]
        if found is None:
            raise refusal("a reference leads to itself")
        return found

    def _merge(self, left: Schema, right: Schema) -> Schema:
        for one in (left, right):
            self._spend(1)
            for value in one.values():
                if isinstance(value, dict | list):
                    self._spend(len(value) // 8)
        return merge(left, right)

    def _target(self, pointer: Any) -> Any:
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            raise refusal(f"$ref {str(pointer)[:80]!r} leads out of the schema")
        found = self._root
        for part in pointer[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, dict) and key in found:
                found = found[key]
            else:
                raise refusal(f"$ref {pointer[:80]!r} leads nowhere")
        return found

    def _alternatives(self, schema: dict[str, Any], keyword: str, depth: int) -> Any:
        beside = {name: value for name, value in schema.items() if name != keyword}
        parts = [part for part in _list(schema, keyword) if part is not False]
        if not parts:
            raise refusal(f"{keyword} allows no value")
        if keyword == "oneOf" or beside:
            parts = [self._joined({} if part is True else self._kept(part), depth + 1) for part in parts]
        if keyword == "oneOf" and self._are_told_apart(parts, depth):
            keyword = "anyOf"
        if beside:
            parts = [self._merge(beside, part) for part in parts]
        return {keyword: [self.visit(part, depth + 1) for part in parts]}

    def _are_told_apart(self, parts: list[Schema], depth: int) -> bool:
        """Return True if parts are constants, or each requires a property with a constant that no other has."""
        names = parts[0].get("required", [])
        for name in (None, *(names if isinstance(names, list) else ())):
            seen: set[str] = set()
            count = 0
            for part in parts:
                value: Any = part
                if name is not None:
                    if not isinstance(part.get("required"), list) or name not in part["required"]:
                        break
                    value = part["properties"].get(name) if isinstance(part.get("properties"), Mapping) else None
                    value = self._joined(self._kept(value), depth + 1) if isinstance(value, Mapping) else {}
                constants = [value["const"]] if "const" in value else value.get("enum")
                if not isinstance(constants, list):
                    break
                texts = {same_text(constant) for constant in constants}
                count += len(texts)
                seen |= texts
            else:
                if len(seen) == count:
                    return True
        return False

    def _add_object(self, schema: Schema, found: dict[str, Any], depth: int) -> None:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise refusal("properties must be an object, and required a list")
        if len(properties) + len(required) > _PROPERTIES_MAX:
            raise refusal(f"an object in it has more than {_PROPERTIES_MAX} properties")
        if properties:
            found["properties"] = {name: self.visit(value, depth + 1) for name, value in properties.items()}
        if required:
            found["required"] = required
        if _KEYWORDS["object"] & schema.keys():
            found["additionalProperties"] = self.visit(schema.get("additionalProperties", not properties), depth + 1)

    def _add_array(self, schema: Schema, found: dict[str, Any], depth: int) -> None:
        if schema.get("uniqueItems") is True:
            raise refusal("'uniqueItems' is not supported")
        heads, items = schema.get("prefixItems", []), schema.get("items")
        if isinstance(items, list):  # as older drafts wrote it
            heads, items = items, schema.get("additionalItems")
        if not isinstance(heads, list):
            raise refusal("prefixItems must be a list")
        if heads:
            found["prefixItems"] = [self.visit(head, depth + 1) for head in heads]
            if items is None:  # nothing follows first ones where nothing is said of it
                items = found.get("minItems", 0) > len(heads)
        if items is not None:
            found["items"] = self.visit(items, depth + 1)

    def _spend(self, parts: int) -> None:
        self._parts += parts
        if self._parts > _PARTS_MAX:
            raise refusal(f"it has more than {_PARTS_MAX} parts once those that must all hold are joined")


def _add_string(schema: Schema, found: dict[str, Any]) -> None:
    form = schema.get("format")
    if "pattern" in schema:
        if not isinstance(schema["pattern"], str):
            raise refusal("pattern must be a string")
        found["pattern"] = anchored_pattern(schema["pattern"])
    elif isinstance(form, str) and form in FORMATS:
        found["pattern"] = FORMATS[form]


def _add_number(schema: Schema, found: dict[str, Any]) -> None:
    for name in _BOUNDS:
        value = schema.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _NUMBER_MAX:
            raise refusal(f"{name} must be a number of at most {_NUMBER_MAX}")
        found[name] = value
    types = found.get("type", ())
    if schema.get("multipleOf") is not None:
        if schema["multipleOf"] != 1:
            raise refusal("'multipleOf' is not supported")
        found["type"] = types = list(dict.fromkeys("integer" if name == "number" else name for name in types))
    if "integer" in types and "number" not in types:
        # A model that is unsure could go on with digits for ever.
        if not {"minimum", "exclusiveMinimum"} & found.keys():
            found["minimum"] = min(-_INTEGER_MAX, 2 * found.get("maximum", 0))
        if not {"maximum", "exclusiveMaximum"} & found.keys():
            found["maximum"] = max(_INTEGER_MAX, 2 * found.get("minimum", 0))


def _count(schema: Schema, name: str) -> int:
    value = schema[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise refusal(f"{name} must be a whole number that is not negative")
    if value > _COUNT_MAX:
        raise refusal(f"{name} is more than {_COUNT_MAX}")
    return value


def _list(schema: Schema, keyword: str) -> list[Any]:
    value = schema[keyword]
    if not isinstance(value, list) or not value:
        raise refusal(f"{keyword} must be a list that is not empty")
    return value
