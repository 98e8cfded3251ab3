"""Grammars of forced calls: whatever they allow is read back as calls that fit, in every family's form."""

import json
from typing import Any

import jsonschema
import pytest

from common.errors import InvalidRequest
from gateway.core.markup.call_grammar import call_grammar
from gateway.core.markup.events import CallArguments, CallBegan, Content
from gateway.core.markup.families import Family, Form, Markup, Readers
from gateway.core.markup.parser import MarkupParser, joined
from gateway.core.tool_choice import anthropic_choice, openai_choice
from runner.core.grammar import Grammar
from runner.core.grammar_text import parse_grammar
from runner.core.json_schema_grammar import schema_to_grammar
from tests.unit.runner.grammar_walks import matches, random_text

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        "unit": {"type": "string", "enum": ["C", "F"]},
    },
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTIONS: list[dict[str, Any]] = [{"name": "get_weather", "parameters": WEATHER}, {"name": "now"}]
SCHEMAS = {"get_weather": WEATHER, "now": {"const": {}}}
FORMS = [
    (Family.HERMES, Form.JSON),
    (Family.LLAMA, Form.JSON),
    (Family.MISTRAL, Form.JSON),
    (Family.MISTRAL, Form.NAMED),
    (Family.DEEPSEEK, Form.FENCED),
    (Family.DEEPSEEK, Form.NAMED),
    (Family.HARMONY, Form.JSON),
    (Family.GENERIC, Form.JSON),
]
TYPES = {"get_weather": {"city": "string", "days": "array", "unit": "string"}}


def grammar_of(markup: Markup, *, several: bool) -> Grammar:
    found = call_grammar(markup, FUNCTIONS, several=several)
    parts = {name: parse_grammar(schema_to_grammar(text)) for name, text in found.schemas.items()}
    return Grammar(parse_grammar(found.grammar, parts=parts))


def calls_in(markup: Markup, text: str) -> tuple[list[tuple[str, Any]], str]:
    """Calls, and the rest as content."""
    parser = MarkupParser(Readers(markup=markup, tool_names=frozenset(SCHEMAS), types=TYPES))
    calls: list[list[str]] = []
    content = ""
    for event in joined([*parser.feed(text), *parser.finish()]):
        match event:
            case CallBegan(name):
                calls.append([name, ""])
            case CallArguments(fragment):
                calls[-1][1] += fragment
            case Content(said):
                content += said
    return [(name, json.loads(raw)) for name, raw in calls], content


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(("family", "form"), FORMS)
def test_whatever_is_allowed_is_read_as_calls_that_fit(family: Family, form: Form, several: bool) -> None:
    markup = Markup(family=family, form=form)
    grammar = grammar_of(markup, several=several)
    counts = set()
    for seed in range(12):
        text = random_text(grammar, seed).decode()
        calls, content = calls_in(markup, text)
        assert not content.strip(), text
        for name, arguments in calls:
            jsonschema.validate(arguments, SCHEMAS[name])
        counts.add(len(calls))
    assert min(counts) == 1
    assert (max(counts) > 1) == (several and family is not Family.HARMONY)


@pytest.mark.parametrize(("family", "form"), FORMS)
def test_text_and_unknown_tools_are_not_allowed(family: Family, form: Form) -> None:
    grammar = grammar_of(Markup(family=family, form=form), several=True)
    assert not matches(grammar, "")
    assert not matches(grammar, "It is sunny.")
    text = next(one for seed in range(99) if "now" in (one := random_text(grammar, seed).decode()))
    assert matches(grammar, text)
    assert not matches(grammar, text.replace("now", "later"))


def tagged(**arguments: str) -> str:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function=get_weather>\n{inside}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"city": "Rome"}, {"city": "Rome"}),
        ({"city": "a < b\n</param>\nc", "days": "[1, 2]"}, {"city": "a < b\n</param>\nc", "days": [1, 2]}),
    ],
)
def test_arguments_between_tags(arguments: dict[str, str], wanted: dict[str, Any]) -> None:
    markup = Markup(family=Family.HERMES, form=Form.TAGS)
    grammar = grammar_of(markup, several=True)
    text = tagged(**arguments)
    assert calls_in(markup, text) == ([("get_weather", wanted)], "")
    assert matches(grammar, text)
    assert matches(grammar, f"{text}\n{text}")
    assert not matches(grammar_of(markup, several=False), f"{text}\n{text}")
    for wrong in (
        tagged(days="[1]"),
        tagged(city="Rome", days="[true]"),
        tagged(city="Rome", unit="K"),
        f"Well. {text}",
    ):
        assert not matches(grammar, wrong)


TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (None, ()),
        ("auto", ()),
        ("required", ("get_weather", "now")),
        ({"type": "function", "function": {"name": "now"}}, ("now",)),
        ({"type": "function", "name": "now"}, ("now",)),
    ],
)
def test_choices_of_openai(choice: object, names: tuple[str, ...]) -> None:
    assert openai_choice(choice, TOOLS) == names


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({}, ()),
        ({"type": "auto"}, ()),
        ({"type": "any"}, ("get_weather", "now")),
        ({"type": "tool", "name": "now"}, ("now",)),
    ],
)
def test_choices_of_anthropic(choice: dict[str, object], names: tuple[str, ...]) -> None:
    assert anthropic_choice(choice, TOOLS) == names


@pytest.mark.parametrize(
    "choice", ["always", {"type": "function", "name": "later"}, {"type": "tool", "name": "now"}, 5]
)
def test_choices_that_cannot_be_kept_are_refused(choice: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        openai_choice(choice, TOOLS)
    assert refused.value.param == "tool_choice"


def test_a_forced_choice_needs_tools() -> None:
    with pytest.raises(InvalidRequest):
        openai_choice("required", ())
    with pytest.raises(InvalidRequest):
        anthropic_choice({"type": "any"}, ())
