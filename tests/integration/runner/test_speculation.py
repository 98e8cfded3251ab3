"""Drafted tokens change nothing of an answer: real engines, an oracle that is right at a chosen rate."""

import asyncio
import json
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import PunaError
from common.spec.bands import Band
from common.spec.layout import FlashAttention
from common.spec.sampling import Sampling
from protos import runner_pb2
from tests.integration.runner import constraints
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.harness import GREEDY, Answer, Harness, running, stand_at
from tests.integration.runner.oracle import Oracles
from tests.integration.runner.processes import DEADLINE_S, ROOT, RunnerProcess, collect, greedy, started
from tools.model_zoo import ZOO

pytestmark = pytest.mark.behaviour("B-154")

PROMPT = "The weather is cold in the morning."
SEEDED = Sampling(temperature=0.9, seed=11, top_k=40, top_p=0.95)
PENALISED = Sampling(temperature=0.7, seed=3, repeat_penalty=1.3, presence_penalty=0.4, dry_multiplier=0.8)
TOKENS = 40
GENERATING = [name for name, recipe in ZOO.items() if recipe.tokenizer is not None and recipe.pooling is None]
NO_WAY_BACK = {"recurrent", "hybrid"}
GOES_BACK = "hybrid_rollback"  # by copies of its state
LIST = 'root ::= ("- " [a-z]{2,12} "\\n"){4,8}'
FORM = {
    "type": "object",
    "properties": {
        "description": {"const": "a cold morning"},
        "temperature": {"enum": ["falling", "freezing"]},
        "precipitation": {"type": "boolean"},
    },
    "required": ["description", "temperature", "precipitation"],
    "additionalProperties": False,
}


def same(answer: Answer, expected: Answer) -> None:
    assert answer.ids == expected.ids
    assert answer.text == expected.text
    assert [token.logprobs for token in answer.tokens] == [token.logprobs for token in expected.tokens]
    assert answer.end.ending == expected.end.ending
    assert answer.end.generated_tokens == expected.end.generated_tokens
    assert answer.end.times is not None
    assert expected.end.times is not None
    assert answer.end.times.prompt_tokens == expected.end.times.prompt_tokens


def counts(harness: Harness) -> tuple[int, int]:
    drafted = sum(report.drafted_tokens for report in harness.reports)
    return drafted, sum(report.accepted_tokens for report in harness.reports)


def drafting(path: Path, oracles: Oracles, drafted: int = 3, **options: Any) -> Any:
    return running(
        path,
        flash_attention=FlashAttention.ON,
        rollback_tokens=drafted,
        sampling_threads=0,
        drafters=oracles,
        drafted_tokens=drafted,
        **options,
    )


# A router of experts is F32, whose sums depend on the inputs of a call: see the next test.
@pytest.mark.parametrize("name", [name for name in GENERATING if name != "moe"])
async def test_answers_are_equal_at_any_acceptance(name: str, quantized: Zoo) -> None:
    oracles = Oracles()
    async with drafting(quantized(name), oracles, slots=2) as harness:
        for sampling in (GREEDY, SEEDED, PENALISED):
            asked: dict[str, Any] = {
                "sampling": sampling,
                "max_tokens": TOKENS,
                "top_logprobs": 2,
                "cache_prompt": False,
            }
            oracles.answer = ()
            plain = await harness.ask(PROMPT, **asked)
            oracles.answer = plain.ids
            for share in (0.0, 0.5, 0.9, 1.0):
                oracles.share = share
                harness.reports.clear()
                same(await harness.ask(PROMPT, speculates=True, **asked), plain)
                drafted, accepted = counts(harness)
                if name in NO_WAY_BACK:
                    assert drafted == 0
                elif share == 1.0:
                    assert accepted == drafted > 0
                else:
                    assert accepted < drafted


@pytest.mark.parametrize("name", sorted(set(GENERATING) - NO_WAY_BACK))
async def test_where_calls_round_differently_only_near_ties_are_decided_differently(name: str, zoo: Zoo) -> None:
    oracles = Oracles()
    tolerance = 0.6 if name == "moe" else 0.15  # rounding may choose another expert
    async with drafting(zoo(name), oracles, slots=2) as harness:  # F16: one input is multiplied by another kernel
        asked: dict[str, Any] = {"max_tokens": TOKENS, "top_logprobs": 4, "cache_prompt": False}
        plain = await harness.ask(PROMPT, **asked)
        oracles.answer, oracles.share = plain.ids, 0.8
        answer = await harness.ask(PROMPT, speculates=True, **asked)
        assert counts(harness)[0] > 0
        for token, expected in zip(answer.tokens, plain.tokens, strict=True):
            assert token.logprobs is not None
            assert expected.logprobs is not None
            assert token.logprobs.chosen == pytest.approx(expected.logprobs.chosen, abs=tolerance)
            if token.token_id != expected.token_id:
                assert token.token_id in dict(expected.logprobs.top)
                break


async def test_several_sequences_draft_together(quantized: Zoo) -> None:
    oracles = Oracles()
    async with drafting(quantized("dense"), oracles, slots=4) as harness:
        asked: dict[str, Any] = {"sampling": SEEDED, "max_tokens": TOKENS, "top_logprobs": 0}
        plain = await harness.ask(PROMPT, **asked)
        oracles.answer, oracles.share = plain.ids, 0.8
        harness.reports.clear()
        streams = [harness.open(PROMPT, speculates=True, **asked) for _ in range(3)]
        for stream in streams:
            answer = await harness.read(stream)
            assert len(answer.ids) == TOKENS
        drafted, accepted = counts(harness)
        assert 0 < accepted < drafted
        assert max(report.batch_sequences for report in harness.reports) == 3


async def test_a_window_keeps_what_a_rollback_needs(quantized: Zoo) -> None:
    oracles = Oracles()
    async with drafting(quantized("swa"), oracles, drafted=7, slots=2) as harness:
        asked: dict[str, Any] = {"max_tokens": 160, "top_logprobs": 0, "cache_prompt": False, "ignore_eos": True}
        plain = await harness.ask(PROMPT, **asked)  # more than twice the window
        oracles.answer, oracles.share = plain.ids, 0.6
        same(await harness.ask(PROMPT, speculates=True, **asked), plain)
        drafted, accepted = counts(harness)
        assert 0 < accepted < drafted


async def test_answers_are_equal_when_runners_are_killed_at_every_seventh_token(tmp_path: Path) -> None:
    model = ROOT / "models" / "demo.gguf"  # trained: rounding decides nothing
    # Fused attention comes with shared cells, without which calls of several sequences have no drafts.
    layout = {"slots": 3, "contextTokens": 512, "threads": 1, "flashAttention": "FLASH_ATTENTION_ON"}
    asked = {seed: greedy("What is Puna?", max_tokens=35, speculates=True) for seed in (1, 2, 3)}
    for seed, request in asked.items():
        request.sampling.seed = seed
    asked[2].sampling.temperature = 0.9
    asked[3].grammar = LIST
    asked[3].ignore_eos = False
    async with started(model, tmp_path, layout=json.dumps(layout)) as runner:
        await runner.ready()
        plain = {seed: await collect(runner.client, request) for seed, request in asked.items()}
    answers = {seed: [token.id for token in answer.tokens] for seed, answer in plain.items()}
    options = json.dumps({"real": True, "step_s": 0.04, "drafts": answers})
    delivered: dict[int, list[int]] = {seed: [] for seed in asked}
    finals: dict[int, runner_pb2.Final] = {}
    kills, drafted = 0, 0.0
    while len(finals) < len(asked):
        going_on = [seed for seed in asked if seed not in finals]
        enough = {seed: asyncio.Event() for seed in going_on}

        async def read(runner: RunnerProcess, seed: int, *, stop: int, enough: asyncio.Event) -> None:
            asked[seed].resume_token_ids[:] = delivered[seed]
            with suppress(PunaError):  # its runner was killed
                async for event in runner.client.generate(asked[seed]):
                    if event.WhichOneof("event") == "final":
                        finals[seed] = event.final
                    delivered[seed] += [token.id for token in event.tokens.tokens]
                    if len(delivered[seed]) >= stop:
                        enough.set()
            enough.set()

        async with started(
            model, tmp_path, "--engine-options", options, layout=json.dumps({**layout, "engine": "fake"})
        ) as runner:
            await runner.ready()
            reading = [
                asyncio.create_task(read(runner, seed, stop=len(delivered[seed]) + 7, enough=enough[seed]))
                for seed in going_on
            ]
            async with asyncio.timeout(DEADLINE_S):
                for event in enough.values():
                    await event.wait()
                if len(finals) == len(asked):
                    drafted = await runner.metric("puna_runner_drafted_tokens_total")
                runner.process.send_signal(signal.SIGKILL)
                await asyncio.gather(*reading)
            kills += 1
    assert delivered == answers
    assert {seed: final.generated_tokens for seed, final in finals.items()} == {
        seed: answer.finals[0].generated_tokens for seed, answer in plain.items()
    }
    assert drafted > 0
    assert kills >= 3


async def test_a_state_that_went_back_is_not_copied_for_another_slot(quantized: Zoo) -> None:
    oracles = Oracles()
    async with drafting(quantized(GOES_BACK), oracles, slots=2, report_interval_s=0.0) as harness:
        asked: dict[str, Any] = {"max_tokens": TOKENS, "ignore_eos": True}
        plain = await harness.ask(PROMPT, cache_prompt=False, **asked)
        oracles.answer, oracles.share = plain.ids, 0.0  # each call goes back
        goes_on = stand_at(harness, 10)
        first = harness.open(PROMPT, speculates=True, **asked)
        await harness.until(lambda: counts(harness)[0] >= 4 * 3)
        # All that the first one holds is the beginning of the second one.
        second = harness.open(PROMPT, resumed=tuple(plain.ids[:20]), **asked)
        goes_on.set()
        await harness.read(first)
        assert (await harness.read(second)).ids == plain.ids[20:]


async def test_an_answer_whose_state_went_back_is_paused_and_goes_on(quantized: Zoo) -> None:
    oracles = Oracles()
    async with drafting(quantized(GOES_BACK), oracles, slots=1, report_interval_s=0.0) as harness:
        asked: dict[str, Any] = {"max_tokens": TOKENS, "ignore_eos": True, "cache_prompt": False}
        plain = await harness.ask(PROMPT, **asked)
        oracles.answer, oracles.share = plain.ids, 0.0  # each call goes back
        goes_on = stand_at(harness, 10)
        low = harness.open(PROMPT, speculates=True, band=Band.LOW, **asked)
        await harness.until(lambda: counts(harness)[0] >= 4 * 3)
        high = harness.open("Something else.", max_tokens=4, band=Band.HIGH)
        goes_on.set()
        await harness.read(high)
        same(await harness.read(low), plain)
        assert any(report.returned for report in harness.reports)


async def test_constrained_answers_are_equal(quantized: Zoo) -> None:
    oracles = Oracles()
    async with drafting(quantized("dense"), oracles, slots=2, repeats_max=0) as harness:
        grammar = constraints.grammar(LIST, harness.engine.vocabulary)
        for sampling in (GREEDY, SEEDED):
            asked: dict[str, Any] = {"sampling": sampling, "grammar": grammar, "max_tokens": 120}
            oracles.answer = ()
            plain = await harness.ask(PROMPT, **asked)
            oracles.answer = plain.ids
            for share in (0.0, 0.7, 1.0):  # what is wrong is against the grammar, too
                oracles.share = share
                same(await harness.ask(PROMPT, speculates=True, **asked), plain)
        drafted, accepted = counts(harness)
        assert 0 < accepted < drafted


async def test_text_that_a_grammar_forces_is_drafted_and_changes_nothing(quantized: Zoo) -> None:
    async with drafting(quantized("dense"), Oracles(), slots=2, repeats_max=0) as harness:
        grammar = constraints.schema(FORM, harness.engine.vocabulary)
        for sampling in (GREEDY, SEEDED, PENALISED):
            asked: dict[str, Any] = {"sampling": sampling, "grammar": grammar, "max_tokens": 200, "top_logprobs": 1}
            plain = await harness.ask(PROMPT, cache_prompt=False, **asked)
            harness.reports.clear()
            same(await harness.ask(PROMPT, cache_prompt=False, speculates=True, **asked), plain)
            assert counts(harness)[1] > 0
            assert harness.decode_calls < len(plain.ids)
            cut = len(plain.ids) // 2
            resumed = tuple(plain.ids[:cut])
            rest = await harness.ask(PROMPT, cache_prompt=False, speculates=True, resumed=resumed, **asked)
            assert (*resumed, *rest.ids) == tuple(plain.ids)


@pytest.mark.parametrize("drafted", [1, 15])
async def test_the_end_of_an_answer_leaves_nothing_behind_it(quantized: Zoo, drafted: int) -> None:
    oracles = Oracles()
    async with drafting(quantized("dense"), oracles, drafted=drafted, slots=1) as harness:
        plain = await harness.ask(PROMPT, max_tokens=30, ignore_eos=True)
        end = min(harness.engine.vocabulary.end_tokens)
        oracles.answer = [*plain.ids[:10], end, *plain.ids[10:]]
        for limit in (1, 2, 9, 30):
            answer = await harness.ask(PROMPT, max_tokens=limit, ignore_eos=True, speculates=True)
            assert len(answer.ids) == limit
        stopped = await harness.ask(PROMPT, stops=(plain.text[12:16],), max_tokens=30, speculates=True)
        assert stopped.text == plain.text[: plain.text.index(plain.text[12:16])]
        again = await harness.ask(PROMPT, max_tokens=30, ignore_eos=True)
        assert again.ids == plain.ids


async def test_a_full_context_is_shifted_between_drafts(quantized: Zoo) -> None:
    oracles = Oracles()
    async with drafting(quantized("dense"), oracles, drafted=7, slots=1, context=64) as harness:
        plain = await harness.ask(PROMPT, max_tokens=150, ignore_eos=True)
        oracles.answer, oracles.share = plain.ids, 0.8
        answer = await harness.ask(PROMPT, max_tokens=150, ignore_eos=True, speculates=True)
        assert len(answer.ids) == 150
        assert counts(harness)[1] > 0


@pytest.mark.parametrize("name", ["dense", "recurrent"])
async def test_a_runner_reports_what_decides_about_guesses(zoo: Zoo, tmp_path: Path, name: str) -> None:
    async with started(zoo(name), tmp_path, layout='{"slots": 2, "contextTokens": 512, "threads": 1}') as runner:
        loaded = (await runner.ready()).speculation
        assert bool(loaded.off_reason) == (name in NO_WAY_BACK)
        assert not loaded.HasField("paying_share")
        request = greedy("Hello", max_tokens=12)
        request.speculates = True
        await collect(runner.client, request)
        used = (await runner.ready()).speculation
        assert used.off_reason == loaded.off_reason
        assert (used.call_ms > 0.0) == (name not in NO_WAY_BACK)


class Broken:
    trust = 2

    def draft(self, limit: int) -> list[int]:
        raise ValueError("broken")


async def test_a_drafter_that_fails_is_switched_off_and_the_answer_goes_on(quantized: Zoo) -> None:
    async with running(
        quantized("dense"), slots=1, drafters=lambda _: [Broken()], flash_attention=FlashAttention.ON
    ) as harness:
        plain = await harness.ask(PROMPT, max_tokens=TOKENS, cache_prompt=False)
        answer = await harness.ask(PROMPT, max_tokens=TOKENS, cache_prompt=False, speculates=True)
        assert answer.ids == plain.ids
        assert sum(report.drafters_off for report in harness.reports) == 1


async def test_logits_are_copied_for_drafted_tokens_too(quantized: Zoo) -> None:
    oracles = Oracles()
    async with drafting(quantized("dense"), oracles, slots=1) as harness:
        asked: dict[str, Any] = {"max_tokens": 12, "top_logprobs": 0, "cache_prompt": False}
        plain = await harness.ask(PROMPT, **asked)
        oracles.answer = plain.ids
        await harness.ask(PROMPT, speculates=True, **asked)
        first, second = (np.stack(rows) for rows in harness.rows.values())
        assert np.array_equal(first, second)
