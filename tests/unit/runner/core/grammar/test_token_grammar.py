"""Grammars over tokens: which may come next, and where an answer is."""

import random

import numpy as np
import pytest

from common.errors import InvalidRequest
from runner.core.grammar import token_grammar
from runner.core.grammar.text import parse_grammar
from runner.core.grammar.token_grammar import GrammarCursor, TokenGrammar
from runner.core.grammar.token_trie import TokenTrie
from runner.core.grammar.walk import DEAD, Grammar
from tests.unit.runner.grammar_walks import budget

PIECES = [b"", b"<end>", b"a", b"b", b"ab", b"abc", b"\xc3", b"\xa9", "é".encode(), b"a", b" ", b'"', b"<pad>", b"bca"]
END, PAD = 1, 12


def shared(text: str, pieces: list[bytes] = PIECES) -> TokenGrammar:
    trie = TokenTrie(pieces, excluded={END, PAD})
    return TokenGrammar(Grammar(parse_grammar(text)), trie, pieces=pieces, end_tokens=frozenset({END}))


def random_pieces(seed: int) -> list[bytes]:
    draw = random.Random(seed)
    return [b"", b"<end>", *(bytes(draw.choices(b"abc,\xc3\xa9", k=draw.randint(1, 6))) for _ in range(300))]


@pytest.mark.parametrize("seed", range(5))
def test_the_tree_finds_what_trying_every_token_finds(seed: int) -> None:
    pieces = random_pieces(seed)
    grammar = Grammar(parse_grammar('root ::= ([a-c]{1,3} | "é" | ",")* "."'))
    trie = TokenTrie(pieces, excluded={1})
    for said in (b"", b"a", b"abc", b"ab,", b"\xc3"):
        state = grammar.advance(grammar.start(budget()), said, budget())
        expected = [
            token_id
            for token_id, piece in enumerate(pieces)
            if token_id > 1 and grammar.advance(state, piece, budget()) != DEAD
        ]
        assert trie.allowed(grammar, state, budget()).tolist() == expected


def test_tokens_with_the_same_bytes_are_both_allowed() -> None:
    assert GrammarCursor(shared('root ::= "a"')).allowed().tolist() == [2, 9]


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


def test_who_wants_no_end_gets_nothing_once_the_grammar_is_over() -> None:
    cursor = GrammarCursor(shared('root ::= "a"'), ends=False)
    cursor.accept(2)
    assert not cursor.allows(END)
    assert cursor.allowed().size == 0
    assert cursor.complete


def test_control_tokens_and_tokens_without_text_are_part_of_no_answer() -> None:
    cursor = GrammarCursor(shared('root ::= "<pad>" | "a"'))
    assert not cursor.allows(PAD)
    assert not cursor.allows(0)
    assert cursor.allowed().tolist() == [2, 9]


def test_a_resumed_answer_goes_on_where_it_was() -> None:
    grammar = shared('root ::= ("ab" | "c")* "\\""')
    whole = GrammarCursor(grammar)
    said: list[int] = []
    for token_id in (4, 2, 3, 5):
        whole.accept(token_id)
        said.append(token_id)
        resumed = GrammarCursor(grammar, resumed=said)
        assert resumed.allowed().tolist() == whole.allowed().tolist()


def test_a_resumed_answer_that_does_not_match_is_refused() -> None:
    cursor = GrammarCursor(shared('root ::= "a"'), resumed=[3])
    with pytest.raises(InvalidRequest) as refused:
        cursor.allowed()
    assert refused.value.param == "resume_token_ids"


def test_answers_go_on_when_the_states_were_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = shared('root ::= "a"{0,50} "b"')
    one, other = GrammarCursor(grammar), GrammarCursor(grammar)
    monkeypatch.setattr(token_grammar, "STATES_MAX", 6)
    for _ in range(40):
        one.accept(2)
        other.accept(9)
        assert one.allowed().tolist() == other.allowed().tolist()
    assert grammar.grammar.resets > 5


def test_allowed_tokens_are_remembered_whatever_their_number() -> None:
    pieces = [b"", b"<end>", *(f"{number:04d}".encode() for number in range(3000))]
    grammar = shared('root ::= [0-9]{4} [0-9]{4} | [0-9]{4} "x"', pieces)
    few = shared('root ::= "1" [0-9]{3}', pieces)
    for cursor, count in ((GrammarCursor(grammar), 2999), (GrammarCursor(few), 1000)):
        first, again = cursor.allowed(), cursor.allowed()
        assert first.size == count
        np.testing.assert_array_equal(first, again)


def test_following_a_grammar_costs_an_answer_more_only_as_it_grows() -> None:
    cursor = GrammarCursor(shared('root ::= e\ne ::= "a" e "b" | "a" e "c" | "a"'))

    def say(times: int) -> None:
        for _ in range(times):
            cursor.allowed()
            cursor.accept(2)

    with pytest.raises(InvalidRequest, match="too ambiguous"):
        say(100)
