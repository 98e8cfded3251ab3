"""Answers that are paused for a higher band, with the real engine: nothing of them changes."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.spec.bands import Band
from common.spec.layout import FlashAttention
from common.spec.sampling import Sampling
from runner.core.sequence.batching import UNKNOWN_COST, CallCost
from runner.core.threads.step_times import StepTimes
from runner.engine.contract.engine import Paused, Sampled
from runner.engine.llama.batch import Batch
from runner.engine.llama.context import Context, DecodeResult, StatePart
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.constraints import grammar
from tests.integration.runner.harness import CACHES, DEADLINE_S, Answer, Harness, assert_equals_cold, running, stand_at
from tests.integration.runner.pictures import image_file, picture
from tests.integration.runner.test_saved_states import KINDS, ids, watch_slices
from tools.model_zoo import build_pair

SEEDED = Sampling(temperature=0.9, seed=7)


def pauses(engine: Harness) -> int:
    return sum(isinstance(outcome, Paused) for report in engine.reports for outcome in report.outcomes)


def evaluated(engine: Harness) -> int:
    """Tokens of prompts that were computed so far, or computed again."""
    return sum(report.prompt_tokens for report in engine.reports)


async def asked_and_paused(engine: Harness, prompts: Sequence[list[int]], **fields: Any) -> list[Answer]:
    """Fill the slots with answers of the lowest band, then pause the last one for an urgent one; return the answers."""
    before = pauses(engine)
    streams = [engine.open(prompt, band=Band.LOW, **fields) for prompt in prompts]
    said = sum(report.generated_tokens for report in engine.reports)
    await engine.until(lambda: sum(report.generated_tokens for report in engine.reports) >= said + 8 * len(streams))
    urgent = await engine.ask(ids(50, 40), max_tokens=6, ignore_eos=True, band=Band.HIGH)
    assert pauses(engine) == before + 1
    return [*[await engine.read(stream) for stream in streams], urgent]


@pytest.mark.behaviour("B-155")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_paused_answer_of_every_memory_is_as_without_the_pause(zoo: Zoo, kind: str) -> None:
    prompt = ids(1, 150)
    fields: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "cache_prompt": False}
    async with running(zoo(kind), slots=1, context=512) as engine:
        for sampling in (Sampling(temperature=0.0), SEEDED):
            alone = await engine.ask(prompt, sampling=sampling, **fields)
            before = evaluated(engine)
            paused, _ = await asked_and_paused(engine, [prompt], sampling=sampling, **fields)
            assert paused.ids == alone.ids
            assert evaluated(engine) - before == 150 + 40, "nothing was computed again"
            assert paused.end.times is not None
            assert (paused.end.times.prompt_tokens, paused.cached_tokens) == (150, 0)
            assert paused.end.times.evaluated_tokens == 150
            assert paused.end.times.queue_ns > 0


@CACHES
async def test_grammar_and_log_probabilities_outlive_a_pause(zoo: Zoo, attention: FlashAttention, shared: bool) -> None:
    prompt = ids(2, 60)
    async with running(zoo("dense"), slots=1, context=512, flash_attention=attention) as engine:
        constraint = grammar("root ::= [a-z ]+", engine.engine.vocabulary)
        fields: dict[str, Any] = {"max_tokens": 30, "top_logprobs": 3, "sampling": SEEDED, "grammar": constraint}
        fields["cache_prompt"] = False
        alone = await engine.ask(prompt, **fields)
        paused, _ = await asked_and_paused(engine, [prompt], **fields)
    assert paused.text == alone.text
    assert [token.logprobs for token in paused.tokens] == [token.logprobs for token in alone.tokens]


@pytest.mark.parametrize(("band", "waits"), [(Band.LOW, True), (Band.HIGH, False)])
async def test_a_stream_waits_for_a_prompt_of_a_higher_band_alone(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch, band: Band, waits: bool
) -> None:
    monkeypatch.setattr(StepTimes, "cost", lambda _: CallCost(fixed_s=1e-6, token_s=1e-6))
    async with running(zoo("dense"), slots=2, context=2048, overlap=False) as engine:
        stream = engine.open(ids(1, 40), max_tokens=400, ignore_eos=True, band=band)
        await engine.until(lambda: sum(report.generated_tokens for report in engine.reports) >= 8)
        await engine.ask(ids(50, 1600), max_tokens=1, ignore_eos=True, band=Band.HIGH)
        calls = [report for report in engine.reports if report.prompt_tokens > 100]
        assert len(calls) >= 3
        beside = [isinstance(one, Sampled) and one.sequence_id == stream.id for call in calls for one in call.outcomes]
        assert any(beside) is not waits
        engine.streams.close(stream)


@CACHES
async def test_one_of_two_answers_that_share_a_prompt_is_paused(
    zoo: Zoo, attention: FlashAttention, shared: bool
) -> None:
    prompt = ids(2, 60)
    async with running(zoo("dense"), slots=2, context=512, flash_attention=attention) as engine:
        assert engine.shares_cells is shared
        *both, _ = await asked_and_paused(engine, [prompt, prompt], max_tokens=30, ignore_eos=True, sampling=SEEDED)
        assert [len(answer.ids) for answer in both] == [30, 30]
        assert both[0].ids[:8] == both[1].ids[:8]
        assert evaluated(engine) == 60 + 1 + 40, "the second one took the prompt of the first"


Rows = Sequence[NDArray[np.float32]]


def assert_equals_up_to_a_tie(answer: Answer, rows: Rows, other: Answer, other_rows: Rows) -> int:
    """Compare logits up to the first token that differs; return its index.

    Other cells, or others' cells among them, make sums run in another order, so a near tie may end otherwise. Up to
    there both answers have equal inputs, and their logits are equal but for rounding.
    """
    assert len(answer.ids) == len(other.ids)
    pairs = zip(answer.ids, other.ids, strict=True)
    tie = next((index for index, (one, two) in enumerate(pairs) if one != two), len(other.ids) - 1)
    for one, two in zip(rows[: tie + 1], other_rows, strict=False):
        assert_equals_cold(one, two, tolerance=0.05)
    return tie


def wait_for(event: Event) -> None:
    """Keep the engine's thread."""
    assert event.wait(DEADLINE_S)


@pytest.mark.parametrize("begins_alike", [False, True])
async def test_a_large_state_is_copied_in_slices_once_its_slot_serves_another(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch, begins_alike: bool
) -> None:
    monkeypatch.setattr("runner.core.states.gate.STEP_DELAY_S", 1e-5)
    monkeypatch.setattr(StepTimes, "cost", lambda _: UNKNOWN_COST)  # else calls of a slow machine are shorter
    low = ids(10, 700)
    high = [*(low[:300] if begins_alike else []), *ids(14, 40)]
    fields: dict[str, Any] = {"ignore_eos": True, "sampling": SEEDED}
    async with running(zoo("dense"), slots=2, context=2048, flash_attention=FlashAttention.ON) as engine:
        assert engine.shares_cells
        # A near tie may end otherwise: bytes that are forced have none, and the logits of all of them are compared.
        forced: dict[str, Any] = {
            "max_tokens": 30,
            "top_logprobs": 0,
            "grammar": grammar(f'root ::= "{"√" * 11}"', engine.engine.vocabulary),
        }
        alone = [
            await engine.ask(low, max_tokens=60, cache_prompt=False, **fields),
            await engine.ask(high, **forced, **fields),
        ]
        sizes = watch_slices(engine)
        # It keeps its slot and is not computed: the others have calls of one row, whose sums are those of before.
        both_heard = Event()
        engine.engine.call(lambda: wait_for(both_heard))
        other = engine.open(ids(11, 50), max_tokens=5, ignore_eos=True)
        engine.engine.pause(other.id, True)
        both_heard.set()
        before = evaluated(engine)
        stream = engine.open(low, max_tokens=60, cache_prompt=False, band=Band.LOW, **fields)
        said = sum(report.generated_tokens for report in engine.reports)
        await engine.until(lambda: sum(report.generated_tokens for report in engine.reports) >= said + 20)
        urgent = await engine.ask(high, band=Band.HIGH, **forced, **fields)
        paused = await engine.read(stream)
        computed = evaluated(engine) - before
        engine.streams.close(other)
        before_rows, rows = engine.rows.values()
    assert pauses(engine) == 1
    assert len(sizes) > 4, "it was copied in slices"
    assert paused.ids == alone[0].ids
    assert assert_equals_up_to_a_tie(urgent, rows, alone[1], before_rows) == 29
    assert computed == 700 + 40, "nothing was computed again, and a common beginning once"


async def test_an_answer_about_an_image_is_paused(tmp_path: Path) -> None:
    model, projector = build_pair("vision", tmp_path)
    async with running(model, projector=projector, slots=1, context=1024) as engine:
        image = engine.engine.read_image(image_file(picture(1, width=64, height=48)))
        prompt = [*ids(4, 30), *image.inputs, *ids(5, 30)]
        fields: dict[str, Any] = {"images": (image,), "max_tokens": 40, "ignore_eos": True}
        alone = await engine.ask(prompt, **fields, cache_salt="another")
        encoded = engine.encoded
        paused, _ = await asked_and_paused(engine, [prompt], **fields)
        assert paused.ids == alone.ids
        assert engine.encoded <= encoded + 1, "no image is encoded for a return"


async def paused_at(engine: Harness, call: int, prompt: list[int], **fields: Any) -> Answer:
    """Return an answer that is paused right behind a call of llama_decode; an answer has one token of each call."""
    before, said = pauses(engine), sum(report.generated_tokens for report in engine.reports)
    goes_on = stand_at(engine, call)
    stream = engine.open(prompt, band=Band.LOW, **fields)
    await engine.until(lambda: sum(report.generated_tokens for report in engine.reports) == said + call - 1)
    urgent = engine.open(ids(7, 40), max_tokens=6, ignore_eos=True, band=Band.HIGH)
    goes_on.set()
    await engine.read(urgent)
    assert pauses(engine) == before + 1
    return await engine.read(stream)


@pytest.mark.parametrize("call", [40, 100], ids=["shifted once", "shifted twice"])
async def test_an_answer_whose_context_was_shifted_is_paused(zoo: Zoo, call: int) -> None:
    """A restored copy has no gap in its cells.

    Keys that a copy took before the shift had rotated them would change the logits by more than their own size.
    """
    fields: dict[str, Any] = {"max_tokens": 110, "ignore_eos": True, "cache_prompt": False, "top_logprobs": 0}
    async with running(zoo("dense"), slots=1, context=128) as engine:
        alone = await engine.ask(ids(6, 100), **fields)
        (unpaused,) = engine.rows.values()
        engine.rows.clear()
        before = evaluated(engine)
        answer = await paused_at(engine, call, ids(6, 100), **fields)
        assert evaluated(engine) - before == 100 + 40, "nothing was computed again"
        paused = max(engine.rows.values(), key=len)
    assert len(alone.ids) == 110
    assert assert_equals_up_to_a_tie(answer, paused, alone, unpaused) >= call, "before the pause nothing differs"


async def test_a_state_is_copied_only_once_llama_cpp_has_rotated_its_keys(zoo: Zoo) -> None:
    """llama.cpp rotates the keys of moved cells at its next decode, also at one that finds no cell."""

    def evaluate(context: Context, slot_id: int, start: int, tokens: list[int]) -> int:
        batch = Batch(capacity=context.batch_tokens, slots=context.slots)
        batch.add(slot_id, start, tokens, wants_logits=True)
        return context.decode(batch)

    def logits_behind_a_copy(context: Context, *, finds_cells: bool) -> NDArray[np.float32]:
        for slot_id in range(context.slots):
            context.erase(slot_id, 0)
        evaluate(context, 0, 0, ids(8, 100))
        if not finds_cells:
            evaluate(context, 1, 0, ids(9, context.cells - 100))
        context.erase(0, 10, 60)
        context.move(0, 60, 100, -50)
        assert context.save(0, StatePart.ALL).size == 0
        tokens = [500] * (1 if finds_cells else 100)
        assert evaluate(context, 0, 50, tokens) == (DecodeResult.DONE if finds_cells else DecodeResult.NO_CELLS)
        context.erase(0, 50)
        state = context.save(0, StatePart.ALL)
        context.erase(0, 0)
        context.erase(1, 0)
        assert context.restore(0, state, StatePart.ALL)
        evaluate(context, 0, 50, [500])
        return context.logits(0).copy()

    async with running(zoo("dense"), slots=2, context=256, flash_attention=FlashAttention.ON) as engine:
        assert engine.engine._loop is not None
        loop, done = engine.engine._loop, Future[list[NDArray[np.float32]]]()
        context = loop._context

        def work() -> None:
            found = [logits_behind_a_copy(context, finds_cells=finds_cells) for finds_cells in (True, False)]
            context.erase(0, 0)
            done.set_result(found)

        loop.post(work)
        async with asyncio.timeout(DEADLINE_S):
            with_cells, without = await asyncio.wrap_future(done)
    assert_equals_cold(without, with_cells, tolerance=0.05)
