"""A full context, on every kind of memory."""

import asyncio
from typing import Any

import numpy as np
import pytest

from common.errors import QueueFull
from common.spec.layout import FlashAttention
from runner.core.sequence.context_shift import ContextShift, discarded_tokens, replay_context
from runner.core.sequence.endings import EndReason
from runner.engine.batched import engine as batched
from runner.engine.batched.sequence import Sequence
from runner.engine.batched.slot_table import Slot, SlotTable
from runner.engine.llama import parameters
from runner.engine.llama.context import DecodeResult
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.harness import CACHES, Harness, assert_equals_cold, refused, running, watch_decoding


def ids(seed: int, count: int) -> list[int]:
    drawn: list[int] = np.random.default_rng(seed).integers(300, 1000, size=count).tolist()
    return drawn


def held(engine: Harness, slot_id: int) -> list[int]:
    loop = engine.engine._loop
    assert loop is not None
    return loop._slots.slots[slot_id].held


@pytest.mark.behaviour("B-52", "B-43")
@CACHES
async def test_generation_goes_on_for_three_contexts(zoo: Zoo, attention: FlashAttention, shared: bool) -> None:
    async with running(zoo("dense"), slots=2, context=256, flash_attention=attention) as engine:
        assert engine.shares_cells is shared
        answer = await engine.ask(ids(1, 20), max_tokens=768, ignore_eos=True, keep_tokens=4)
        assert len(answer.tokens) == 768
        expected = replay_context(ids(1, 20), answer.ids[:-1], context_tokens=256, kept_tokens=4, shift=True)
        assert held(engine, answer.slot_id) == expected
        # One shift, nothing evaluated again.
        assert sum(report.prompt_tokens for report in engine.reports) == 20


@pytest.mark.behaviour("B-53")
@pytest.mark.parametrize("model", ["recurrent", "hybrid", "swa", "mrope"])
async def test_memory_that_cannot_shift_evaluates_again_and_goes_on(zoo: Zoo, model: str) -> None:
    async with running(zoo(model), slots=2, context=256, batch=64) as engine:
        other = engine.open(ids(3, 10), max_tokens=100, ignore_eos=True)
        answer = await engine.ask(ids(2, 20), max_tokens=400, ignore_eos=True, keep_tokens=4)
        await engine.read(other)
        assert len(answer.tokens) == 400
        kept = 4 + engine.engine.vocabulary.adds_bos
        expected = replay_context(ids(2, 20), answer.ids[:-1], context_tokens=256, kept_tokens=kept, shift=True)
        assert held(engine, answer.slot_id) == expected
        assert sum(report.prompt_tokens for report in engine.reports) > 30


@pytest.mark.behaviour("B-53")
async def test_after_evaluating_again_the_logits_are_those_of_a_cold_run(zoo: Zoo) -> None:
    async with running(zoo("swa"), slots=2, context=256, batch=64) as engine:
        stream = engine.open(ids(4, 230), max_tokens=40, ignore_eos=True, keep_tokens=4, top_logprobs=0)
        answer = await engine.read(stream)
        kept = 4 + engine.engine.vocabulary.adds_bos
        for position in (30, 39):
            inputs = replay_context(
                ids(4, 230), answer.ids[:position], context_tokens=256, kept_tokens=kept, shift=True
            )
            cold = await engine.logits(inputs, cache_prompt=False)
            assert_equals_cold(engine.rows[stream.id][position], cold)


@pytest.mark.behaviour("B-42")
@CACHES
async def test_a_shift_leaves_the_other_side_of_a_fork_alone(zoo: Zoo, attention: FlashAttention, shared: bool) -> None:
    async with running(zoo("dense"), slots=2, context=256, flash_attention=attention) as engine:
        assert engine.shares_cells is shared
        head = ids(5, 200)
        first = engine.open([*head, 1], max_tokens=150, ignore_eos=True, top_logprobs=0)
        await engine.until(lambda: len(engine.rows.get(first.id, [])) >= 2)
        second = engine.open([*head, 2], max_tokens=40, ignore_eos=True, top_logprobs=0)
        shifted, forked = await asyncio.gather(engine.read(first), engine.read(second))
        assert forked.cached_tokens == 200
        assert len(shifted.tokens) == 150
        for position in (0, 20, 39):
            cold = await engine.logits([*head, 2, *forked.ids[:position]], cache_prompt=False)
            assert_equals_cold(engine.rows[second.id][position], cold, tolerance=0.01)


@pytest.mark.behaviour("B-54")
async def test_without_shift_a_full_context_ends_with_length(zoo: Zoo) -> None:
    async with running(zoo("dense"), context=128) as engine:
        answer = await engine.ask(ids(6, 100), max_tokens=500, ignore_eos=True, shift=False)
        assert answer.end.ending.reason is EndReason.LENGTH
        assert len(answer.tokens) == 29
        assert len(held(engine, answer.slot_id)) == 128


@pytest.mark.behaviour("B-117")
async def test_no_sequence_goes_on_for_more_than_ten_contexts(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=1, context=32) as engine:
        answer = await engine.ask(ids(7, 10), ignore_eos=True)
        assert len(answer.tokens) == 320
        assert answer.end.ending.reason is EndReason.LENGTH


@pytest.mark.behaviour("B-121")
async def test_a_request_s_own_context_cuts_and_shifts_as_a_smaller_slot_would(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    shifts: list[tuple[int, int, int]] = []  # inputs held, and what is dropped of them
    shift = SlotTable.shift

    def noted(table: SlotTable, slot: Slot, sequence: Sequence, plan: ContextShift) -> None:
        shifts.append((len(slot.held), plan.drop_start, plan.drop_stop))
        shift(table, slot, sequence, plan)

    monkeypatch.setattr(SlotTable, "shift", noted)

    async def run(context: int, **fields: Any) -> tuple[int, int, list[int]]:
        async with running(zoo("dense"), slots=1, context=context) as engine:
            answer = await engine.ask(ids(8, 300), max_tokens=200, ignore_eos=True, keep_tokens=10, **fields)
            assert answer.end.times is not None
            return answer.end.times.prompt_tokens, len(held(engine, 0)), held(engine, 0)[:10]

    small = await run(128)
    expected = list(shifts)
    shifts.clear()
    assert await run(512, context_tokens=128) == small
    # The cut leaves a full context, so that the first shift comes at once.
    assert len(expected) >= 3
    assert shifts == expected


@pytest.mark.behaviour("B-56")
async def test_the_prompt_count_is_what_is_left_after_the_cut(zoo: Zoo) -> None:
    async with running(zoo("dense"), context=128) as engine:
        answer = await engine.ask(ids(9, 500), max_tokens=2, ignore_eos=True)
        assert answer.end.times is not None
        assert answer.end.times.prompt_tokens == 128


@pytest.mark.behaviour("B-20")
async def test_a_storm_of_shifts_forks_and_cancels_runs_out_of_nothing(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=4, context=64) as engine:
        assert engine.shares_cells
        answers = watch_decoding(engine)
        rng = np.random.default_rng(3)
        heads = [ids(20 + number, 30) for number in range(3)]

        async def client() -> int:
            served = 0
            for _ in range(25):
                prompt = [*heads[rng.integers(3)], *ids(int(rng.integers(1000)), int(rng.integers(1, 40)))]
                stream = engine.open(prompt, max_tokens=int(rng.integers(1, 120)), ignore_eos=True)
                if rng.random() < 0.4:
                    wanted = int(rng.integers(0, 30))
                    await engine.until(lambda: stream.text.counted >= wanted or stream.freed)  # noqa: B023
                    engine.streams.close(stream)
                    await engine.until(lambda: stream.freed)  # noqa: B023
                else:
                    answer = await engine.read(stream)
                    assert len(answer.tokens) == stream.request.max_tokens
                    served += 1
            return served

        assert sum(await asyncio.gather(*(client() for _ in range(6)))) > 60
        # No call ever found the cells taken, although forks and shifts left gaps everywhere.
        assert set(answers) == {DecodeResult.DONE}


@pytest.mark.behaviour("B-09")
async def test_where_cells_are_promised_twice_the_newest_prompt_waits_and_nobody_is_harmed(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots that may hold more than there are cells: nothing does that, so the test has to."""
    monkeypatch.setattr(parameters, "cache_cells", lambda _: 256)
    monkeypatch.setattr(batched, "slot_context_tokens", lambda *_: 512)
    async with running(zoo("dense"), slots=3, context=512, flash_attention=FlashAttention.ON) as engine:
        answers = watch_decoding(engine)
        prompts = [ids(30, 60), ids(31, 60), ids(32, 150)]
        streams = [
            engine.open(prompt, max_tokens=50, ignore_eos=True, top_logprobs=0, cache_prompt=False)
            for prompt in prompts[:2]
        ]
        await engine.until(lambda: all(len(engine.rows.get(stream.id, [])) >= 2 for stream in streams))
        streams.append(engine.open(prompts[2], max_tokens=50, ignore_eos=True, top_logprobs=0, cache_prompt=False))
        done = await asyncio.gather(*(engine.read(stream) for stream in streams))
        assert DecodeResult.NO_CELLS in answers
        assert [len(answer.tokens) for answer in done] == [50] * 3
        for prompt, stream, answer in zip(prompts, streams, done, strict=True):
            for position in (0, 30, 49):
                cold = await engine.logits([*prompt, *answer.ids[:position]], cache_prompt=False)
                assert_equals_cold(engine.rows[stream.id][position], cold, tolerance=0.01)
        # One that cannot go on alone is told so, and the next one finds every cell.
        error = await refused(engine.ask(ids(40, 200), max_tokens=200, ignore_eos=True))
        assert isinstance(error, QueueFull)
        assert len((await engine.ask(ids(41, 200), max_tokens=20, ignore_eos=True)).tokens) == 20


@pytest.mark.behaviour("B-52")
def test_the_shift_formula_is_the_one_of_the_specification() -> None:
    assert discarded_tokens(held_tokens=256, context_tokens=256, kept_tokens=4) == 126
