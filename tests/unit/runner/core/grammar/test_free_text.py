"""Constraints that begin behind free text: which texts match, and where answers under them may end."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import InvalidRequest
from protos import runner_pb2
from runner.core.grammar.constraint_text import ConstraintText
from runner.core.grammar.token_grammar import GrammarCursor, TokenGrammar
from runner.serve.constraints import ConstraintReader
from tests.engines.fake_model import END, FakeVocabulary
from tests.unit.runner.grammar_walks import constrained, grammar_of, matches

VOCABULARY = FakeVocabulary()


def behind(closing: str, opening: str = "") -> TokenGrammar:
    return grammar_of('root ::= "X"', free_text=(opening, closing))


@pytest.mark.parametrize("closing", ["</t>", "aab", "abab", "a", "é→é"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_constraint_holds_behind_the_first_closing_text(closing: str, data: st.DataObject) -> None:
    text = data.draw(st.text(st.sampled_from([*closing, "X", " ", "ü", "]", "^"]), max_size=24))
    wanted = re.compile(f"(?s)(.*?){re.escape(closing)}[ \t\r\n]{{0,16}}X")
    found = wanted.fullmatch(text)
    # The first closing text counts: no later one can be where the free text ends.
    expected = found is not None and text.index(closing) == len(found[1])
    assert matches(behind(closing), text) == expected
    assert matches(behind(closing), f"{text}{closing}\n\nX") == (closing not in f"{text}{closing}"[:-1])


def test_free_text_that_must_be_opened_may_be_missing() -> None:
    grammar = behind("</think>", "<think>")
    assert matches(grammar, "X")
    assert matches(grammar, "<think>so <b> </thin>k</think>\nX")
    assert not matches(grammar, "so</think>X")
    assert not matches(grammar, "<think>so")
    assert not matches(grammar, "<think>X")


def test_an_answer_in_json_may_begin_like_the_text_that_opens_the_reasoning() -> None:
    wanted = ConstraintText(kind="json_schema", text='{"items": {"const": 1}}', free_text=("[THINK]", "[/THINK]"))
    grammar = constrained(wanted)
    for text in ("[1, 1]", "[ 1]", "[THINK][1[/THINK]\n[1]", "[THINK][/THINK][]"):
        assert matches(grammar, text), text
    for text in ("[2]", "[THINK][1]", "x[/THINK][1]", "[THINK][/THINK][2]"):
        assert not matches(grammar, text), text


def test_reasoning_may_be_long() -> None:
    assert matches(behind("</think>"), "so </thin " * 5_000 + "</think>X")


async def cursor(resumed: bytes = b"", **fields: object) -> GrammarCursor:
    asked = runner_pb2.GenerateRequest(resume_token_ids=list(resumed), **fields)  # type: ignore[arg-type]
    found = (await ConstraintReader().read(asked, VOCABULARY)).grammar
    assert found is not None
    return GrammarCursor(found, resumed=tuple(resumed))


THINKING = runner_pb2.FreeText(closing="</t>")


async def test_an_answer_cannot_end_within_its_free_text_and_must_match_behind_it() -> None:
    walk = await cursor(free_text=THINKING, json_schema='{"const": 5}')
    assert not walk.allows(END)
    for byte in b"I think 5</t>":
        assert walk.allows(byte)
        walk.accept(byte)
    assert not walk.allows(ord("I"))
    assert walk.allows(ord("5"))
    walk.accept(ord("5"))
    assert walk.allowed().tolist() == [END]


@pytest.mark.parametrize("told", [b"", b"I", b"I think </", b"I think </t>", b"I think </t>\n", b"I think </t>\n5"])
async def test_a_resumed_answer_is_where_it_was(told: bytes) -> None:
    whole = b"I think </t>\n5"
    fields: Any = {"free_text": THINKING, "json_schema": '{"const": 5}'}
    straight = await cursor(**fields)
    for byte in told:
        straight.accept(byte)
    resumed = await cursor(told, **fields)
    for byte in [*whole[len(told) :], END]:
        assert straight.allowed().tolist() == resumed.allowed().tolist()
        straight.accept(byte)
        resumed.accept(byte)


async def test_a_grammar_takes_rules_from_schemas() -> None:
    walk = await cursor(
        grammar='root ::= "f" one | "g" two', grammar_schemas={"one": '{"const": 1}', "two": '{"enum": [2, 3]}'}
    )
    walk.accept(ord("g"))
    assert walk.allowed().tolist() == list(b"23")


@pytest.mark.parametrize(
    ("schema", "why", "first"),
    [
        ('{"type": "array", "uniqueItems": true}', "uniqueItems", b"["),
        ('{"type": "string", "pattern": "^(?=a)"}', "looking around", b'"'),
        ('{"type": "number", "minimum": 2, "maximum": 1}', "greater than maximum", b"-0123456789"),
    ],
)
async def test_what_no_grammar_can_hold_is_refused_or_counts_as_its_type(schema: str, why: str, first: bytes) -> None:
    schemas = {"one": schema}
    with pytest.raises(InvalidRequest, match=why):
        await cursor(grammar="root ::= one", grammar_schemas=schemas)
    walk = await cursor(grammar="root ::= one", grammar_schemas=schemas, lenient_schemas=["one"])
    assert walk.allowed().tolist() == list(first)


async def test_control_tokens_come_up_only_where_the_request_names_them() -> None:
    class Marked(FakeVocabulary):
        def __init__(self) -> None:
            super().__init__()
            self.control = frozenset({ord("!")})

    for named, allowed in (([], b"?"), ([ord("!")], b"!?")):
        asked = runner_pb2.GenerateRequest(grammar="root ::= [!?]", constraint_token_ids=named)
        found = (await ConstraintReader().read(asked, Marked())).grammar
        assert found is not None
        assert GrammarCursor(found).allowed().tolist() == list(allowed)


@pytest.mark.parametrize("closing", ["", "x" * 129])
async def test_free_text_needs_an_end(closing: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await cursor(free_text=runner_pb2.FreeText(closing=closing), json_schema="{}")
    assert refused.value.param == "free_text"
