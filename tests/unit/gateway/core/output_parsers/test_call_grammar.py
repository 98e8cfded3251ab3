"""Grammars of forced calls: whatever they allow is read back as calls that fit, in every family's form."""

import json
from typing import Any

import jsonschema
import pytest

from common.errors import InvalidRequest
from gateway.core.output_parsers.call_grammar import call_grammar
from gateway.core.output_parsers.events import CallArguments, CallBegan, Content
from gateway.core.output_parsers.families import Readers
from gateway.core.output_parsers.parser import EventParser, joined
from gateway.core.output_parsers.syntax import CallFamily, Form, OutputSyntax, Tags, syntax_of
from gateway.core.request.tool_choice import anthropic_choice, openai_choice
from runner.core.grammar.constraint_text import ConstraintText
from runner.core.grammar.token_grammar import TokenGrammar
from tests.unit.runner.grammar_walks import constrained, matches, random_text

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
    (CallFamily.HERMES, Form.JSON),
    (CallFamily.LLAMA, Form.JSON),
    (CallFamily.MISTRAL, Form.JSON),
    (CallFamily.MISTRAL, Form.NAMED),
    (CallFamily.DEEPSEEK, Form.FENCED),
    (CallFamily.DEEPSEEK, Form.NAMED),
    (CallFamily.HARMONY, Form.JSON),
    (CallFamily.KIMI, Form.JSON),
    (CallFamily.GEMMA, Form.JSON),
    (CallFamily.PYTHON, Form.JSON),
    (CallFamily.GENERIC, Form.JSON),
]
# Of families whose templates tell more.
SECTIONS = ["<|START_ACTION|>", "<TOOLCALL>", "<tool_calls>[", "<tool_calls>"]
TAGS = [
    "<tool_call><function=",
    "<tool_call><arg_key>",
    "<seed:tool_call>",
    "<minimax:tool_call>",
    "<｜DSML｜function_calls>",
    "<｜DSML｜tool_calls>",
]
SYNTAXES = [*(OutputSyntax(family=family, form=form) for family, form in FORMS)]
SYNTAXES += [syntax_of(template, has_tools=True) for template in SECTIONS]
TYPES = {"get_weather": {"city": "string", "days": "array", "unit": "string"}}


def name_of(syntax: OutputSyntax) -> str:
    return f"{syntax.family}-{syntax.section.telltale if syntax.section else syntax.form}"


def grammar_of(syntax: OutputSyntax, *, several: bool) -> TokenGrammar:
    found = call_grammar(syntax, FUNCTIONS, several=several)
    return constrained(ConstraintText(kind="grammar", text=found.grammar, schemas=tuple(found.schemas.items())))


def calls_in(syntax: OutputSyntax, *pieces: str) -> tuple[list[tuple[str, Any]], str]:
    """Calls, and the rest as content."""
    parser = EventParser(Readers(syntax=syntax, tool_names=frozenset(SCHEMAS), types=TYPES))
    calls: list[list[str]] = []
    content = ""
    for event in joined([*(event for piece in pieces for event in parser.feed(piece)), *parser.finish()]):
        match event:
            case CallBegan(name):
                calls.append([name, ""])
            case CallArguments(fragment):
                calls[-1][1] += fragment
            case Content(said):
                content += said
    return [(name, json.loads(raw)) for name, raw in calls], content


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(
    "syntax", SYNTAXES, ids=lambda one: f"{one.family}-{one.form}-{one.section.telltale if one.section else ''}"
)
def test_whatever_is_allowed_is_read_as_calls_that_fit(syntax: OutputSyntax, several: bool) -> None:
    grammar = grammar_of(syntax, several=several)
    counts = set()
    for seed in range(12):
        text = random_text(grammar, seed).decode()
        calls, content = calls_in(syntax, text)
        assert not content.strip(), text
        for name, arguments in calls:
            jsonschema.validate(arguments, SCHEMAS[name])
        counts.add(len(calls))
    assert min(counts) == 1
    assert (max(counts) > 1) == (several and syntax.family is not CallFamily.HARMONY)


@pytest.mark.parametrize(
    "syntax", SYNTAXES, ids=lambda one: f"{one.family}-{one.form}-{one.section.telltale if one.section else ''}"
)
def test_text_and_unknown_tools_are_not_allowed(syntax: OutputSyntax) -> None:
    grammar = grammar_of(syntax, several=True)
    assert not matches(grammar, "")
    assert not matches(grammar, "It is sunny.")
    text = next(one for seed in range(99) if "now" in (one := random_text(grammar, seed).decode()))
    assert matches(grammar, text)
    assert not matches(grammar, text.replace("now", "later"))


def tagged(tags: Tags, **arguments: str) -> str:
    """A call with its section; values that are no JSON are texts."""
    inside = ""
    for key, value in arguments.items():
        behind = tags.key[1] if key == "city" else tags.key_end_of_json or tags.key[1]
        inside += f"{tags.key[0]}{key}{behind}{value}{tags.value_end}"
    begin, end = tags.section
    return f"{begin}{tags.name[0]}get_weather{tags.name[1]}{inside}{tags.end}{end}"


@pytest.mark.parametrize("template", TAGS)
@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ({"city": "Rome"}, {"city": "Rome"}),
        ({"city": "a < b\n</param>\nc", "days": "[1, 2]"}, {"city": "a < b\n</param>\nc", "days": [1, 2]}),
        ({"city": "12"}, {"city": "12"}),
    ],
)
def test_arguments_between_tags(template: str, arguments: dict[str, str], wanted: dict[str, Any]) -> None:
    syntax = syntax_of(template, has_tools=True)
    assert syntax.tags is not None
    grammar = grammar_of(syntax, several=True)
    text = tagged(syntax.tags, **arguments)
    assert calls_in(syntax, text) == ([("get_weather", wanted)], "")
    assert matches(grammar, text)
    if syntax.tags.around_each or not syntax.tags.section[0]:
        assert calls_in(syntax, f"{text}\n{text}") == ([("get_weather", wanted)] * 2, "")
        assert matches(grammar, f"{text}\n{text}")
    assert not matches(grammar_of(syntax, several=False), f"{text}\n{text}")
    wrong_ones = ({"days": "[1]"}, {"city": "Rome", "days": "[true]"}, {"city": "Rome", "unit": "K"})
    for wrong in (*(tagged(syntax.tags, **one) for one in wrong_ones), f"Well. {text}"):
        assert not matches(grammar, wrong)


@pytest.mark.parametrize("template", TAGS)
def test_tags_are_read_in_any_split(template: str) -> None:
    syntax = syntax_of(template, has_tools=True)
    assert syntax.tags is not None
    text = tagged(syntax.tags, city="Rome", days="[1]")
    for size in (1, 2, 5):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert calls_in(syntax, *pieces) == ([("get_weather", {"city": "Rome", "days": [1]})], "")


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
