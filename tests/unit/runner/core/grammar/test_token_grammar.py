"""Grammars over tokens: which may come next, and where an answer is."""

import json
import random
from time import thread_time

import pytest

from common.errors import InvalidRequest
from runner.core.grammar.constraint_text import ConstraintText, lark_text
from runner.core.grammar.token_grammar import GrammarCursor, TokenGrammar
from runner.core.grammar.token_tree import TokenTree
from tests.unit.runner.grammar_walks import grammar_of, matches, random_text, schema_grammar

PIECES = [
    b"",
    b"<end>",
    b"a",
    b"b",
    b"ab",
    b"abc",
    b"\xc3",
    b"\xa9",
    "é".encode(),
    b"a",
    b" ",
    b"\0a",
    b"<pad>",
    b"bca",
]
END, PAD = 1, 12


def shared(text: str, pieces: list[bytes] = PIECES) -> TokenGrammar:
    tree = TokenTree(pieces)
    lark = lark_text(ConstraintText(kind="grammar", text=text), tree)
    return TokenGrammar(lark, tree, end_tokens=frozenset({END}), excluded=frozenset({PAD}), cpu_s=thread_time)


def _goes_on(walk: GrammarCursor, piece: bytes) -> bool:
    for byte in piece:
        if not walk.allows(byte):
            return False
        walk.accept(byte)
    return True


@pytest.mark.parametrize("seed", range(5))
def test_tokens_are_allowed_if_their_bytes_are_one_by_one(seed: int) -> None:
    draw = random.Random(seed)
    pieces = [b"", b"<end>", *(bytes(draw.choices(b"abc,\xc3\xa9", k=draw.randint(1, 6))) for _ in range(300))]
    text = 'root ::= ([a-c]{1,3} | "é" | ",")* "."?'
    by_bytes = grammar_of(text)
    for said in (b"", b"a", b"abc", b"ab,", "é".encode()):
        cursor = GrammarCursor(shared(text, [*pieces, said]), resumed=[len(pieces)] if said else [])
        expected = []
        for token_id, piece in enumerate(pieces):
            walk = GrammarCursor(by_bytes, resumed=list(said))
            if token_id > END and _goes_on(walk, piece):
                expected.append(token_id)
        found = cursor.allowed().tolist()
        assert [one for one in found if END < one < len(pieces)] == expected
        assert [one for one in range(2, len(pieces)) if cursor.allows(one)] == expected


def test_tokens_with_the_same_bytes_are_both_allowed() -> None:
    cursor = GrammarCursor(shared('root ::= "a"'))
    assert cursor.allowed().tolist() == [2, 9]
    cursor.accept(9)
    assert cursor.complete


def test_a_character_may_be_written_in_parts() -> None:
    cursor = GrammarCursor(shared('root ::= "é" "b"'))
    assert cursor.allowed().tolist() == [6, 8]
    cursor.accept(6)
    assert cursor.allowed().tolist() == [7]
    cursor.accept(7)
    assert cursor.allowed().tolist() == [3]


@pytest.mark.behaviour("B-114")
def test_an_end_token_is_allowed_exactly_where_the_grammar_may_end() -> None:
    cursor = GrammarCursor(shared('root ::= "a" "b"?'))
    assert not cursor.allows(END)
    cursor.accept(2)
    assert cursor.allows(END)
    assert cursor.allowed().tolist() == [3, END]
    cursor.accept(3)
    assert cursor.allowed().tolist() == [END]
    cursor.accept(END)
    assert cursor.complete


def test_an_answer_without_end_tokens_stops_once_the_grammar_is_over() -> None:
    cursor = GrammarCursor(shared('root ::= "a"'), ends=False)
    cursor.accept(2)
    assert not cursor.allows(END)
    assert cursor.allowed().size == 0
    assert cursor.complete


@pytest.mark.parametrize("text", ['root ::= "<pad>" | "a"', "root ::= .*", "root ::= [^b]*"])
def test_control_tokens_and_tokens_without_text_or_with_a_zero_are_part_of_no_answer(text: str) -> None:
    cursor = GrammarCursor(shared(text), ends=False)
    for token_id in (0, END, 11, PAD):
        assert not cursor.allows(token_id)
        assert token_id not in cursor.allowed()
    assert {2, 9} <= set(cursor.allowed().tolist())


def test_answers_under_one_grammar_do_not_disturb_each_other() -> None:
    grammar = shared('root ::= ("ab" | "c")* " "')
    whole = GrammarCursor(grammar)
    said: list[int] = []
    for token_id in (4, 2, 3, 5):
        whole.accept(token_id)
        said.append(token_id)
        resumed = GrammarCursor(grammar, resumed=said)
        assert resumed.allowed().tolist() == whole.allowed().tolist()
        resumed.accept(int(resumed.allowed()[0]))
    assert (
        GrammarCursor(grammar).allowed().tolist()
        == GrammarCursor(shared('root ::= ("ab" | "c")* " "')).allowed().tolist()
    )


@pytest.mark.parametrize("token_id", [3, PAD])
def test_a_resumed_answer_that_does_not_match_or_has_a_control_token_is_refused(token_id: int) -> None:
    cursor = GrammarCursor(shared('root ::= "a" | "<pad>a"'), resumed=[token_id])
    assert not cursor.complete
    with pytest.raises(InvalidRequest) as refused:
        cursor.allows(2)
    assert refused.value.param == "resume_token_ids"


def test_no_tokenization_is_forced() -> None:
    """A text that can only be one way may still be written in any tokens."""
    cursor = GrammarCursor(shared('root ::= "abc"'))
    assert cursor.allowed().tolist() == [2, 4, 5, 9]
    assert matches(grammar_of('root ::= "abc"'), "abc")


WORDS = [
    b"",
    b"<end>",
    *(bytes([byte]) for byte in b'{}":, abcdefghijklmnopqrstuvwxyz'),
    b'{"',
    b'":',
    b'",',
    b'": ',
    b"na",
    b"me",
]
KEYS = """root ::= "{\\"name\\":" sp "\\"" [a-z]+ "\\"," sp "\\"city\\":" sp ("\\"bonn\\"" | "\\"bern\\"") "}"
sp ::= " "?"""


def longest(text: bytes, *, space: bytes = b"") -> list[int]:
    """Tokenize by the longest token, as a vocabulary that puts `space` before every text."""
    ids, rest = [], space + text
    while rest:
        found = max((piece for piece in WORDS if piece and rest.startswith(piece)), key=len)
        ids.append(WORDS.index(found))
        rest = rest[len(found) :]
    return ids


def forced_pieces(said: bytes, *, space: bytes = b"") -> list[bytes]:
    tree = TokenTree(WORDS, lambda text: longest(text, space=space))
    lark = lark_text(ConstraintText(kind="grammar", text=KEYS), tree)
    grammar = TokenGrammar(lark, tree, end_tokens=frozenset({END}), cpu_s=thread_time)
    cursor, untouched = GrammarCursor(grammar), GrammarCursor(grammar)
    ids = longest(said)
    for token_id in ids:
        cursor.accept(token_id)
        untouched.accept(token_id)
    found = cursor.forced(ids[-1])
    assert cursor.allowed().tolist() == untouched.allowed().tolist()
    for token_id in found:
        assert cursor.allows(token_id)
        cursor.accept(token_id)
    return [WORDS[token_id] for token_id in found]


@pytest.mark.parametrize("space", [b"", b" "])
def test_forced_text_is_guessed_in_the_tokens_of_the_vocabulary(space: bytes) -> None:
    assert forced_pieces(b'{"name":"x","city":"bo', space=space) == [b"n", b"n", b'"', b"}"]


def test_a_last_token_that_may_be_a_part_of_a_longer_one_is_no_guess() -> None:
    assert forced_pieces(b'{"') == [b"na", b"me"]  # a space may follow, and the vocabulary joins it


SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "description": {"type": "string"},
            "kind": {"enum": ["alpha", "alpine", 3]},
            "nested": {"type": "object", "properties": {"value": {"type": "number"}}, "additionalProperties": False},
            "constant": {"const": {"a": [1, 2]}},
        },
        "required": ["description", "constant"],
        "additionalProperties": False,
    },
}
WALKS = [schema_grammar(json.dumps(SCHEMA)), grammar_of(KEYS), grammar_of('root ::= ("ab" | "abc" | "é")* "end"?')]


@pytest.mark.parametrize("grammar", WALKS)
@pytest.mark.parametrize("seed", range(8))
def test_looking_for_forced_text_changes_nothing_of_an_answer(grammar: TokenGrammar, seed: int) -> None:
    draw = random.Random(seed)
    looking, plain = GrammarCursor(grammar), GrammarCursor(grammar)
    looked = 0
    for byte in random_text(grammar, seed)[:2000]:
        if draw.random() < 0.7:
            looking.forced(0)
            looked += 1
        other = draw.randrange(256)
        assert looking.allows(other) == plain.allows(other)
        assert looking.complete == plain.complete
        assert looking.allowed().tolist() == plain.allowed().tolist()
        looking.accept(byte)
        plain.accept(byte)
    assert looking.complete == plain.complete
    assert looked or not random_text(grammar, seed)


def test_nothing_is_guessed_where_the_grammar_leaves_a_choice_or_the_vocabulary_joins_the_text() -> None:
    assert forced_pieces(b'{"name":"') == []
    assert forced_pieces(b'{"name":"x","city":"b') == []
    assert forced_pieces(b"{") == []
    tree = TokenTree(WORDS)
    lark = lark_text(ConstraintText(kind="grammar", text=KEYS), tree)
    assert GrammarCursor(TokenGrammar(lark, tree, end_tokens=frozenset(), cpu_s=thread_time)).forced(0) == []
