"""Prefix cache of slots: hold, reuse, fork and forget, on every kind of memory."""

import asyncio
import re
from functools import partial

import numpy as np
import pytest

from common.spec.layout import FlashAttention
from common.spec.prompt_names import name_prompt
from runner.core.layout.cache_sizes import SEPARATE_GRAPH_TOKENS
from runner.core.sequence.endings import EndReason
from runner.core.sequence.sequence_names import SequenceNames
from runner.core.sequence.slots import SlotPolicy
from runner.core.states.slices import UnknownFormat
from runner.engine.llama.context import StatePart
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.harness import CACHES, Answer, Harness, assert_equals_cold, running, stand_at


def ids(seed: int, count: int) -> list[int]:
    """Random token ids, none of them special."""
    drawn: list[int] = np.random.default_rng(seed).integers(300, 1000, size=count).tolist()
    return drawn


async def equals_cold(
    engine: Harness, prompt: list[int], *, cached: int | None = None, tolerance: float = 0.005
) -> None:
    """Ask with whatever the slots hold, then without, and compare the logits."""
    stream = engine.open(prompt, max_tokens=1, top_logprobs=0)
    answer = await engine.read(stream)
    if cached is not None:
        assert answer.cached_tokens == cached
    cold = await engine.logits(prompt, cache_prompt=False)
    assert_equals_cold(engine.rows.pop(stream.id)[0], cold, tolerance=tolerance)


@pytest.mark.behaviour("B-34")
async def test_an_identical_prompt_computes_one_input(zoo: Zoo) -> None:
    async with running(zoo("dense")) as engine:
        prompt = ids(1, 40)
        assert (await engine.ask(prompt, max_tokens=4, ignore_eos=True)).cached_tokens == 0
        assert (await engine.ask(prompt, max_tokens=4, ignore_eos=True)).cached_tokens == 39


@pytest.mark.behaviour("B-33")
@CACHES
async def test_a_prefix_is_forked_from_a_busy_slot_and_both_go_on_as_if_alone(
    zoo: Zoo, attention: FlashAttention, shared: bool
) -> None:
    async with running(zoo("dense"), slots=2, flash_attention=attention) as engine:
        assert engine.shares_cells is shared
        head = ids(2, 60)
        busy = engine.open([*head, 5], max_tokens=40, top_logprobs=0, ignore_eos=True)
        await engine.until(lambda: len(engine.rows.get(busy.id, [])) >= 2)
        forked = engine.open([*head, 6, 7], max_tokens=10, top_logprobs=0, ignore_eos=True)
        fork, whole = await asyncio.gather(engine.read(forked), engine.read(busy))
        assert fork.cached_tokens == 60
        assert fork.slot_id != whole.slot_id
        rows, fork_rows = engine.rows[busy.id], engine.rows[forked.id]
        for position in (5, 12, 39):
            cold = await engine.logits([*head, 5, *whole.ids[:position]], cache_prompt=False)
            assert_equals_cold(rows[position], cold, tolerance=0.01)
        for position in (0, 9):
            cold = await engine.logits([*head, 6, 7, *fork.ids[:position]], cache_prompt=False)
            assert_equals_cold(fork_rows[position], cold, tolerance=0.01)


@pytest.mark.behaviour("B-33")
@CACHES
async def test_a_fork_outlives_its_source(zoo: Zoo, attention: FlashAttention, shared: bool) -> None:
    async with running(zoo("dense"), slots=2, flash_attention=attention) as engine:
        assert engine.shares_cells is shared
        head = ids(3, 50)
        await engine.ask([*head, 5], max_tokens=3, ignore_eos=True)
        first = await engine.ask([*head, 6], max_tokens=3, ignore_eos=True)
        assert first.cached_tokens == 50
        other = await engine.ask(ids(4, 30), max_tokens=3, ignore_eos=True)
        assert other.slot_id != first.slot_id
        await equals_cold(engine, [*head, 6, *first.ids, 8])


@pytest.mark.behaviour("B-32")
async def test_policy_longest_stays_in_the_slot_that_holds_the_prompt(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=3, policy=SlotPolicy.LONGEST) as engine:
        prompt = ids(5, 30)
        answers = [await engine.ask([*prompt, number], max_tokens=2, ignore_eos=True) for number in (1, 2, 3)]
        assert [answer.slot_id for answer in answers] == [0, 0, 0]
        assert [answer.cached_tokens for answer in answers] == [0, 30, 30]


@pytest.mark.behaviour("B-39")
async def test_reuse_can_be_turned_off(zoo: Zoo) -> None:
    async with running(zoo("dense")) as engine:
        prompt = ids(6, 40)
        answers = [await engine.ask(prompt, max_tokens=2, cache_prompt=False) for _ in range(2)]
        assert [answer.cached_tokens for answer in answers] == [0, 0]


@pytest.mark.behaviour("B-35")
@pytest.mark.parametrize("model", ["recurrent", "hybrid"])
async def test_a_similar_prompt_on_recurrent_memory_equals_a_cold_run(zoo: Zoo, model: str) -> None:
    async with running(zoo(model), slots=2, copies_bytes_max=0) as engine:
        head = ids(7, 40)
        await engine.ask([*head, 5, 6], max_tokens=4, ignore_eos=True)
        await equals_cold(engine, [*head, 7, 8], cached=0)


@pytest.mark.behaviour("B-35")
@pytest.mark.parametrize("model", ["recurrent", "hybrid"])
async def test_a_conversation_on_recurrent_memory_goes_on_where_it_ended(zoo: Zoo, model: str) -> None:
    async with running(zoo(model), slots=2) as engine:
        first = await engine.ask(ids(8, 40), max_tokens=5, ignore_eos=True)
        # The last token was sampled but never evaluated, so it is not held.
        await equals_cold(engine, [*ids(8, 40), *first.ids, 9, 10], cached=44)


@pytest.mark.behaviour("B-43")
async def test_a_tail_that_cannot_be_erased_empties_the_slot(zoo: Zoo) -> None:
    async with running(zoo("recurrent"), slots=1, copies_bytes_max=0) as engine:
        free = await engine.ask(ids(9, 20), max_tokens=30, ignore_eos=True)
        answer = await engine.ask(ids(9, 20), max_tokens=30, ignore_eos=True, stops=(letters_late_in(free.text),))
        assert answer.end.ending.reason is EndReason.STOP_STRING
        await engine.idle()
        assert await engine.on_engine(lambda: held_cells(engine)) == 0
        await equals_cold(engine, [*ids(9, 20), 7], cached=0)


@pytest.mark.behaviour("B-37")
async def test_a_sliding_window_slot_goes_on_after_another_wrote_a_lot(zoo: Zoo) -> None:
    async with running(zoo("swa"), slots=2, context=1024, batch=64) as engine:
        first = await engine.ask(ids(10, 200), max_tokens=4, ignore_eos=True)
        await engine.ask(ids(11, 600), max_tokens=4, ignore_eos=True)
        assert engine.decode_calls > 0
        await equals_cold(engine, [*ids(10, 200), *first.ids[:3], 9], cached=203)


@pytest.mark.behaviour("B-37")
async def test_a_sliding_window_that_has_moved_on_is_not_reused(zoo: Zoo) -> None:
    async with running(zoo("swa"), slots=2, context=1024, batch=64, copies_bytes_max=0) as engine:
        await engine.ask(ids(12, 600), max_tokens=4, ignore_eos=True)
        await equals_cold(engine, [*ids(12, 10), *ids(13, 60)], cached=0)


@pytest.mark.behaviour("B-17")
async def test_flash_attention_on_and_off_say_the_same(zoo: Zoo) -> None:
    prompt = ids(14, 100)
    rows = []
    for attention in (FlashAttention.ON, FlashAttention.OFF):
        async with running(zoo("dense"), flash_attention=attention) as engine:
            assert engine.model is not None
            assert engine.model.layout.flash_attention is attention
            rows.append(await engine.logits(prompt))
    assert_equals_cold(rows[0], rows[1], tolerance=0.01)


@pytest.mark.behaviour("B-18")
async def test_a_quantised_cache_is_used_with_flash_attention_only(zoo: Zoo) -> None:
    sizes = {}
    for attention, expected in ((FlashAttention.AUTO, "q8_0"), (FlashAttention.OFF, "f16")):
        async with running(zoo("dense"), cache_type_k="q8_0", cache_type_v="q8_0", flash_attention=attention) as engine:
            assert engine.model is not None
            assert engine.model.layout.cache_type_v == expected
            assert bool(engine.model.warnings) is (expected == "f16")
            assert engine.model.memory is not None
            sizes[expected] = engine.model.memory.host.cache_bytes
            await engine.ask("Hello", max_tokens=3, ignore_eos=True)
    assert sizes["q8_0"] < 0.6 * sizes["f16"]


@pytest.mark.behaviour("B-36")
@CACHES
async def test_requests_that_share_a_prefix_and_come_together_evaluate_it_once(
    zoo: Zoo, attention: FlashAttention, shared: bool
) -> None:
    async with running(zoo("dense"), slots=8, context=1024, flash_attention=attention) as engine:
        assert engine.shares_cells is shared
        head = ids(15, 700)
        answers = await asyncio.gather(
            *(engine.ask([*head, number, 5], max_tokens=4, ignore_eos=True) for number in range(8))
        )
        assert sorted(answer.cached_tokens for answer in answers) == [0, *[700] * 7]
        assert sum(report.prompt_tokens for report in engine.reports) == 702 + 7 * 2
        # Fused attention without AVX-512 was 0.51 % off here: several sequences share the calls of the prefix.
        await equals_cold(engine, [*head, 3, 5, 6], tolerance=0.01 if shared else 0.005)


async def test_a_follower_starts_alone_when_its_leader_is_cancelled(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=2, context=2048, batch=64) as engine:
        head = ids(16, 1500)
        goes_on = stand_at(engine, call=7)
        leader = engine.open([*head, 1], max_tokens=4)
        await engine.until(lambda: engine.decode_calls >= 2)
        follower = engine.open([*head, 2], max_tokens=4, ignore_eos=True)
        await engine.until(lambda: engine.decode_calls >= 5)
        engine.streams.close(leader)
        goes_on.set()
        answer = await engine.read(follower)
        assert 0 < answer.cached_tokens < 1500
        assert len(answer.tokens) == 4


@pytest.mark.behaviour("B-38")
@pytest.mark.parametrize("model", ["recurrent", "hybrid", "hybrid_rollback"])
async def test_a_checkpoint_saves_a_similar_prompt_on_recurrent_memory(zoo: Zoo, model: str) -> None:
    async with running(zoo(model), slots=2) as engine:
        head = ids(30, 300)
        await engine.ask([*head, 5, 6], max_tokens=8, ignore_eos=True)
        # Saved four inputs before the end of the first prompt, and forked into the other slot from there.
        await equals_cold(engine, [*head, 7, 8], cached=298)
        # Again in the slot that holds it, and with the user's text beginning at 200.
        await engine.ask([*ids(31, 200), *ids(32, 90)], max_tokens=4, ignore_eos=True, boundaries=(0, 200))
        await equals_cold(engine, [*ids(31, 200), *ids(33, 50)], cached=200)


@pytest.mark.behaviour("B-38")
async def test_a_checkpoint_brings_a_lost_window_back(zoo: Zoo) -> None:
    async with running(zoo("swa"), slots=2, context=1024, batch=64) as engine:
        head = ids(34, 300)
        await engine.ask([*head, *ids(35, 300)], max_tokens=8, ignore_eos=True, boundaries=(300,))
        await equals_cold(engine, [*head, *ids(36, 30)], cached=300)


@pytest.mark.behaviour("B-38", "B-115")
async def test_a_cut_goes_back_to_a_checkpoint_instead_of_to_nothing(zoo: Zoo) -> None:
    async with running(zoo("recurrent"), slots=1) as engine:
        prompt = ids(37, 100)
        free = await engine.ask(prompt, max_tokens=30, ignore_eos=True)
        answer = await engine.ask(prompt, max_tokens=30, ignore_eos=True, stops=(letters_late_in(free.text),))
        assert answer.end.ending.reason is EndReason.STOP_STRING
        assert await engine.on_engine(partial(held_cells, engine)) == 96  # behind the cut
        await equals_cold(engine, [*prompt, 9], cached=96)


@pytest.mark.behaviour("B-38")
async def test_checkpoints_are_bounded_in_bytes(zoo: Zoo) -> None:
    async with running(zoo("recurrent"), slots=4, copies_bytes_max=1_500_000) as engine:
        for number in range(8):
            await engine.ask(ids(40 + number, 200), max_tokens=2, ignore_eos=True)
        loop = engine.engine._loop
        assert loop is not None
        saved = [data for places in loop._slots.checkpoints._saved.values() for data in places.values()]
        assert saved
        assert sum(data.size for data in saved) <= 1_500_000


@pytest.mark.parametrize("model", ["dense", "swa", "hybrid", "hybrid_rollback"])
async def test_idle_prompts_leave_the_cache_and_come_back(zoo: Zoo, model: str) -> None:
    async with running(zoo(model), slots=4, context=1024) as engine:
        for number in range(4):
            await engine.ask(
                [*ids(50 + number, 600), 5], max_tokens=4, ignore_eos=True, boundaries=(0, 300)
            )  # a windowed or recurrent memory can be cut where the user's text begins
        await engine.until(lambda: held_cells(engine) <= 1024)
        # A call of few inputs adds up windowed attention in half precision, one of many does not.
        tolerance = 0.01 if model == "swa" else 0.005
        # The newest is still in its slot, the others come back whole, or as far as they are shared.
        newest = 600 if model in ("dense", "swa") else 597
        await equals_cold(engine, [*ids(53, 600), 6], cached=newest, tolerance=tolerance)
        await equals_cold(engine, [*ids(50, 600), 5], cached=600 if model == "dense" else 597, tolerance=tolerance)
        await equals_cold(engine, [*ids(51, 300), 7, 8], cached=300, tolerance=tolerance)
        answer = await engine.ask([*ids(52, 600), 5], max_tokens=4, ignore_eos=True)
        longer = [*ids(52, 600), 5, *answer.ids[:3]]
        for number in range(3):
            await engine.ask(ids(60 + number, 600), max_tokens=2, ignore_eos=True)
        await engine.until(lambda: held_cells(engine) <= 1024)
        await equals_cold(engine, [*longer, 7], cached=len(longer), tolerance=tolerance)


async def test_a_window_is_saved_as_it_was_before_the_call_that_moved_it_on(zoo: Zoo) -> None:
    async with running(zoo("swa"), slots=4, context=1024) as engine:
        assert engine.engine._loop is not None
        context, prompt = engine.engine._loop._context, ids(54, 300)
        slot = (await engine.ask(prompt, max_tokens=1)).slot_id
        before = await engine.on_engine(lambda: context.save(slot, StatePart.PARTIAL))
        longer = await engine.ask([*prompt, *ids(55, 40)], max_tokens=1)
        assert (longer.slot_id, longer.cached_tokens) == (slot, 300)
        now = await engine.on_engine(lambda: context.save(slot, StatePart.PARTIAL))
        again = await engine.on_engine(lambda: context.save_window(slot, 300))
        assert now.tobytes() != before.tobytes()
        assert again.tobytes() == before.tobytes()


async def test_a_prompt_is_evaluated_in_one_call_although_its_window_is_saved_within_it(zoo: Zoo) -> None:
    async with running(zoo("swa"), slots=4, context=1024) as engine:
        calls = engine.decode_calls
        await engine.ask(ids(56, 400), max_tokens=1, boundaries=(0, 200))
        assert engine.decode_calls == calls + 1
        assert engine.engine._loop is not None
        checkpoints = engine.engine._loop._slots.checkpoints
        assert await engine.on_engine(lambda: checkpoints.places(0)) == (200, 396)


async def test_a_window_in_an_unknown_format_ends_the_call_where_it_is_saved(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(zoo("swa"), slots=4, context=1024) as engine:
        assert engine.engine._loop is not None
        monkeypatch.setattr("runner.engine.llama.context.give_owner", unknown_format)
        await engine.ask(ids(57, 400), max_tokens=1, boundaries=(0, 200))  # two places in one call
        calls = engine.decode_calls
        await engine.ask(ids(58, 400), max_tokens=1)
        assert engine.decode_calls == calls + 2
        assert (await engine.ask([*ids(58, 396), 5, 6], max_tokens=1)).cached_tokens == 396


def unknown_format(*_: object, **__: object) -> None:
    raise UnknownFormat("changed")


async def test_a_state_without_attention_is_not_moved(zoo: Zoo) -> None:
    async with running(zoo("recurrent"), slots=4, context=1024) as engine:
        for number in range(4):
            await engine.ask(ids(50 + number, 600), max_tokens=2, ignore_eos=True)
        await engine.idle()
        assert held_cells(engine) > 2000
        assert list(engine.streams.held.tell().saved) == []


async def test_a_prompt_comes_back_to_a_slot_that_is_copied_in_the_same_step(zoo: Zoo) -> None:
    """llama.cpp copies between caches at its next call: until then neither side may be read or overwritten."""
    async with running(zoo("dense"), slots=3, context=1024) as engine:
        assert not engine.shares_cells
        assert engine.model is not None
        assert engine.model.layout.ubatch_tokens == SEPARATE_GRAPH_TOKENS
        parked, held = ids(56, 600), ids(57, 600)
        await engine.ask(parked, max_tokens=4, ignore_eos=True)
        await engine.ask(held, max_tokens=4, ignore_eos=True)
        await engine.until(lambda: held_cells(engine) <= 1024)
        calls, goes_on = engine.decode_calls, stand_at(engine, call=2)
        running_on = engine.open(ids(58, 8), max_tokens=8, ignore_eos=True)
        await engine.until(lambda: engine.decode_calls > calls)
        # The first is copied out of the slot that the second one gets.
        prompts = [[*held[:400], 5], [*parked, 5]]
        streams = [engine.open(prompt, max_tokens=1, top_logprobs=0) for prompt in prompts]
        goes_on.set()
        answers = [await engine.read(stream) for stream in (*streams, running_on)]
        assert [answer.cached_tokens for answer in answers[:2]] == [400, 0], "the second one is computed anew"
        assert answers[0].slot_id != answers[1].slot_id
        for prompt, stream in zip(prompts, streams, strict=True):
            cold = await engine.logits(prompt, cache_prompt=False)
            assert_equals_cold(engine.rows.pop(stream.id)[0], cold)


async def test_prompts_that_left_the_cache_are_told_by_name_until_they_come_back(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=4, context=1024) as engine:
        held = engine.streams.held
        names = [name_prompt([b"prompt %d" % number], salt="").names[0] for number in range(5)]

        async def ask(number: int, prompt: list[int]) -> Answer:
            stream = engine.open(prompt, max_tokens=4, ignore_eos=True)
            held.note(stream.id, SequenceNames([b"prompt %d" % number], salt="", pieces=None, inputs=len(prompt)))
            return await engine.read(stream)

        def parked() -> list[int]:
            return [name for one in held.tell().saved for name in one.names]

        for number in range(4):
            await ask(number, ids(50 + number, 600))
        await engine.until(lambda: len(parked()) == 3)
        assert list(held.tell().names) == [names[3]], "the newest stays in its slot"
        assert parked() == [names[2], names[1], names[0]], "the newest first"
        assert all(0 < one.restore_s < 1 for one in held._parked), "its copy was measured"
        again = await ask(4, [*ids(51, 600), 5])
        assert again.cached_tokens == 600
        await engine.until(lambda: names[4] in held.tell().names)
        assert names[0] in parked(), "the others are still there"


async def test_a_conversation_that_went_on_replaces_its_parked_beginning(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=2, context=2048) as engine:
        prompt = ids(60, 700)
        for turn in range(3):
            answer = await engine.ask(prompt, max_tokens=4, ignore_eos=True)
            assert (answer.cached_tokens > 600) is (turn > 0)
            prompt = [*prompt, *answer.ids, *ids(61 + turn, 20)]
            await engine.ask(ids(70 + turn, 700), max_tokens=2, ignore_eos=True)
            await engine.until(lambda: held_cells(engine) <= 1024)
        loop = engine.engine._loop
        assert loop is not None
        starts = [parked.inputs[:50] for parked in loop._slots._parking._prompts.values()]
        assert starts.count(prompt[:50]) == 1


async def test_prompts_too_large_to_park_stay_where_they_are(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=4, context=1024, copies_bytes_max=100_000) as engine:
        for number in range(4):
            await engine.ask(ids(80 + number, 600), max_tokens=2, ignore_eos=True)
        for number in range(4):
            answer = await engine.ask(ids(80 + number, 600), max_tokens=2, ignore_eos=True)
            assert answer.cached_tokens == 599


def letters_late_in(text: str) -> str:
    """Two letters from the second half of a text, to stop at."""
    found = re.search("[a-z]{2}", text[len(text) // 2 :])
    assert found is not None
    return found[0]


def held_cells(engine: Harness) -> int:
    loop = engine.engine._loop
    assert loop is not None
    return sum(len(slot.held) for slot in loop._slots.slots)
