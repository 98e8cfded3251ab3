"""A JSON schema as a grammar: every text of the grammar is JSON that validates. Pure.

The grammar may give less than the schema allows (properties in their declared order, bounded white space), never more.
A keyword that a grammar cannot hold is refused by name; annotations are passed over.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from runner.core.grammar.json_grammar_parts import BASE_RULES, FORMATS, integer_range, number_range, repeated
from runner.core.grammar.json_pattern import pattern_to_grammar
from runner.core.grammar.json_schema_merge import ANNOTATIONS, TYPES, Schema, merge, refusal, types_of
from runner.core.grammar.json_schema_objects import (
    DeclaredProperty,
    distinct,
    equal,
    kind_of,
    literal,
    object_text,
    other_name,
)

SCHEMA_BYTES_MAX = 128 * 1024
_DEPTH_MAX = 64
_RULES_MAX = 8_000
_LENGTH_MAX = 20_000
_NUMBER_MAX = 10**18

_KEYWORDS: Mapping[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
}
_COMBINING = frozenset({"type", "const", "enum", "anyOf", "oneOf", "allOf", "$ref", "nullable"})
_KNOWN = frozenset().union(*_KEYWORDS.values()) | _COMBINING | ANNOTATIONS


def schema_to_grammar(text: str) -> str:
    """Convert a schema to a grammar.

    Raises:
        InvalidRequest: not a schema, too large, or with something that a grammar cannot hold.
    """
    if len(text.encode(errors="replace")) > SCHEMA_BYTES_MAX:
        raise refusal(f"it is longer than {SCHEMA_BYTES_MAX} bytes")
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        raise refusal("it is not JSON") from None
    if not isinstance(schema, dict | bool):
        raise refusal("it is not an object")
    return _Converter(schema).convert()


class _Converter:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._rules: dict[str, str] = {**BASE_RULES, "plain": r'[^"\\\x00-\x1F\x7F]'}
        self._names: dict[str, str] = {}  # by text, so that equal rules are one
        self._references: dict[str, str] = {}

    def convert(self) -> str:
        try:
            root = self._visit(self._root, 0)
        except RecursionError:
            raise refusal("it is nested too deeply") from None
        lines = [f"root ::= {root}", *(f"{name} ::= {text}" for name, text in self._rules.items())]
        return "\n".join(lines) + "\n"

    def _add(self, text: str) -> str:
        """Return the name of a rule with this text."""
        if text in self._names:
            return self._names[text]
        name = self._names[text] = f"r{len(self._rules)}"
        self._define(name, text)
        return name

    def _define(self, name: str, text: str) -> None:
        self._rules[name] = text
        if len(self._rules) > _RULES_MAX:
            raise refusal(f"it takes more than {_RULES_MAX} rules")

    def _visit(self, schema: Any, depth: int) -> str:
        """Return the name of the rule for the values of a schema."""
        if depth > _DEPTH_MAX:
            raise refusal(f"it is nested deeper than {_DEPTH_MAX}")
        if schema is True or schema == {}:
            return "value"
        if schema is False:
            raise refusal("false allows no value")
        if not isinstance(schema, Mapping):
            raise refusal("a schema must be an object")
        if (unknown := next((keyword for keyword in schema if keyword not in _KNOWN), None)) is not None:
            raise refusal(f"{unknown!r} is not supported")
        kept = {keyword: value for keyword, value in schema.items() if keyword not in ANNOTATIONS}
        nullable = kept.pop("nullable", False) is True
        rule = self._combined(kept, depth)
        return self._add(f"{rule} | null") if nullable else rule

    def _combined(self, schema: dict[str, Any], depth: int) -> str:
        if "$ref" in schema:
            return self._reference(schema, depth)
        if "allOf" in schema:
            joined: Schema = {keyword: value for keyword, value in schema.items() if keyword != "allOf"}
            for part in self._list(schema, "allOf"):
                if part is not True:
                    joined = merge(joined, self._resolved(part, depth))
            return self._visit(joined, depth + 1)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                return self._alternatives(schema, keyword, depth)
        if "const" in schema or "enum" in schema:
            return self._constants(schema)
        types = types_of(schema)
        if types is None:
            types = self._implied(schema)
        names = [self._typed(name, schema, depth) for name in TYPES if name in types]
        return names[0] if len(names) == 1 else self._add(" | ".join(names))

    def _implied(self, schema: Schema) -> frozenset[str]:
        """Return the types whose keywords a schema without a type has; every type if it has none."""
        implied = frozenset(name for name, keywords in _KEYWORDS.items() if keywords & schema.keys())
        return implied or frozenset(TYPES) - {"integer"}

    def _reference(self, schema: dict[str, Any], depth: int) -> str:
        pointer = schema["$ref"]
        beside = {keyword: value for keyword, value in schema.items() if keyword != "$ref"}
        if beside:
            return self._visit(merge(beside, self._resolved({"$ref": pointer}, depth)), depth + 1)
        target = self._target(pointer)
        if pointer not in self._references:
            # Named before it is visited: it may refer to itself.
            name = self._references[pointer] = f"ref{len(self._references)}"
            self._define(name, '""')
            self._define(name, self._visit(target, depth + 1))
        return self._references[pointer]

    def _resolved(self, schema: Any, depth: int) -> Schema:
        """Return a part of something that is joined, without a reference on top."""
        for _ in range(_DEPTH_MAX):
            if not isinstance(schema, Mapping):
                raise refusal("a schema must be an object")
            if "$ref" not in schema:
                if "allOf" in schema:
                    joined: Schema = {keyword: value for keyword, value in schema.items() if keyword != "allOf"}
                    for part in self._list(schema, "allOf"):
                        if depth > _DEPTH_MAX:
                            raise refusal("schemas that must all hold are nested too deeply")
                        joined = merge(joined, self._resolved(part, depth + 1))
                    return joined
                return schema
            beside = {keyword: value for keyword, value in schema.items() if keyword != "$ref"}
            target = self._target(schema["$ref"])
            schema = merge(beside, target if isinstance(target, Mapping) else {})
        raise refusal("a reference leads to itself")

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

    def _alternatives(self, schema: dict[str, Any], keyword: str, depth: int) -> str:
        beside = {name: value for name, value in schema.items() if name != keyword}
        parts = [part for part in self._list(schema, keyword) if part is not False]
        if beside:
            parts = [merge(beside, self._resolved(part, depth)) if part is not True else beside for part in parts]
        if not parts:
            raise refusal(f"{keyword} allows no value")
        if keyword == "oneOf":
            resolved = [self._resolved(part, depth) if part is not True else {} for part in parts]
            for number, one in enumerate(resolved):
                if not all(distinct(one, other) for other in resolved[number + 1 :]):
                    raise refusal("more than one alternative of oneOf may hold at once; use anyOf")
        return self._add(" | ".join(dict.fromkeys(self._visit(part, depth + 1) for part in parts)))

    def _constants(self, schema: Schema) -> str:
        beside = schema.keys() - {"const", "enum", "type"}
        if beside:
            raise refusal(f"{min(beside)!r} beside enum or const is not supported")
        values = self._list(schema, "enum") if "enum" in schema else [schema["const"]]
        if "const" in schema:
            values = [value for value in values if equal(value, schema["const"])]
        types = types_of(schema)
        texts = [literal(value) for value in values if types is None or _is_of(value, types)]
        if not texts:
            raise refusal("enum has no value that is allowed")
        return self._add(" | ".join(dict.fromkeys(texts)))

    def _typed(self, name: str, schema: Schema, depth: int) -> str:
        match name:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._string(schema)
            case "integer":
                return self._number(schema, whole=True)
            case "number":
                return self._number(schema, whole=False)
        return name

    def _object(self, schema: Schema, depth: int) -> str:
        if not _KEYWORDS["object"] & schema.keys():
            return "object"
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise refusal("properties must be an object, and required a list")
        if not all(isinstance(name, str) for name in required):
            raise refusal("required must be a list of names")
        extra = schema.get("additionalProperties", not properties)
        declared = {**properties, **{name: extra for name in required if name not in properties}}
        if impossible := [name for name in required if declared[name] is False]:
            raise refusal(f"{impossible[0]!r} is required and not allowed")
        members = [
            DeclaredProperty(name, self._visit(value, depth + 1), name in required)
            for name, value in declared.items()
            if value is not False
        ]
        more = None
        if extra is not False:
            more = self._add(
                f'{self._add(other_name(list(declared), self._add))} ":" ws {self._visit(extra, depth + 1)}'
            )
        return self._add(object_text(members, more, self._add))

    def _array(self, schema: Schema, depth: int) -> str:
        if schema.get("uniqueItems") is True:
            raise refusal("'uniqueItems' is not supported")
        least, most = self._count(schema, "minItems") or 0, self._count(schema, "maxItems")
        if most is not None and most < least:
            raise refusal("maxItems is less than minItems")
        heads, items = _heads_and_items(schema)
        first = [self._visit(head, depth + 1) for head in heads][:most]
        least = max(0, least - len(first))
        most = None if most is None else most - len(first)
        if items is False:
            most = 0
        if most == 0:
            if least:
                raise refusal("minItems asks for more items than there may be")
            return self._add(f'"[" ws {_joined(first)} ws "]"' if first else '"[" ws "]"')
        item = self._visit(items, depth + 1)
        following = self._add(f'"," ws {item}')
        if first:
            return self._add(f'"[" ws {_joined(first)} {repeated(following, least, most)} ws "]"')
        inside = f"{item} {repeated(following, max(0, least - 1), None if most is None else most - 1)} ws"
        return self._add(f'"[" ws {inside} "]"' if least else f'"[" ws ({inside})? "]"')

    def _string(self, schema: Schema) -> str:
        least, most = self._count(schema, "minLength") or 0, self._count(schema, "maxLength")
        if "pattern" in schema:
            if least or most is not None:
                raise refusal("'minLength' or 'maxLength' beside 'pattern' is not supported")
            if not isinstance(schema["pattern"], str):
                raise refusal("pattern must be a string")
            return self._add(f'"\\"" ({pattern_to_grammar(schema["pattern"])}) "\\""')
        form = schema.get("format")
        if isinstance(form, str) and form in FORMATS and not least and most is None:
            return self._add(f'"\\"" {self._add(FORMATS[form])} "\\""')
        if not least and most is None:
            return "string"
        if most is not None and most < least:
            raise refusal("maxLength is less than minLength")
        return self._add(f'"\\"" {repeated("char", least, most)} "\\""')

    def _number(self, schema: Schema, *, whole: bool) -> str:
        step = schema.get("multipleOf")
        if step is not None:
            if step != 1:
                raise refusal("'multipleOf' is not supported")
            whole = True
        bounds = {name: self._bound(schema, name) for name in _KEYWORDS["number"] - {"multipleOf"}}
        low, above = _stricter(bounds["minimum"], bounds["exclusiveMinimum"], max)
        high, below = _stricter(bounds["maximum"], bounds["exclusiveMaximum"], min)
        if low is None and high is None:
            return "integer" if whole else "number"
        text = (_whole_text if whole else number_range)(low, high, above=above, below=below)
        if not text:
            raise refusal("no number lies between its bounds")
        return self._add(text)

    def _bound(self, schema: Schema, name: str) -> float | None:
        value = schema.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _NUMBER_MAX:
            raise refusal(f"{name} must be a number of at most 18 digits")
        return value

    def _count(self, schema: Schema, name: str) -> int | None:
        value = schema.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise refusal(f"{name} must be a whole number that is not negative")
        if value > _LENGTH_MAX:
            raise refusal(f"{name} is more than {_LENGTH_MAX}")
        return value

    def _list(self, schema: Schema, keyword: str) -> list[Any]:
        value = schema[keyword]
        if not isinstance(value, list) or not value:
            raise refusal(f"{keyword} must be a list that is not empty")
        return value


def _heads_and_items(schema: Schema) -> tuple[list[Any], Any]:
    """Schemas of the first items, and the one of all others; nothing follows first ones where nothing is said of it."""
    heads, items = schema.get("prefixItems", []), schema.get("items")
    if isinstance(items, list):  # as older drafts wrote it
        heads, items = items, schema.get("additionalItems")
    if not isinstance(heads, list):
        raise refusal("prefixItems must be a list")
    if items is None:
        more = not heads or (isinstance(schema.get("minItems"), int) and schema["minItems"] > len(heads))
        items = bool(more)
    return heads, items


def _joined(rules: list[str]) -> str:
    return ' "," ws '.join(rules)


def _stricter(
    bound: float | None, exclusive: float | None, choose: Callable[[float, float], float]
) -> tuple[float | None, bool]:
    """Return the bound that counts, and whether it is left out itself."""
    if bound is None or exclusive is None:
        return (bound, False) if exclusive is None else (exclusive, True)
    return choose(bound, exclusive), choose(bound, exclusive) == exclusive


def _whole_text(low: float | None, high: float | None, *, above: bool, below: bool) -> str | None:
    first = None if low is None else -int(-low // 1)
    last = None if high is None else int(high // 1)
    if first is not None and above and first == low:
        first += 1
    if last is not None and below and last == high:
        last -= 1
    if first is not None and last is not None and last < first:
        return None
    return integer_range(first, last)


def _is_of(value: Any, types: frozenset[str]) -> bool:
    kind = kind_of(value)
    is_whole = kind == "number" and (isinstance(value, int) or value.is_integer())
    return kind in types or (is_whole and "integer" in types)
