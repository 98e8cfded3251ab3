"""Formats of answers in vLLM's fields."""

import pytest

from common.errors import InvalidRequest
from gateway.core.request.answer_format import parse_guided, parse_response_format

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
SCHEMA_TEXT = '{"type":"object","properties":{"a":{"type":"integer"}}}'


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": SCHEMA},
        {"guided_json": SCHEMA_TEXT},
        {"structured_outputs": {"json": SCHEMA, "grammar": None, "disable_any_whitespace": True}},
    ],
)
def test_a_schema_is_obeyed(fields: dict[str, object]) -> None:
    (found,) = parse_guided(fields).formats
    assert found.json_schema == SCHEMA_TEXT
    assert found.field in ("guided_json", "structured_outputs.json")


def test_choices_are_a_grammar_of_their_texts() -> None:
    (found,) = parse_guided({"guided_choice": ["yes", 'a "b"']}).formats
    assert found.grammar.startswith('root ::= "\\U00000079\\U00000065\\U00000073" | "')
    assert parse_guided({"structured_outputs": {"choice": ["yes"]}}).formats[0].field == "structured_outputs.choice"


def test_a_grammar_and_any_object_are_obeyed() -> None:
    (grammar,) = parse_guided({"guided_grammar": 'root ::= "x"'}).formats
    assert (grammar.field, grammar.grammar) == ("guided_grammar", 'root ::= "x"')
    (anything,) = parse_guided({"structured_outputs": {"json_object": True}}).formats
    assert anything.json_schema == '{"type":"object"}'


def test_what_no_grammar_holds_is_named() -> None:
    assert parse_guided({"guided_regex": "a+"}).ignored == ("guided_regex",)
    wishes = {"regex": "a+", "structural_tag": "{}", "json": None, "json_object": False}
    assert parse_guided({"structured_outputs": wishes}).ignored == (
        "structured_outputs.regex",
        "structured_outputs.structural_tag",
    )
    assert parse_guided({"guided_json": None, "structured_outputs": None}).formats == ()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": "no json"}, "guided_json"),
        ({"guided_json": [SCHEMA]}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({"guided_choice": ["a" * 7000]}, "guided_choice"),
        ({"guided_grammar": 5}, "guided_grammar"),
        ({"guided_grammar": "x" * 70_000}, "guided_grammar"),
        ({"structured_outputs": "json"}, "structured_outputs"),
        ({"structured_outputs": {"choice": 5}}, "structured_outputs.choice"),
    ],
)
def test_a_wrong_form_names_its_field(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_guided(fields)
    assert refused.value.param == param
    assert param in refused.value.message


def test_a_json_object_may_have_a_schema_as_llama_server_takes_it() -> None:
    found = parse_response_format({"type": "json_object", "schema": SCHEMA})
    assert found is not None
    assert found.json_schema == SCHEMA_TEXT
