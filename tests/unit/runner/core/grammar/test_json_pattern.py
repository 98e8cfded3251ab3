"""Patterns of JSON schemas as grammars, judged by Python's regular expressions."""

import contextlib
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import InvalidRequest
from runner.core.grammar.token_grammar import TokenGrammar
from tests.unit.runner.grammar_walks import matches, random_text, schema_grammar

PATTERNS = [
    "^abc$",
    "^(a|b)+c?$",
    "^[a-f0-9]{2,6}$",
    "^\\d{3}-\\d{4}$",
    "^\\w+@\\w+\\.(com|org)$",
    "^[^\\s]{1,5}$",
    "^\\S+ \\S+$",
    '^"[^"]*"$',
    "^\\\\n?$",
    "^a.b$",
    "^(?:x(?:y(?:z)?)?)?$",
    "^[\\w.-]+/[\\d\\-]*$",
    "^\\u00e9\\x41+$",
    "^[^a-z]$",
    "^(1|22|333)|z$",
    "^\\t\\r?\\n$",
    "^[\\]\\^-]+$",
    "^a{2}b{1,}c{0,2}?$",
    "^\\D\\W\\S$",
    "^[^\\d][^\\w][^\\S]$",
    "^[\\D\\s]{3}$",
    "^[^\\\\]$",
    '^[^"\\x00-\\x08]+$',
    '^(?:[^"\\\\]|\\\\.)*$',
]


def grammar_of(pattern: str) -> TokenGrammar:
    return schema_grammar(json.dumps({"type": "string", "pattern": pattern}))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_text_of_the_grammar_matches_the_pattern(pattern: str) -> None:
    grammar = grammar_of(pattern)
    for seed in range(15):
        assert re.search(pattern, json.loads(random_text(grammar, seed, short_after=40)))


TEXTS = [
    "abc",
    "ab",
    "bac",
    "c",
    "12ab",
    "555-1234",
    "me@x.org",
    "é",
    '"q"',
    "\\",
    "\\n",
    "axb",
    "a\nb",
    "xyz",
    "éA",
    "Z",
    "22",
    "\t\n",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_does_not_match_is_not_allowed_and_what_does_is(pattern: str) -> None:
    grammar = grammar_of(pattern)
    for text in TEXTS:
        # Python's dollar sign also stands before a last line end, that of JSON schemas does not.
        expected = re.search(re.sub(r"\$(?=\||$)", r"\\Z", pattern), text) is not None
        assert matches(grammar, json.dumps(text, ensure_ascii=False)) == expected, text


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a)",
        "(?!a)",
        "(?<x>a)",
        "\\bword",
        "(a)\\1",
        "a^b",
        "*a",
        "[a",
        "(a",
        "a)",
        "[z-a]",
        "a{2000}",
        "\\p{L}",
        "x" * 3000,
    ],
)
def test_what_a_grammar_cannot_say_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        grammar_of(pattern)
    assert "pattern" in refused.value.message


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab01^$.*+?{}[]()|\\\\dws-,", max_size=14))
def test_any_text_is_a_pattern_or_refused(pattern: str) -> None:
    with contextlib.suppress(InvalidRequest):  # anything else would be a bug
        grammar_of(pattern)
