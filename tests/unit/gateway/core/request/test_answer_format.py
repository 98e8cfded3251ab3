"""Answer formats in every dialect's words."""

import json
from typing import Any

import pytest

from common.errors import InvalidRequest
from gateway.core.request.answer_format import (
    AnswerFormat,
    in_words_of_the_client,
    only_one,
    parse_format,
    parse_grammar_field,
    parse_response_format,
)

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "string"}}}


@pytest.mark.parametrize("value", [None, ""])
def test_no_format_is_no_constraint(value: object) -> None:
    assert parse_format(value) is None
    assert parse_response_format(None) is None
    assert parse_response_format({"type": "text"}) is None
    assert parse_grammar_field(value) is None


def test_json_means_any_object() -> None:
    for found in (parse_format("json"), parse_response_format({"type": "json_object"})):
        assert found is not None
        assert json.loads(found.json_schema) == {"type": "object"}


def test_a_schema_is_passed_on_with_its_properties_in_order() -> None:
    wrapped = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
    for found in (parse_format(SCHEMA), parse_response_format(wrapped)):
        assert found is not None
        assert list(json.loads(found.json_schema)["properties"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("parse", "value", "param"),
    [
        (parse_format, "xml", "format"),
        (parse_format, 5, "format"),
        (parse_format, {"title": "x" * 200_000}, "format"),
        (parse_response_format, "json", "response_format"),
        (parse_response_format, {"type": "xml"}, "response_format"),
        (parse_response_format, {"type": "json_schema"}, "response_format"),
        (parse_response_format, {"type": "json_schema", "json_schema": {"schema": "x"}}, "response_format"),
        (parse_grammar_field, {"root": "x"}, "grammar"),
    ],
)
def test_anything_else_is_refused_by_name(parse: Any, value: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(value)
    assert refused.value.param == param


def test_two_formats_exclude_each_other() -> None:
    grammar, schema = AnswerFormat(field="grammar", grammar="x"), AnswerFormat(field="format", json_schema="{}")
    assert only_one(None, grammar) is grammar
    assert only_one(None, None) is None
    with pytest.raises(InvalidRequest):
        only_one(schema, grammar)


def test_what_a_runner_refuses_is_told_in_the_client_s_words() -> None:
    wanted = AnswerFormat(field="response_format", json_schema="{}")
    error = InvalidRequest("json_schema cannot be used: 'not' is not supported", param="json_schema")
    told = in_words_of_the_client(error, wanted)
    assert (told.message, told.param) == ("response_format cannot be used: 'not' is not supported", "response_format")
    other = InvalidRequest("temperature", param="temperature")
    assert in_words_of_the_client(other, wanted) is other
    assert in_words_of_the_client(error, None) is error
