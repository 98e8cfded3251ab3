"""Answers under grammars and JSON schemas, with DRY and XTC, by the real engine on tiny models."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from common.errors import InvalidRequest, PunaError
from common.spec.sampling import Sampling
from protos import runner_pb2
from runner.core.sequence.endings import EndReason
from runner.engine.contract.engine import TokenTable
from tests.integration.runner import constraints
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.harness import GREEDY, Answer, Harness, refused, running
from tests.integration.runner.processes import collect, greedy, started
from tests.unit.runner.grammar_walks import grammar_of, matches
from tests.unit.runner.json_schemas import EXAMPLES
from tools.model_zoo import ZOO

ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "models" / "demo.gguf"
PROMPT = "The weather is cold in the morning."
LIST = 'root ::= ("- " [a-z]{2,12} "\\n"){4,8}'
# Every place in a text can be any place in any of its parts.
EXPLODING = "root ::= b{1000}\nb ::= a{1000}\na ::= [a-z ]?"


def closing_bias(vocabulary: TokenTable, bias: float = 5.0) -> dict[int, float]:
    """A model without sense would seldom end a text or a list; this makes it."""
    ending = {b'"', b"}", b"]", b'"}', b'"]', *(str(digit).encode() for digit in range(3))}
    return {token_id: bias for token_id, piece in enumerate(vocabulary.pieces) if piece in ending}


async def ask_under(harness: Harness, name: str, seed: int, *, temperature: float = 1.0) -> Answer:
    vocabulary = harness.engine.vocabulary
    sampling = Sampling(temperature=temperature, seed=seed, logit_bias=closing_bias(vocabulary))
    grammar = constraints.schema(EXAMPLES[name][0], vocabulary)
    return await harness.ask(PROMPT, sampling=sampling, grammar=grammar, max_tokens=400)


GENERATING = [name for name, recipe in ZOO.items() if recipe.tokenizer is not None and recipe.pooling is None]
# One for each tokenizer, and the trained one: all schemas. The others take turns.
ALL_SCHEMAS = ("dense", "dense_wide_head", "swa", "demo")


@pytest.mark.parametrize("model", [*GENERATING, "demo"])
async def test_answers_under_a_schema_validate(model: str, zoo: Zoo) -> None:
    assert len(EXAMPLES) >= 50
    step = 1 if model in ALL_SCHEMAS else 5
    names = list(EXAMPLES)[len(model) % step :: step]
    async with running(DEMO if model == "demo" else zoo(model), slots=8, context=1024, repeats_max=0) as harness:
        limit = asyncio.Semaphore(16)

        async def ask(number: int, name: str) -> tuple[str, Answer]:
            async with limit:
                return name, await ask_under(harness, name, number, temperature=number % 2)

        answers = await asyncio.gather(*(ask(number, name) for number, name in enumerate(names)))
    finished = 0
    for name, answer in answers:
        if answer.end.ending.reason is EndReason.LENGTH:
            continue  # cut by max_tokens, which is no violation
        jsonschema.validate(json.loads(answer.text), EXAMPLES[name][0])
        finished += 1
    assert finished >= 0.8 * len(names)


async def test_the_likeliest_answers_of_a_trained_model_validate() -> None:
    names = ["person", "enum", "shapes", "uuid", "counted array", "number range", "all of", "pattern"]
    async with running(DEMO, slots=4, context=512, repeats_max=0) as harness:
        answers = await asyncio.gather(*(ask_under(harness, name, 1, temperature=0.0) for name in names))
    finished = [
        name for name, answer in zip(names, answers, strict=True) if answer.end.ending.reason is EndReason.END_TOKEN
    ]
    assert len(finished) >= 7
    for name, answer in zip(names, answers, strict=True):
        if name in finished:
            jsonschema.validate(json.loads(answer.text), EXAMPLES[name][0])


async def test_a_grammar_that_is_over_ends_the_answer(zoo: Zoo) -> None:
    async with running(zoo("dense")) as harness:
        grammar = constraints.grammar('root ::= "yes" | "no"', harness.engine.vocabulary)
        answer = await harness.ask(PROMPT, grammar=grammar, max_tokens=50)
        assert answer.text in ("yes", "no")
        assert answer.end.ending.reason is EndReason.END_TOKEN
        on = await harness.ask(PROMPT, grammar=grammar, max_tokens=50, ignore_eos=True)
        assert on.text == answer.text
        assert on.end.ending.reason is EndReason.END_TOKEN


async def test_who_ignores_end_tokens_goes_on_while_the_grammar_does(zoo: Zoo) -> None:
    async with running(zoo("dense")) as harness:
        vocabulary = harness.engine.vocabulary
        grammar = constraints.grammar("root ::= [a-z ]*", vocabulary)
        ending = Sampling(temperature=0.0, logit_bias=dict.fromkeys(vocabulary.end_tokens, 90.0))
        answer = await harness.ask(PROMPT, grammar=grammar, max_tokens=40, ignore_eos=True, sampling=ending)
        assert len(answer.ids) == 40
        stopped = await harness.ask(PROMPT, grammar=grammar, max_tokens=40, sampling=ending)
        assert stopped.text == ""
        assert stopped.end.ending.reason is EndReason.END_TOKEN


async def test_a_token_that_fits_is_the_one_that_is_chosen_without_a_grammar(zoo: Zoo) -> None:
    async with running(zoo("dense")) as harness:
        vocabulary = harness.engine.vocabulary
        # A grammar knows no control tokens, no half characters and no zero bytes.
        odd = [
            token_id
            for token_id, piece in enumerate(vocabulary.pieces)
            if token_id in vocabulary.control or not piece.isascii() or 0 in piece or not piece
        ]
        sampling = Sampling(temperature=0.9, seed=5, logit_bias=dict.fromkeys(odd, -100.0))
        fields: dict[str, Any] = {"sampling": sampling, "max_tokens": 60, "ignore_eos": True, "cache_prompt": False}
        free = await harness.ask(PROMPT, **fields)
        held = await harness.ask(PROMPT, grammar=constraints.grammar("root ::= .*", vocabulary), **fields)
        assert held.ids == free.ids


async def test_what_the_bias_bans_stays_banned_under_a_grammar(zoo: Zoo) -> None:
    async with running(zoo("dense")) as harness:
        vocabulary = harness.engine.vocabulary
        banned = {token_id: -100.0 for token_id, piece in enumerate(vocabulary.pieces) if b"y" in piece}
        sampling = Sampling(temperature=0.0, logit_bias=banned)
        either = constraints.grammar('root ::= "yes" | "no"', vocabulary)
        assert (await harness.ask(PROMPT, grammar=either, sampling=sampling)).text == "no"
        neither = constraints.grammar('root ::= "yes"', vocabulary)
        error = await refused(harness.ask(PROMPT, grammar=neither, sampling=sampling))
        assert isinstance(error, InvalidRequest)
        assert error.param == "grammar"


# Not hot: a resumed prompt is computed in other batches, and rounding may turn a close draw.
SAMPLINGS = {
    "penalties": Sampling(
        temperature=0.5, seed=11, repeat_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2, repeat_last_n=-1
    ),
    "DRY and XTC": Sampling(
        temperature=0.5, seed=3, dry_multiplier=0.8, dry_allowed_length=1, xtc_probability=0.5, xtc_threshold=0.02
    ),
    "filters": Sampling(temperature=0.5, seed=9, top_k=0, typical_p=0.9, top_n_sigma=2.0, min_p=0.02),
    "greedy": Sampling(temperature=0.0, dry_multiplier=0.5, repeat_penalty=1.1),
}


@pytest.mark.parametrize("name", SAMPLINGS)
async def test_an_answer_cut_anywhere_goes_on_as_the_uncut_one(name: str, zoo: Zoo) -> None:
    """With one token a call: kernels of several rows round differently on some processors, and draws would tell."""
    async with running(zoo("dense"), slots=1, batch=1) as harness:
        vocabulary = harness.engine.vocabulary
        grammar = constraints.grammar(LIST, vocabulary)
        fields: dict[str, Any] = {
            "sampling": SAMPLINGS[name],
            "breakers": constraints.breakers(vocabulary),
            "max_tokens": 60,
            "cache_prompt": False,
        }
        whole = await harness.ask(PROMPT, grammar=grammar, **fields)
        assert len(whole.ids) > 8
        for cut in range(1, len(whole.ids)):
            # Another runner has read the grammar anew.
            again = constraints.grammar(LIST, vocabulary)
            rest = await harness.ask(PROMPT, grammar=again, resumed=tuple(whole.ids[:cut]), **fields)
            assert rest.ids == whole.ids[cut:], cut
            assert rest.end.ending == whole.end.ending


async def test_draws_of_xtc_depend_on_seed_and_position_alone(zoo: Zoo) -> None:
    sampling = SAMPLINGS["DRY and XTC"]
    async with running(zoo("dense"), slots=8, batch=1) as harness:
        alone = await harness.ask(PROMPT, sampling=sampling, max_tokens=24, ignore_eos=True)
        beside = await asyncio.gather(
            *(harness.ask(PROMPT, sampling=sampling, max_tokens=24, ignore_eos=True) for _ in range(8))
        )
        without = await harness.ask(
            PROMPT, sampling=replace(sampling, xtc_probability=0.0), max_tokens=24, ignore_eos=True
        )
    assert {tuple(answer.ids) for answer in beside} == {tuple(alone.ids)}
    assert without.ids != alone.ids


async def test_dry_breaks_a_loop(zoo: Zoo) -> None:
    async with running(zoo("dense"), repeats_max=0) as harness:
        word = harness.tokens("cold")[0]
        stubborn = replace(GREEDY, logit_bias={word: 60.0})
        looping = await harness.ask(PROMPT, sampling=stubborn, max_tokens=60, ignore_eos=True)
        assert set(looping.ids) == {word}
        dry = replace(stubborn, dry_multiplier=2.0, dry_allowed_length=1)
        free = await harness.ask(PROMPT, sampling=dry, max_tokens=60, ignore_eos=True)
        assert free.ids[:3] == [word] * 3
        assert len(set(free.ids)) > 5


async def test_a_request_that_fails_hurts_none_of_eight_neighbours(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=9, context=256) as harness:
        vocabulary = harness.engine.vocabulary
        grammar = constraints.grammar(LIST, vocabulary)

        async def neighbour(number: int) -> Answer:
            return await harness.ask(
                PROMPT,
                sampling=Sampling(temperature=1.0, seed=number, repeat_penalty=1.1),
                max_tokens=120,
                grammar=grammar if number % 2 else None,
                ignore_eos=not number % 2,
            )

        together = [asyncio.create_task(neighbour(number)) for number in range(8)]
        exploding = constraints.grammar(EXPLODING, vocabulary)
        for _ in range(3):
            error = await refused(harness.ask(PROMPT, sampling=GREEDY, max_tokens=200, grammar=exploding))
            assert isinstance(error, InvalidRequest)
            assert "too complex" in error.message or "too ambiguous" in error.message
        with pytest.raises(PunaError):
            harness.open(PROMPT, sampling=Sampling(logit_bias={10**6: 1.0}), grammar=grammar)
        with pytest.raises(PunaError):
            harness.open(PROMPT, sampling=Sampling(xtc_probability=2.0), grammar=grammar)
        listed = grammar_of(LIST)
        for number, answer in enumerate(await asyncio.gather(*together)):
            if number % 2:
                assert answer.end.ending.reason is EndReason.END_TOKEN
                assert matches(listed, answer.text)
            else:
                assert len(answer.ids) == 120


async def test_no_step_is_long_under_a_grammar_that_explodes(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=2) as harness:
        exploding = constraints.grammar(EXPLODING, harness.engine.vocabulary)
        started_s = time.process_time()
        error = await refused(harness.ask(PROMPT, sampling=GREEDY, max_tokens=200, grammar=exploding))
        assert isinstance(error, InvalidRequest)
        # The budget stands for a twentieth of a second; a busy machine gets forty times as much.
        assert time.process_time() - started_s < 2.0


BAD: dict[str, tuple[runner_pb2.GenerateRequest, str]] = {
    "grammar": (runner_pb2.GenerateRequest(grammar='root ::= "a'), "unexpected end"),
    "json_schema": (runner_pb2.GenerateRequest(json_schema='{"not": {}}'), "'not'"),
    "dry_base": (runner_pb2.GenerateRequest(sampling=runner_pb2.Sampling(dry_base=0.5)), "between 1 and 10"),
    "dry_allowed_length": (
        runner_pb2.GenerateRequest(sampling=runner_pb2.Sampling(dry_allowed_length=-1)),
        "at least 0",
    ),
    "dry_sequence_breakers": (
        runner_pb2.GenerateRequest(sampling=runner_pb2.Sampling(dry_multiplier=1, dry_sequence_breakers=[""])),
        "1 to 40 bytes",
    ),
    "xtc_probability": (
        runner_pb2.GenerateRequest(sampling=runner_pb2.Sampling(xtc_probability=1.5)),
        "between 0 and 1",
    ),
    "top_n_sigma": (runner_pb2.GenerateRequest(sampling=runner_pb2.Sampling(top_n_sigma=float("nan"))), "finite"),
}


async def test_over_grpc_bad_constraints_are_refused_by_name_while_eight_streams_go_on(
    zoo: Zoo, tmp_path: Path
) -> None:
    layout = '{"slots": 9, "contextTokens": 512, "threads": 1}'
    schema = json.dumps(EXAMPLES["person"][0])
    async with started(zoo("dense"), tmp_path, layout=layout) as runner:
        await runner.ready()
        streams = [
            asyncio.create_task(collect(runner.client, greedy("Hello", max_tokens=200, ignore_eos=True)))
            for _ in range(8)
        ]
        for field, (request, reason) in BAD.items():
            request.prompt.add().text = "Hello"
            with pytest.raises(InvalidRequest) as error:
                await collect(runner.client, request)
            assert error.value.param == field
            assert reason in error.value.message
        answer = await collect(runner.client, greedy("Hello", json_schema=schema, max_tokens=300))
        jsonschema.validate(json.loads(answer.text), EXAMPLES["person"][0])
        assert answer.finals[0].reason == runner_pb2.DONE_REASON_END_TOKEN
        assert {len(one.tokens) for one in await asyncio.gather(*streams)} == {200}
