"""Constraints of requests, read beside the engine."""

import asyncio
import os
import sys
import threading
from typing import Any

import pytest

from common.errors import InvalidRequest
from protos import runner_pb2
from runner.core.grammar.constraint_text import LARK_BYTES_MAX, ConstraintText, lark_text
from runner.core.grammar.token_grammar import GrammarCursor, TokenGrammar
from runner.core.grammar.token_tree import TokenTree
from runner.priorities import NICENESS
from runner.serve.constraints import KEPT_MAX, ConstraintReader
from tests.engines.fake_model import END, FakeVocabulary

VOCABULARY = FakeVocabulary()


def request(**fields: object) -> runner_pb2.GenerateRequest:
    return runner_pb2.GenerateRequest(**fields)  # type: ignore[arg-type]


async def test_a_request_without_constraints_needs_nothing() -> None:
    found = await ConstraintReader().read(request(), VOCABULARY)
    assert (found.grammar, found.breakers) == (None, None)


async def test_the_same_grammar_is_read_once_for_all_who_ask_together() -> None:
    reader = ConstraintReader()
    asked = request(grammar='root ::= "a"+')
    found = await asyncio.gather(*(reader.read(asked, VOCABULARY) for _ in range(5)))
    assert len({id(one.grammar) for one in found}) == 1


async def test_a_schema_and_a_grammar_of_the_same_text_are_two() -> None:
    reader = ConstraintReader()
    schema = (await reader.read(request(json_schema='{"const": 5}'), VOCABULARY)).grammar
    assert schema is not None
    assert schema.param == "json_schema"
    cursor = GrammarCursor(schema)
    assert cursor.allowed().tolist() == list(b"5")
    with pytest.raises(InvalidRequest) as refused:
        await reader.read(request(grammar='{"const": 5}'), VOCABULARY)
    assert refused.value.param == "grammar"


async def test_a_converted_constraint_is_compiled_as_it_is() -> None:
    key = ConstraintText(kind="json_schema", text='{"const": 5}')
    lark = lark_text(key, TokenTree(VOCABULARY.pieces))
    asked = request(json_schema='{"const": "not read"}', constraint_lark=lark)
    found = (await ConstraintReader().read(asked, VOCABULARY)).grammar
    assert found is not None
    assert GrammarCursor(found).allowed().tolist() == list(b"5")
    for wrong, param in (("start: (", "json_schema"), ("x" * (LARK_BYTES_MAX + 1), "constraint_lark")):
        with pytest.raises(InvalidRequest) as refused:
            await ConstraintReader().read(request(json_schema="{}", constraint_lark=wrong), VOCABULARY)
        assert refused.value.param == param


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has no priority of its own")
async def test_a_slow_constraint_is_compiled_by_a_thread_that_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    priorities = []

    class Watched(TokenGrammar):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            super().__init__(*arguments, **named)

    monkeypatch.setattr("runner.serve.constraints.TokenGrammar", Watched)
    reader, own = ConstraintReader(), os.getpriority(os.PRIO_PROCESS, 0)
    for is_slow in (True, False):
        asked = request(grammar=f'root ::= "{is_slow}"', constraint_is_slow=is_slow)
        await reader.read(asked, VOCABULARY)
    assert priorities == [min(19, own + NICENESS), own]


async def test_only_so_many_grammars_are_kept() -> None:
    reader = ConstraintReader()
    first = (await reader.read(request(grammar='root ::= "0"'), VOCABULARY)).grammar
    for number in range(1, KEPT_MAX + 1):
        await reader.read(request(grammar=f'root ::= "{number}"'), VOCABULARY)
    assert (await reader.read(request(grammar='root ::= "0"'), VOCABULARY)).grammar is not first


async def test_a_grammar_in_use_is_kept_while_new_ones_come() -> None:
    reader = ConstraintReader()
    usual = request(grammar='root ::= "usual"')
    known = (await reader.read(usual, VOCABULARY)).grammar
    for number in range(2 * KEPT_MAX):
        await reader.read(request(grammar=f'root ::= "{number}"'), VOCABULARY)
        assert (await reader.read(usual, VOCABULARY)).grammar is known


async def test_tenants_share_no_grammar_and_none_pushes_out_anothers() -> None:
    reader = ConstraintReader()

    async def read(tenant: str, text: str) -> TokenGrammar | None:
        return (await reader.read(request(grammar=f'root ::= "{text}"', cache_salt=tenant), VOCABULARY)).grammar

    known = await read("careful", "x")
    assert await read("other", "x") is not known
    for number in range(3 * KEPT_MAX):
        await read("flood", str(number))
    assert await read("careful", "x") is known
    newest = await read("flood", "newest")
    assert await read("flood", "newest") is newest


async def test_breakers_of_a_tenant_outlive_those_of_another() -> None:
    reader = ConstraintReader()

    async def read(tenant: str, *breakers: str) -> object:
        sampling = runner_pb2.Sampling(dry_multiplier=1, dry_sequence_breakers=breakers)
        return (await reader.read(request(sampling=sampling, cache_salt=tenant), VOCABULARY)).breakers

    known = await read("careful")
    for number in range(2 * KEPT_MAX):
        await read("flood", str(number))
    assert await read("careful") is known


async def test_an_answer_goes_on_behind_delivered_tokens() -> None:
    reader = ConstraintReader()
    asked = request(grammar='root ::= "abc"{1,50}', resume_token_ids=list(b"abcabcabcabc"))
    grammar = (await reader.read(asked, VOCABULARY)).grammar
    assert grammar is not None
    cursor = GrammarCursor(grammar, resumed=tuple(b"abcabcabcabc"))
    assert cursor.complete
    assert cursor.allowed().tolist() == [ord("a"), END]


async def test_delivered_tokens_that_do_not_match_are_refused() -> None:
    asked = request(grammar='root ::= "abc"', resume_token_ids=list(b"xyz"))
    with pytest.raises(InvalidRequest) as refused:
        await ConstraintReader().read(asked, VOCABULARY)
    assert refused.value.param == "resume_token_ids"


async def test_breakers_have_defaults_and_limits() -> None:
    reader = ConstraintReader()
    found = await reader.read(request(sampling=runner_pb2.Sampling(dry_multiplier=1)), VOCABULARY)
    assert found.breakers == dict.fromkeys(b'\n:"*', ((),))
    own = runner_pb2.Sampling(dry_multiplier=1, dry_sequence_breakers=["ab"])
    assert (await reader.read(request(sampling=own), VOCABULARY)).breakers == {ord("a"): ((ord("b"),),)}
    for bad in ([""], ["x" * 41], ["x"] * 33):
        wrong = runner_pb2.Sampling(dry_multiplier=1, dry_sequence_breakers=bad)
        with pytest.raises(InvalidRequest):
            await reader.read(request(sampling=wrong), VOCABULARY)
