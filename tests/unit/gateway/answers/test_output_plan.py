"""Constraints of an answer, and the parser that reads it."""

import json

import pytest

from gateway.answers.output import OutputPlan, plan_output
from gateway.core.request.answer_format import AnswerFormat
from gateway.core.request.answers import AnswerRequest, Chat, Delta, Dialect, Message, RawPrompt, Think
from gateway.core.request.constraint import FreeText
from runner.core.grammar.constraint_text import ConstraintText
from runner.core.grammar.token_grammar import TokenGrammar
from tests.unit.runner.grammar_walks import constrained, matches

HARMONY = "<|channel|>"
THINKING = "<think></think><tool_call>"
SCHEMA = AnswerFormat(field="format", json_schema='{"const": "</think> <|end|> <tool_call>"}')
JSON = json.dumps(json.loads(SCHEMA.json_schema)["const"])
TOOLS = ({"type": "function", "function": {"name": "look"}},)


def plan(
    template: str, *, think: Think | None = None, forced: bool = False, format_: AnswerFormat | None = SCHEMA
) -> OutputPlan:
    chat = Chat(
        messages=(Message(role="user", content="x"),),
        tools=TOOLS if forced else (),
        forced_tools=("look",) if forced else (),
    )
    return plan_output(
        template, AnswerRequest(dialect=Dialect.OPENAI, model="m", prompt=chat, think=think, format=format_)
    )


def grammar_of(one: OutputPlan, prompt_end: str = "") -> TokenGrammar:
    found = one.constraint(prompt_end)
    assert found is not None
    free = found.free_text
    wanted = ConstraintText(
        kind="grammar" if found.grammar else "json_schema",
        text=found.grammar or found.json_schema,
        schemas=tuple(found.schemas.items()),
        free_text=None if free is None else (free.opening, free.closing),
    )
    return constrained(wanted)


def read(one: OutputPlan, text: str, prompt_end: str = "") -> tuple[str, str, list[str]]:
    """Reasoning, content, names of calls."""
    parser = one.parser(prompt_end)
    deltas = [*(delta for character in text for delta in parser.feed(Delta(content=character))), *parser.finish()]
    whole = Delta.joined(deltas)
    return whole.reasoning, whole.content, [call.name for call in whole.tool_calls]


@pytest.mark.parametrize(
    ("template", "prompt_end", "text", "reasoning"),
    [
        (THINKING, "", JSON, ""),
        (THINKING, "", f"<think>well</think>\n\n{JSON}", "well"),
        (THINKING, "<think>\n", f"well</think>\n{JSON}", "well"),
        (HARMONY, "", f"<|channel|>final<|message|>{JSON}", ""),
        (
            HARMONY,
            "",
            f"<|channel|>analysis<|message|>well<|end|><|start|>assistant<|channel|>final<|message|>{JSON}",
            "well",
        ),
    ],
)
def test_json_behind_reasoning_is_content_whatever_it_holds(
    template: str, prompt_end: str, text: str, reasoning: str
) -> None:
    one = plan(template)
    assert matches(grammar_of(one, prompt_end), text)
    assert read(one, text, prompt_end) == (reasoning, JSON, [])


@pytest.mark.parametrize(
    ("template", "think", "prompt_end", "free"),
    [
        (THINKING, Think.OFF, "", None),
        (THINKING, Think.OFF, "<think>", FreeText(opening="", closing="</think>")),
        (THINKING, Think.ON, "", FreeText(opening="<think>", closing="</think>")),
        (HARMONY, Think.OFF, "", None),
        ("", None, "", None),
    ],
)
def test_reasoning_is_free_where_the_model_may_reason(
    template: str, think: Think | None, prompt_end: str, free: FreeText | None
) -> None:
    for one in (plan(template, think=think), plan(template, think=think, forced=True)):
        found = one.constraint(prompt_end)
        assert found is not None
        assert found.free_text == free


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (THINKING, '<think>well</think>\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'),
        (
            HARMONY,
            (
                "<|channel|>analysis<|message|>well<|end|><|start|>assistant"
                "<|channel|>commentary to=functions.look <|constrain|>json<|message|>{}"
            ),
        ),
    ],
)
def test_forced_calls_stand_behind_reasoning(template: str, text: str) -> None:
    one = plan(template, forced=True)
    assert matches(grammar_of(one), text)
    assert not matches(grammar_of(one), JSON)
    assert read(one, text) == ("well", "", ["look"])
    assert one.wanted is not None
    assert one.wanted.field == "tools"


def test_prompts_without_a_template_are_held_from_the_first_token_on() -> None:
    request = AnswerRequest(dialect=Dialect.OPENAI, model="m", prompt=RawPrompt(text="x"), format=SCHEMA)
    one = plan_output(THINKING, request)
    found = one.constraint("<think>")
    assert found is not None
    assert found.free_text is None
    assert one.markers == ()
    assert plan(THINKING, format_=None).constraint("") is None
