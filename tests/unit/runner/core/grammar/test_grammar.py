"""Grammars: what they allow, what is refused, and how much work following one may cost."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import InvalidRequest
from runner.core.grammar.text import ELEMENTS_MAX, REPEATS_MAX, TEXT_BYTES_MAX, parse_grammar
from runner.core.grammar.token_grammar import WORK_AT_START
from runner.core.grammar.utf8_ranges import utf8_sequences
from runner.core.grammar.walk import DEAD, WorkBudget
from tests.unit.runner.grammar_walks import budget, grammar_of, matches

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


def test_ranges_of_characters_are_exactly_their_encodings() -> None:
    sequences = utf8_sequences([(0x60, 0x1234), (0xD000, 0xE010), (0xFFF0, 0x10010), (0x10FFF0, 0x10FFFF)])
    inside = {
        code for first, last in ((0x60, 0x1234), (0xD000, 0xE010), (0xFFF0, 0x10010)) for code in range(first, last + 1)
    }
    for code in [*range(0x3000), *range(0xCF00, 0x10100)]:
        if 0xD800 <= code <= 0xDFFF:
            continue
        encoded = chr(code).encode()
        found = any(
            len(sequence) == len(encoded)
            and all(low <= byte <= high for byte, (low, high) in zip(encoded, sequence, strict=True))
            for sequence in sequences
        )
        assert found == (code in inside), hex(code)


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
    "long repetitions": ('root ::= "' + "a" * 100 + '"{2000}', "elements"),
    "left recursion": ('root ::= root "a" | "b"', "left recursion"),
    "hidden left recursion": ('root ::= a root\na ::= "x"?', "left recursion"),
    "left recursion over rules": ('root ::= a\na ::= b "x"\nb ::= a | "y"', "left recursion"),
    "an endless repetition": ('root ::= ("a"?)*', "left recursion"),
    "a token": ("root ::= <[12]>", "name tokens"),
    "deep groups": ("root ::= " + "(" * 101 + '"a"' + ")" * 101, "nested deeper"),
    "a long text": ("#" * (TEXT_BYTES_MAX + 1), "longer than"),
    "rest on a line": ('root ::= "a" )', "expecting a new line"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_with_a_reason(name: str) -> None:
    text, reason = REFUSED[name]
    with pytest.raises(InvalidRequest) as refused:
        parse_grammar(text)
    assert reason in refused.value.message
    assert refused.value.param == "grammar"


def test_the_reason_names_line_and_place() -> None:
    with pytest.raises(InvalidRequest, match=r"at '@ nonsense' \(line 3\)"):
        parse_grammar('root ::= a\n\na ::= "b" @ nonsense')


PATHOLOGICAL = {
    "two ways for every byte": 'root ::= e\ne ::= " " e "b" | " " e "c" | " "',
    "optional beside optional": "root ::= b{1000}\nb ::= a{1000}\na ::= [a]?",
    "stars in a row": "root ::= " + " ".join(["[a]*"] * 1500),
    "words that begin alike": "root ::= ("
    + " | ".join(['"a" [a]* "' + chr(98 + n % 20) + '"' for n in range(900)])
    + ")*",
}


def follow_for_ever(text: str, byte: bytes) -> None:
    allowance = WorkBudget(WORK_AT_START)
    grammar = grammar_of(text)
    state = grammar.start(allowance)
    for _ in range(5_000):
        state = grammar.advance(state, byte, allowance)
        assert state != DEAD


@pytest.mark.parametrize("name", PATHOLOGICAL)
def test_a_grammar_that_explodes_is_given_up_within_its_budget(name: str) -> None:
    started_s = time.process_time()
    with pytest.raises(InvalidRequest):
        follow_for_ever(PATHOLOGICAL[name], b" " if "two" in name else b"a")
    # The budget stands for a quarter of a second; a busy machine gets twenty times as much.
    assert time.process_time() - started_s < 5.0


def test_the_largest_grammar_is_read_in_bounded_time() -> None:
    rules = "\n".join(f'r{number} ::= "a"{{0,90}}' for number in range(9_000))
    started_s = time.process_time()
    with pytest.raises(InvalidRequest, match=str(ELEMENTS_MAX)):
        parse_grammar('root ::= "a"\n' + rules)
    assert time.process_time() - started_s < 10.0


def test_states_are_found_once() -> None:
    grammar = grammar_of('root ::= "[" ([a-z]+ ",")* "]"')
    first = budget()
    grammar.advance(grammar.start(first), b"[abc,de,]", first)
    again = budget()
    known = grammar.states
    grammar.advance(grammar.start(again), b"[xyz,uv,]", again)
    assert grammar.states == known
    assert budget().left - again.left < (budget().left - first.left) / 4


def test_states_can_be_forgotten_and_found_again() -> None:
    grammar = grammar_of('root ::= "a"* "b"')
    before = grammar.advance(grammar.start(budget()), b"aa", budget())
    assert not grammar.may_end(before)
    grammar.forget()
    assert grammar.resets == 1
    after = grammar.advance(grammar.start(budget()), b"aab", budget())
    assert grammar.may_end(after)
    assert grammar.is_over(after)


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
@given(st.lists(st.sampled_from(_PARTS), max_size=25).map("".join), st.binary(max_size=12))
def test_any_text_is_a_grammar_or_refused_and_any_bytes_fit_or_do_not(text: str, said: bytes) -> None:
    try:
        grammar = grammar_of("root ::= " + text)
        allowance = WorkBudget(WORK_AT_START)
        state = grammar.advance(grammar.start(allowance), said, allowance)
        assert state == DEAD or grammar.may_end(state) or not grammar.is_over(state)
    except InvalidRequest:
        pass  # anything else would be a bug
