"""JSON schemas as grammars, judged by another implementation of JSON schema."""

import contextlib
import json
import time
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.errors import InvalidRequest
from runner.check_constraints import CPU_S_MAX, check
from runner.core.grammar.token_grammar import TokenGrammar
from tests.unit.runner.grammar_walks import matches, random_text, schema_grammar
from tests.unit.runner.json_schemas import EXAMPLES


def grammar_of(schema: Any) -> TokenGrammar:
    return schema_grammar(json.dumps(schema))


@pytest.mark.parametrize("name", EXAMPLES)
def test_whatever_the_grammar_allows_validates(name: str) -> None:
    schema, _, _ = EXAMPLES[name]
    grammar = grammar_of(schema)
    for seed in range(12):
        text = random_text(grammar, seed)
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("name", EXAMPLES)
def test_good_values_are_allowed_and_bad_ones_are_not(name: str) -> None:
    schema, good, bad = EXAMPLES[name]
    jsonschema.validate(good, schema)
    grammar = grammar_of(schema)
    for separators in (None, (",", ":"), (",", ": ")):
        assert matches(grammar, json.dumps(good, ensure_ascii=False, separators=separators)) or isinstance(
            schema.get("const"), dict
        )
    assert not matches(grammar, json.dumps(bad, ensure_ascii=False))


def test_pretty_printed_values_are_allowed() -> None:
    value = {"first": "Ann", "last": "Lee", "age": 44, "married": False}
    assert matches(grammar_of(EXAMPLES["person"][0]), json.dumps(value, indent=2))
    assert matches(grammar_of({}), json.dumps([value, {"a": [1, {}]}], indent=4))


def test_any_json_is_allowed_where_nothing_is_said() -> None:
    grammar = grammar_of({})
    values: list[Any] = [{}, [], "x", -1.5e-3, None, {"a": [{"b": [True, '\n"\\\U0001f600']}]}]
    for value in values:
        assert matches(grammar, json.dumps(value, ensure_ascii=False))
    for text in ("", "{", '{"a"}', "01", "[1,]", "tru", '"\n"', "nul", "{} x", '"\\ud800"'):
        assert not matches(grammar, text)


def test_white_space_is_bounded() -> None:
    grammar = grammar_of({"type": "array"})
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
    "one of that overlap": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    "nothing": (False, "no value"),
    "empty range": ({"type": "integer", "minimum": 5, "maximum": 4}, "greater than maximum"),
    "types that exclude each other": ({"allOf": [{"type": "string"}, {"type": "null"}]}, "no type in common"),
    "required and closed": ({"properties": {"a": {}}, "required": ["b"], "additionalProperties": False}, "'b'"),
    "length beside enum": ({"enum": ["a"], "minLength": 2}, "length"),
    "a reference to itself": ({"$ref": "#"}, "cannot be used"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_grammar_cannot_hold_is_refused_by_name(name: str) -> None:
    schema, expected = REFUSED[name]
    with pytest.raises(InvalidRequest) as refused:
        schema_grammar(schema if isinstance(schema, str) else json.dumps(schema))
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
            schema_grammar(text)


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
    with contextlib.suppress(InvalidRequest):  # anything else would be a bug
        grammar_of(schema)


_NAMES = ("a", "b", "c", "d")
_REFERENCES = st.sampled_from(_NAMES).map(lambda name: {"$ref": f"#/$defs/{name}"})
_GRAPH_NODE = st.recursive(
    _REFERENCES | st.sampled_from([{"type": "object"}, {"type": "string"}, {"const": 1}, {"enum": ["x", "y"]}]),
    lambda inner: (
        st.tuples(st.sampled_from(["allOf", "anyOf", "oneOf"]), st.lists(inner, min_size=1, max_size=3)).map(
            lambda one: {one[0]: one[1]}
        )
        | st.tuples(st.sampled_from(_NAMES), inner).map(
            lambda one: {"properties": {one[0]: one[1]}, "required": [one[0]]}
        )
        | st.tuples(_REFERENCES, inner).map(lambda one: {**one[0], "properties": {"p": one[1]}})
        | inner.map(lambda items: {"type": "array", "items": items})
    ),
    max_leaves=8,
)


def check_cost(schema: Any) -> None:
    """Compile as the worker does, without its limit on CPU time, and check that the limit is not needed."""
    wanted: dict[str, Any] = {
        "kind": "json_schema",
        "text": json.dumps(schema),
        "free_text": None,
        "schemas": {},
        "lenient": [],
    }
    started_s = time.process_time()
    check(wanted)
    assert time.process_time() - started_s < CPU_S_MAX


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.fixed_dictionaries(dict.fromkeys(_NAMES, _GRAPH_NODE)))
def test_any_graph_of_references_compiles_or_is_refused_in_two_seconds(graph: dict[str, Any]) -> None:
    check_cost({"$defs": graph, "$ref": "#/$defs/a"})


def _chain(levels: int) -> Any:
    defs: dict[str, Any] = {"a0": {"type": "object"}}
    for level in range(levels):
        below = {"$ref": f"#/$defs/a{level}"}
        defs[f"a{level + 1}"] = {"allOf": [below, below, {"properties": {f"p{level}": {"allOf": [below, below]}}}]}
    return {"$defs": defs, "$ref": f"#/$defs/a{levels}"}


HOSTILE: dict[str, Any] = {
    "a chain that doubles": _chain(30),
    "many constants": {"oneOf": [{"const": f"v{number}x"} for number in range(4_900)]},
    "two large enums": {"allOf": [{"enum": [f"v{number}" for number in range(6_000)]}] * 2},
    "many optional properties": {"properties": {f"p{number}": {"type": "string"} for number in range(2_000)}},
    "many properties": {"properties": {f"{number}": {} for number in range(12_000)}},
    "counts in a pattern": {"type": "string", "pattern": "^([a-z]{1,200}){1,200}$"},
    "counts in counts": {"type": "string", "pattern": "^(([a-z]{1,100}){1,100}){1,100}$"},
    "many patterns": {"properties": {f"p{n}": {"pattern": f"^([a-z]{{1,{n}}}){{1,200}}$"} for n in range(1, 900)}},
    "long arrays": {"items": {"items": {"items": {}, "maxItems": 20_000}, "maxItems": 20_000}, "maxItems": 20_000},
    "many ranges": {"properties": {f"p{n}": {"type": "integer", "minimum": -12345678901 - n} for n in range(1_900)}},
    "alternatives of objects": {
        "oneOf": [{"properties": {f"k{n}": {"const": n}}, "required": [f"k{n}"]} for n in range(1_500)]
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_compile_or_are_refused_in_two_seconds(name: str) -> None:
    check_cost(HOSTILE[name])
