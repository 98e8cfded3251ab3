"""JSON schemas as grammars, judged by another implementation of JSON schema."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.errors import InvalidRequest
from runner.core.grammar.json_schema_grammar import schema_to_grammar
from runner.core.grammar.text import parse_grammar
from tests.unit.runner.grammar_walks import grammar_of, matches, random_text
from tests.unit.runner.json_schemas import EXAMPLES


def grammar_text(schema: Any) -> str:
    return schema_to_grammar(json.dumps(schema))


@pytest.mark.parametrize("name", EXAMPLES)
def test_whatever_the_grammar_allows_validates(name: str) -> None:
    schema, _, _ = EXAMPLES[name]
    grammar = grammar_of(grammar_text(schema))
    for seed in range(12):
        text = random_text(grammar, seed)
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("name", EXAMPLES)
def test_good_values_are_allowed_and_bad_ones_are_not(name: str) -> None:
    schema, good, bad = EXAMPLES[name]
    jsonschema.validate(good, schema)
    grammar = grammar_of(grammar_text(schema))
    for separators in (None, (",", ":"), (",", ": ")):
        assert matches(grammar, json.dumps(good, ensure_ascii=False, separators=separators)) or isinstance(
            schema.get("const"), dict
        )
    assert not matches(grammar, json.dumps(bad, ensure_ascii=False))


def test_pretty_printed_values_are_allowed() -> None:
    value = {"first": "Ann", "last": "Lee", "age": 44, "married": False}
    assert matches(grammar_of(grammar_text(EXAMPLES["person"][0])), json.dumps(value, indent=2))
    assert matches(grammar_of(grammar_text({})), json.dumps([value, {"a": [1, {}]}], indent=4))


def test_any_json_is_allowed_where_nothing_is_said() -> None:
    grammar = grammar_of(grammar_text({}))
    values: list[Any] = [{}, [], "x", -1.5e-3, None, {"a": [{"b": [True, "\u0007\U0001f600"]}]}]
    for value in values:
        assert matches(grammar, json.dumps(value))
        assert matches(grammar, json.dumps(value, ensure_ascii=False))
    for text in ("", "{", '{"a"}', "01", "[1,]", "tru", '"\n"', "nul", "{} x", '"\\ud800"'):
        assert not matches(grammar, text)


def test_white_space_is_bounded() -> None:
    grammar = grammar_of(grammar_text({"type": "array"}))
    assert matches(grammar, "[ 1, 2]")
    assert not matches(grammar, "[" + " " * 100 + "1]")


REFUSED: dict[str, tuple[Any, str]] = {
    "not JSON": ("{", "not JSON"),
    "not a schema": ("[1]", "not an object"),
    "not": ({"not": {"type": "string"}}, "'not'"),
    "if": ({"if": {}, "then": {}}, "'if'"),
    "patternProperties": ({"type": "object", "patternProperties": {}}, "'patternProperties'"),
    "minProperties": ({"type": "object", "minProperties": 1}, "'minProperties'"),
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
    "contains": ({"type": "array", "contains": {}}, "'contains'"),
    "multipleOf": ({"type": "integer", "multipleOf": 3}, "'multipleOf'"),
    "a typing error": ({"type": "object", "propertes": {}}, "'propertes'"),
    "a type that is not there": ({"type": "text"}, "type must be one of"),
    "remote reference": ({"$ref": "https://example.org/schema"}, "leads out of"),
    "dangling reference": ({"$ref": "#/$defs/x"}, "leads nowhere"),
    "looking ahead": ({"type": "string", "pattern": "^(?=a)"}, "pattern"),
    "back reference": ({"type": "string", "pattern": "(a)\\1"}, "pattern"),
    "pattern and length": ({"type": "string", "pattern": "a", "minLength": 2}, "beside 'pattern'"),
    "one of that overlap": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    "nothing": (False, "no value"),
    "empty range": ({"type": "integer", "minimum": 5, "maximum": 4}, "no number"),
    "types that exclude each other": ({"allOf": [{"type": "string"}, {"type": "null"}]}, "no type in common"),
    "required and closed": ({"properties": {"a": {}}, "required": ["b"], "additionalProperties": False}, "'b'"),
    "length beside enum": ({"enum": ["a"], "minLength": 2}, "beside enum"),
    "a reference to itself": ({"$ref": "#"}, "cannot be used"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_grammar_cannot_hold_is_refused_by_name(name: str) -> None:
    schema, expected = REFUSED[name]
    with pytest.raises(InvalidRequest) as refused:
        parse_grammar(
            schema_to_grammar(schema if isinstance(schema, str) else json.dumps(schema)),
            param="json_schema",
        )
    assert expected in refused.value.message
    assert refused.value.param == "json_schema"


def test_depth_and_size_are_bounded() -> None:
    deep: Any = {}
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    for text in (
        json.dumps(deep),
        '{"type": "string", "minLength": 1000000}',
        '{"title": "' + "x" * 200_000 + '"}',
        "[" * 100_000,
    ):
        with pytest.raises(InvalidRequest):
            schema_to_grammar(text)


_KEYWORDS = [
    "type",
    "properties",
    "required",
    "items",
    "prefixItems",
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "enum",
    "const",
]
_KEYWORDS += ["minimum", "maximum", "minLength", "maxLength", "pattern", "minItems", "maxItems", "additionalProperties"]
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.sampled_from(["string", "object", "array", "integer", "#", "a", "^[a"])
)
_JUNK = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYWORDS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_JUNK)
def test_any_json_is_a_schema_or_refused(schema: Any) -> None:
    try:
        text = schema_to_grammar(json.dumps(schema))
        parse_grammar(text, param="json_schema")
    except InvalidRequest:
        pass  # anything else would be a bug
