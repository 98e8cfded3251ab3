"""Grammars: what they allow, what is refused, and how much work following one may cost."""

import contextlib
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import InvalidRequest
from runner.core.grammar.gbnf import REPEATS_MAX, TEXT_BYTES_MAX
from runner.core.grammar.token_grammar import CPU_S_AT_START, GrammarCursor, GrammarTooComplex
from tests.unit.runner.grammar_walks import grammar_of, matches

CASES: dict[str, tuple[str, list[str], list[str]]] = {
    "a literal": ('root ::= "yes"', ["yes"], ["", "ye", "yess"]),
    "alternatives": ('root ::= "a" | "b" "c"', ["a", "bc"], ["b", "ac"]),
    "an empty answer": ('root ::= "a"?', ["", "a"], ["aa"]),
    "any number": ('root ::= "ab"*', ["", "ab", "abab"], ["a", "aba"]),
    "one or more": ('root ::= ("a" | "b")+', ["a", "bab"], [""]),
    "counted": ("root ::= [0-9]{2}", ["12"], ["1", "123"]),
    "at least": ("root ::= [0-9]{2,}", ["12", "12345"], ["1"]),
    "between": ("root ::= [0-9]{1,3}", ["1", "123"], ["", "1234"]),
    "a class": ("root ::= [a-cx-]+", ["ab-x"], ["d"]),
    "an inverse class": ('root ::= "<" [^>\\n]* ">"', ["<é x😀>", "<>"], ["<\n>", "<"]),
    "any character": ("root ::= .", ["x", "é", "😀", "\n"], ["", "xy"]),
    "characters of every length": ("root ::= [é日😀]+", ["é😀日"], ["e", "\udcff"]),
    "escapes": (r'root ::= "\x41\u00e9\U0001F600\t\\\"" [\]\-]', ['Aé😀\t\\"]', 'Aé😀\t\\"-'], ["A"]),
    "rules": ('root ::= greeting " " name\ngreeting ::= "hi" | "ho"\nname ::= [a-z]+', ["hi bob"], ["hi "]),
    "recursion": ('root ::= "(" root ")" | ""', ["", "((()))"], ["(", "())"]),
    "right recursion": ('root ::= "a" root | "b"', ["aab", "b"], ["a"]),
    "comments and lines": ('# what\nroot ::= ( # here\n "a" |\n "b" )\n\n', ["a", "b"], ["c"]),
    "a repeated group": ('root ::= ("a" [0-9]? ","){0,2} "."', ["a,a1,.", "."], ["a,a,a,."]),
    "a common beginning": ('root ::= "abc" | "abd" | [a-z]{2} "e"', ["abc", "abd", "abe"], ["abf"]),
    "left recursion": ('root ::= root "a" | "b"', ["b", "baa"], ["", "a"]),
    "hidden left recursion": ('root ::= a root | "y"\na ::= "x"?', ["y", "xy"], ["x"]),
    "left recursion over rules": ('root ::= a\na ::= b "x"\nb ::= a | "y"', ["yx", "yxx"], ["y"]),
    "a repetition of what may be empty": ('root ::= ("a"?)*', ["", "aa"], ["b"]),
    "tails that call each other": ('root ::= "a" b | ""\nb ::= "b" root | "c"', ["", "abab", "abac"], ["ab c", "aba"]),
    "a tail in a group": ('root ::= [a-z]+ ("," root)?', ["a", "a,bc,d"], ["a,", ","]),
    "carriage returns": ('root ::= a\r\na ::= "x"\r\n', ["x"], ["y"]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_grammar_allows_its_texts_and_no_others(name: str) -> None:
    text, good, bad = CASES[name]
    grammar = grammar_of(text)
    for example in good:
        assert matches(grammar, example), example
    for example in bad:
        assert not matches(grammar, example.encode(errors="surrogateescape")), example


@pytest.mark.parametrize("data", [b"\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"a\x80"])
def test_any_character_is_never_half_of_one(data: bytes) -> None:
    assert not matches(grammar_of("root ::= .*"), data)


REFUSED = {
    "nothing": ("", "no rule 'root'"),
    "another root": ('start ::= "a"', "no rule 'root'"),
    "an undefined rule": ("root ::= other", "'other' is used and not defined"),
    "no definition": ("root = 1", "expecting ::="),
    "an open literal": ('root ::= "a', "unexpected end"),
    "an open class": ("root ::= [a", "unexpected end"),
    "an open group": ('root ::= ("a"', "expecting )"),
    "a wrong escape": (r'root ::= "\q"', "unknown escape"),
    "half an escape": (r'root ::= "\u12"', "hexadecimal"),
    "no character": (r'root ::= "\uD800"', "names no character"),
    "an empty class": ("root ::= []", "empty"),
    "a class turned round": ("root ::= [z-a]", "ends before it begins"),
    "nothing to repeat": ("root ::= *", "expecting something to repeat"),
    "a wrong count": ('root ::= "a"{x}', "expecting a number"),
    "counts turned round": ('root ::= "a"{3,2}', "ends before it begins"),
    "too many repetitions": (f'root ::= "a"{{{REPEATS_MAX + 1}}}', "more often than"),
    "nothing but itself": ("root ::= root", "no answer matches"),
    "no way to begin": ('root ::= root "a"', "no answer matches"),
    "many elements": ('root ::= "' + "a" * 120_000 + '"', "elements"),
    "a token": ("root ::= <[12]>", "name tokens"),
    "deep groups": ("root ::= " + "(" * 101 + '"a"' + ")" * 101, "nested deeper"),
    "a long text": ("#" * (TEXT_BYTES_MAX + 1), "longer than"),
    "rest on a line": ('root ::= "a" )', "expecting a new line"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_with_a_reason(name: str) -> None:
    text, reason = REFUSED[name]
    with pytest.raises(InvalidRequest) as refused:
        grammar_of(text)
    assert reason in refused.value.message
    assert refused.value.param == "grammar"


def test_the_reason_names_line_and_place() -> None:
    with pytest.raises(InvalidRequest, match=r"at '@ nonsense' \(line 3\)"):
        grammar_of('root ::= a\n\na ::= "b" @ nonsense')


def test_a_literal_may_be_as_long_as_a_grammar() -> None:
    assert matches(grammar_of(f'root ::= "{"a" * 90_000}"'), "a" * 90_000)


def test_an_answer_may_be_long() -> None:
    for text in ('root ::= [a-z] root | ""', 'root ::= [a-z] other | "."\nother ::= root', "root ::= [a-z]*"):
        assert matches(grammar_of(text), "a" * 20_000 + ("." if "." in text else ""))


AMBIGUOUS = {
    "two ways for every byte": 'root ::= e\ne ::= [a] e "b" | [a] e "c" | [a]',
    "any number of ways": 'root ::= e\ne ::= e e e | e e | "a"',
    "optional beside optional": "root ::= b{1000}\nb ::= a{1000}\na ::= [a]?",
    "stars in a row": "root ::= " + " ".join(["[a]*"] * 1500),
    "counts in counts": 'root ::= ([a-z]{1,200} "b"?){1,200}',
    "words that begin alike": "root ::= ("
    + " | ".join(['"a" [a]* "' + chr(98 + n % 20) + '"' for n in range(900)])
    + ")*",
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_an_ambiguous_grammar_is_followed_or_given_up_within_its_budget(name: str) -> None:
    started_s = time.thread_time()
    with contextlib.suppress(GrammarTooComplex):
        cursor = GrammarCursor(grammar_of(AMBIGUOUS[name]))
        for _ in range(300):
            cursor.allowed()
            cursor.accept(ord("a"))
    # Tokens add to the budget, and the step that exceeds it is the last.
    assert time.thread_time() - started_s < 20 * CPU_S_AT_START


_PARTS = [
    "root ::= ",
    "a ::= ",
    "a",
    "root",
    '"x"',
    '"',
    "[a-c]",
    "[^x]",
    "[",
    "]",
    "(",
    ")",
    "|",
    "*",
    "+",
    "?",
    "{2}",
    "{",
    "}",
]
_PARTS += ["{0,3}", ",", "\n", " ", "\\", "é", ".", "#", "<", "!", "::="]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(_PARTS), max_size=25).map("".join), st.text("abcx", max_size=12))
def test_any_text_is_a_grammar_or_refused_and_any_answer_fits_or_does_not(text: str, said: str) -> None:
    with contextlib.suppress(InvalidRequest):  # anything else would be a bug
        matches(grammar_of("root ::= " + text), said)


_REGULAR = st.recursive(
    st.sampled_from(["a", "b", "[ab]", "[^a]", "ab"]),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})")
        | st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{2,}"])).map(
            lambda one: f"({one[0]}){one[1]}"
        )
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(_REGULAR, st.text("abc", max_size=10))
def test_regular_grammars_match_what_regular_expressions_match(regular: str, text: str) -> None:
    """Characters as literals, everything else is the same in both notations."""
    gbnf = re.sub(r"\[[^\]]*\]|[abc]", lambda one: one[0] if one[0][0] == "[" else f'"{one[0]}"', regular)
    assert matches(grammar_of(f"root ::= {gbnf}"), text) == (re.fullmatch(regular, text) is not None)
