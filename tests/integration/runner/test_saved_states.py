"""States that outlive their engine, on every kind of memory, through the store of a real node."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.errors import RequestCanceled
from common.spec.bands import Band
from common.spec.layout import FlashAttention
from runner.engine.contract.states import NewState, StateBuffer, StateBytes
from runner.host.states.store import NodeStates
from runner.sealed_memory import seal
from runner.serve.state_memory import MemoryFile
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.harness import Harness, running
from tests.integration.runner.pictures import image_file, picture
from tests.integration.runner.saved_states import MIB, connected, count, open_node
from tests.waiting import until
from tools.model_zoo import build_pair

KINDS = ("dense", "tied", "moe", "swa", "recurrent", "hybrid", "hybrid_rollback", "mrope")


def ids(seed: int, length: int) -> list[int]:
    """Random token ids, none of them special."""
    drawn: list[int] = np.random.default_rng(seed).integers(300, 1000, size=length).tolist()
    return drawn


async def saved(states: NodeStates, number: int = 1) -> None:
    """Wait until the node has so many states."""
    await until(lambda: count(states) >= number, what="a state is saved")


async def text_without(model: Path, prompt: list[int], *, warm: list[int], **options: object) -> list[int]:
    """Return what an engine says that computed everything itself: the first turn, then the second."""
    async with running(model, slots=2, context=1024, **options) as engine:  # type: ignore[arg-type]
        await engine.ask(warm, max_tokens=8, ignore_eos=True)
        return (await engine.ask(prompt, max_tokens=24, ignore_eos=True)).ids


@pytest.mark.parametrize("kind", KINDS)
async def test_greedy_text_after_a_reload_equals_the_text_without_it(zoo: Zoo, tmp_path: Path, kind: str) -> None:
    first = ids(1, 300)
    states = open_node(tmp_path)
    async with connected(states, tmp_path, zoo(kind), slots=2, context=1024) as engine:
        said = (await engine.ask(first, max_tokens=8, ignore_eos=True)).ids
        await saved(states)
    prompt = [*first, *said, *ids(2, 20)]
    async with connected(states, tmp_path, zoo(kind), slots=2, context=1024) as engine:
        answer = await engine.ask(prompt, max_tokens=24, ignore_eos=True)
    assert answer.cached_tokens == 307  # the last token of an answer was sampled and never evaluated
    assert answer.ids == await text_without(zoo(kind), prompt, warm=first)
    await states.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_an_equal_prompt_after_a_reload_is_computed_only_at_its_end(zoo: Zoo, tmp_path: Path, kind: str) -> None:
    prompt = ids(3, 300)
    states = open_node(tmp_path)
    async with connected(states, tmp_path, zoo(kind), slots=2, context=1024) as engine:
        before = await engine.ask(prompt, max_tokens=16, ignore_eos=True)
        await saved(states)
    async with connected(states, tmp_path, zoo(kind), slots=2, context=1024) as engine:
        after = await engine.ask(prompt, max_tokens=16, ignore_eos=True)
    assert after.cached_tokens >= 290  # memory that cannot go back has a checkpoint shortly before the end
    assert after.ids == before.ids
    await states.close()


async def test_an_image_is_a_part_of_a_saved_state(zoo: Zoo, tmp_path: Path) -> None:
    states = open_node(tmp_path)
    model, projector = build_pair("vision", tmp_path)
    options: dict[str, Any] = {"projector": projector, "slots": 2, "context": 1024}
    answers = []
    for _ in range(2):
        async with connected(states, tmp_path, model, **options) as engine:
            image = engine.engine.read_image(image_file(picture(1, width=64, height=48)))
            prompt = [*ids(4, 100), *image.inputs, *ids(5, 30)]
            answers.append(await engine.ask(prompt, images=(image,), max_tokens=8, ignore_eos=True))
            await saved(states)
            encoded = engine.encoded
    assert answers[0].ids == answers[1].ids
    assert answers[1].cached_tokens >= len(prompt) - 1
    assert encoded == 0, "the rows of the image are in the state"
    await states.close()


async def test_a_state_is_saved_when_the_engine_stops_in_the_middle_of_an_answer(zoo: Zoo, tmp_path: Path) -> None:
    states = open_node(tmp_path)
    prompt = ids(6, 200)
    async with connected(states, tmp_path, zoo("dense"), slots=1, context=1024) as engine:
        stream = engine.open(prompt, max_tokens=800, ignore_eos=True)
        await engine.until(lambda: sum(report.generated_tokens for report in engine.reports) >= 20)
        engine.engine.stop()
        with pytest.raises(RequestCanceled):
            await engine.read(stream)
    assert count(states) == 1
    async with connected(states, tmp_path, zoo("dense"), slots=1, context=1024) as engine:
        assert (await engine.ask(prompt, max_tokens=2)).cached_tokens == 199
    await states.close()


@pytest.mark.parametrize("copy_s", [0.5, 2.0])
async def test_an_idle_slot_is_saved_to_its_last_token_when_the_engine_stops_if_that_is_quicker(
    zoo: Zoo, tmp_path: Path, copy_s: float
) -> None:
    states, talk = open_node(tmp_path), ids(41, 300)
    async with connected(states, tmp_path, zoo("dense"), slots=1, context=1024) as engine:
        talk += (await engine.ask(talk, max_tokens=8, ignore_eos=True)).ids
        await saved(states)
        before = len(talk)
        talk += ids(42, 20)  # less than a block: not saved while the engine runs
        talk += (await engine.ask(talk, max_tokens=8, ignore_eos=True)).ids
        loop = engine.engine._loop
        assert loop is not None
        assert loop.states is not None
        loop.states._copies.seconds = lambda size_bytes: copy_s  # type: ignore[method-assign]  # noqa: ARG005
        loop.states._seconds = lambda tokens: 1.0  # type: ignore[method-assign]  # noqa: ARG005
    async with connected(states, tmp_path, zoo("dense"), slots=1, context=1024) as engine:
        answer = await engine.ask([*talk, *ids(43, 20)], max_tokens=2, ignore_eos=True)
    assert answer.cached_tokens == (len(talk) if copy_s < 1.0 else before) - 1
    await states.close()


async def test_the_state_of_a_paused_answer_is_saved_when_the_engine_stops(zoo: Zoo, tmp_path: Path) -> None:
    states, prompt = open_node(tmp_path), ids(31, 200)
    async with connected(states, tmp_path, zoo("swa"), slots=1, context=1024) as engine:
        low = engine.open(prompt, max_tokens=800, ignore_eos=True, band=Band.LOW)
        await engine.until(lambda: sum(report.generated_tokens for report in engine.reports) >= 20)
        high = engine.open(ids(32, 100), max_tokens=800, ignore_eos=True, band=Band.HIGH)
        await engine.until(lambda: any(report.open_slots == (0, 0) for report in engine.reports[-1:]))
        engine.engine.stop()
        for stream in (low, high):
            with pytest.raises(RequestCanceled):
                await engine.read(stream)
    async with connected(states, tmp_path, zoo("swa"), slots=1, context=1024) as engine:
        # The window has moved on: the rest is taken back to the last checkpoint of the prompt.
        assert (await engine.ask(prompt, max_tokens=2)).cached_tokens >= 190
    await states.close()


async def test_an_engine_that_stops_saves_running_answers_first_then_idle_and_parked_prompts(
    zoo: Zoo, tmp_path: Path
) -> None:
    states, parked, idle, runs = open_node(tmp_path), ids(33, 600), ids(34, 600), ids(35, 200)
    async with connected(states, tmp_path, zoo("dense"), slots=3, context=1024) as engine:
        loop = engine.engine._loop
        assert loop is not None
        assert loop.states is not None
        keeper, put, order = loop.states, loop.states._store.put, list[int]()
        keeper.work = lambda **_: False  # type: ignore[method-assign]  # nothing is saved before the end
        keeper.holds = lambda slot: False  # type: ignore[method-assign]  # noqa: ARG005

        def put_noted(state: NewState) -> None:
            order.append(state.inputs[0])
            put(state)

        keeper._store.put = put_noted  # type: ignore[method-assign]
        for prompt in (parked, idle):
            await engine.ask(prompt, max_tokens=4, ignore_eos=True)
        await engine.until(lambda: any(report.parked for report in engine.reports))
        before = sum(report.generated_tokens for report in engine.reports)
        stream = engine.open(runs, max_tokens=800, ignore_eos=True)
        await engine.until(lambda: sum(report.generated_tokens for report in engine.reports) >= before + 20)
        engine.engine.stop()
        with pytest.raises(RequestCanceled):
            await engine.read(stream)
    assert order == [runs[0], idle[0], parked[0]]
    async with connected(states, tmp_path, zoo("dense"), slots=3, context=1024) as engine:
        for prompt in (parked, idle, runs):
            assert (await engine.ask(prompt, max_tokens=2)).cached_tokens == len(prompt) - 1
    await states.close()


async def test_a_state_is_saved_when_the_engine_stops_while_room_is_made_for_it(zoo: Zoo, tmp_path: Path) -> None:
    states = open_node(tmp_path)
    async with connected(states, tmp_path, zoo("dense"), slots=1, context=1024) as engine:
        loop = engine.engine._loop
        assert loop is not None
        assert loop.states is not None
        store, reserve, calls = loop.states._store, loop.states._store.reserve, list[int]()

        def reserve_later(size_bytes: int, done: Callable[[StateBuffer | None], None], **_: bool) -> None:
            calls.append(size_bytes)
            if len(calls) > 1:  # the first one is never answered
                reserve(size_bytes, done)

        store.reserve = reserve_later  # type: ignore[method-assign]
        await engine.ask(ids(20, 200), max_tokens=2)
        await until(lambda: len(calls) == 1, what="room is being made")
    assert count(states) == 1
    await states.close()


async def test_no_lower_band_begins_while_the_state_of_a_higher_one_is_brought(zoo: Zoo, tmp_path: Path) -> None:
    states, prompt = open_node(tmp_path), ids(21, 300)
    async with connected(states, tmp_path, zoo("dense"), slots=3, context=1536) as engine:
        await engine.ask(prompt, max_tokens=2)
        await saved(states)
    async with connected(states, tmp_path, zoo("dense"), slots=3, context=1536) as engine:
        loop = engine.engine._loop
        assert loop is not None
        assert loop.states is not None
        store, held = loop.states._store, list[Callable[[], None]]()
        fetch = store.fetch
        store.fetch = lambda *asked: held.append(lambda: fetch(*asked))  # type: ignore[method-assign]
        normal = engine.open(prompt, max_tokens=2)
        await until(lambda: len(held) == 1, what="the state is sent for")
        low = engine.open(ids(22, 100), max_tokens=2, band=Band.LOW)
        beside = await engine.ask(ids(23, 100), max_tokens=4, ignore_eos=True)
        assert len(beside.ids) == 4, "one of the same band begins"
        assert await engine.on_engine(lambda: (list(loop._running), len(loop._waiting))) == ([], 2)
        held.pop()()
        assert (await engine.read(normal)).cached_tokens == 299
        await engine.read(low)
    await states.close()


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "others decode"])
async def test_large_states_are_copied_in_slices_behind_what_computes(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """A request may come while nothing runs, too."""
    monkeypatch.setattr("runner.core.states.gate.STEP_DELAY_S", 1e-5)
    states = open_node(tmp_path)
    options: dict[str, Any] = {"slots": 2, "context": 2048, "flash_attention": FlashAttention.ON}
    prompt = ids(7, 1000)
    async with connected(states, tmp_path, zoo("dense"), **options) as engine:
        sizes, untold = watch_slices(engine), list[bool]()
        loop = engine.engine._loop
        assert loop is not None
        assert loop.states is not None
        copy_slice, keeper = loop.states._copy_slice, loop.states

        def note_untold(save: Any) -> None:
            untold.append(bool(loop._report.outcomes))
            copy_slice(save)

        keeper._copy_slice = note_untold  # type: ignore[method-assign]
        streams = [engine.open(ids(8, 50), max_tokens=1500, ignore_eos=True) for _ in range(others)]
        await engine.ask(prompt, max_tokens=4, ignore_eos=True)
        await saved(states)
        assert len(sizes) > 4, "it was copied in slices"
        assert not any(untold), "no token waits for a copy"
        (joining,) = (thread.native_id for thread in threading.enumerate() if thread.name == "states-join")
        assert os.getpriority(os.PRIO_PROCESS, joining or 0) > os.getpriority(os.PRIO_PROCESS, 0)
        for stream in streams:
            engine.streams.close(stream)
        await engine.idle()
    async with connected(states, tmp_path, zoo("dense"), **options) as engine:
        after = await engine.ask(prompt, max_tokens=16, ignore_eos=True)
        cold = await engine.ask(prompt, max_tokens=16, ignore_eos=True, cache_prompt=False)
    assert after.cached_tokens == 999
    assert after.ids == cold.ids
    await states.close()


async def test_slices_of_an_unknown_format_are_given_up_and_the_state_is_saved_whole(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.core.states.gate.STEP_DELAY_S", 1e-5)
    states = open_node(tmp_path)
    options: dict[str, Any] = {"slots": 2, "context": 2048, "flash_attention": FlashAttention.ON}
    prompt = ids(7, 1000)
    async with connected(states, tmp_path, zoo("dense"), **options) as engine:
        assert engine.engine._loop is not None
        context = engine.engine._loop._context
        context.save_slice = lambda *_: np.zeros(64, np.uint8)  # type: ignore[method-assign]
        other = engine.open(ids(8, 50), max_tokens=1500, ignore_eos=True)
        await engine.ask(prompt, max_tokens=4, ignore_eos=True)
        await until(lambda: not context.gives_slices, what="the format is noticed")
        engine.streams.close(other)
        await engine.idle()
        await saved(states)
    async with connected(states, tmp_path, zoo("dense"), **options) as engine:
        assert (await engine.ask(prompt, max_tokens=4, ignore_eos=True)).cached_tokens == 999
    await states.close()


async def test_a_state_whose_pieces_find_no_memory_is_given_up_once(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.core.states.gate.STEP_DELAY_S", 1e-5)
    states = open_node(tmp_path)
    options: dict[str, Any] = {"slots": 2, "context": 2048, "flash_attention": FlashAttention.ON}
    async with connected(states, tmp_path, zoo("dense"), **options) as engine:
        loop = engine.engine._loop
        assert loop is not None
        assert loop.states is not None
        keeper, calls = loop.states, list[int]()
        store, reserve = keeper._store, keeper._store.reserve

        def reserve_full(size_bytes: int, done: Callable[[StateBuffer | None], None], **options: bool) -> None:
            def seal_first(buffer: StateBuffer | None) -> None:
                assert isinstance(buffer, MemoryFile)
                seal(buffer.descriptor)  # writing fails from here on
                done(buffer)

            calls.append(size_bytes)
            reserve(size_bytes, seal_first, **options)

        store.reserve = reserve_full  # type: ignore[method-assign]
        other = engine.open(ids(8, 50), max_tokens=1500, ignore_eos=True)
        await engine.ask(ids(7, 1000), max_tokens=4, ignore_eos=True)
        await until(lambda: len(calls) == 1 and keeper._save is None, what="the save is given up")
        before = len(engine.reports)
        await engine.until(lambda: len(engine.reports) >= before + 20)
        assert len(calls) == 1, "it is not tried at every step"
        assert loop._context.gives_slices, "their format is the expected one"
        store.reserve = reserve  # type: ignore[method-assign]
        engine.streams.close(other)
        await engine.idle()
        assert (await engine.ask(ids(7, 1000), max_tokens=4, ignore_eos=True)).cached_tokens == 999
    await states.close()


async def test_a_slot_that_changes_while_it_is_copied_is_not_saved(
    zoo: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.core.states.gate.STEP_DELAY_S", 1e-5)
    states = open_node(tmp_path)
    async with connected(
        states, tmp_path, zoo("dense"), slots=2, context=2048, flash_attention=FlashAttention.ON
    ) as engine:
        other = engine.open(ids(9, 50), max_tokens=1500, ignore_eos=True)
        sizes = watch_slices(engine)
        prompts = [ids(seed, 800) for seed in (10, 11, 12)]
        for prompt in prompts:  # each takes the slot of the one before, at once
            await engine.ask(prompt, max_tokens=2, ignore_eos=True)
        engine.streams.close(other)
        await engine.idle()
        await saved(states)
    assert sizes
    async with connected(
        states, tmp_path, zoo("dense"), slots=2, context=2048, flash_attention=FlashAttention.ON
    ) as engine:
        for prompt in prompts:
            after = await engine.ask(prompt, max_tokens=8, ignore_eos=True)
            cold = await engine.ask(prompt, max_tokens=8, ignore_eos=True, cache_prompt=False)
            assert after.ids == cold.ids
    await states.close()


async def test_tenants_do_not_share_saved_states(zoo: Zoo, tmp_path: Path) -> None:
    states = open_node(tmp_path)
    prompt = ids(13, 200)
    async with connected(states, tmp_path, zoo("dense"), slots=2) as engine:
        await engine.ask(prompt, max_tokens=2, cache_salt="one")
        await saved(states)
    async with connected(states, tmp_path, zoo("dense"), slots=2) as engine:
        assert (await engine.ask(prompt, max_tokens=2, cache_salt="two")).cached_tokens == 0
        assert (await engine.ask(prompt, max_tokens=2, cache_salt="one")).cached_tokens == 199
    await states.close()


async def test_a_state_of_other_settings_is_not_used(zoo: Zoo, tmp_path: Path) -> None:
    states = open_node(tmp_path)
    prompt = ids(14, 200)
    async with connected(states, tmp_path, zoo("dense"), slots=2, flash_attention=FlashAttention.ON) as engine:
        await engine.ask(prompt, max_tokens=2)
        await saved(states)
    quantised: dict[str, Any] = {"cache_type_k": "q8_0", "cache_type_v": "q8_0", "flash_attention": FlashAttention.ON}
    async with connected(states, tmp_path, zoo("dense"), slots=2, **quantised) as engine:
        assert (await engine.ask(prompt, max_tokens=2)).cached_tokens == 0
    async with connected(states, tmp_path, zoo("dense"), slots=4, flash_attention=FlashAttention.ON) as engine:
        assert (await engine.ask(prompt, max_tokens=2)).cached_tokens == 199  # the number of slots may differ
    await states.close()


async def test_forgetting_reaches_slots_and_states_and_what_is_on_its_way(zoo: Zoo, tmp_path: Path) -> None:
    states = open_node(tmp_path)
    prompt, kept = ids(15, 200), ids(16, 200)
    async with connected(states, tmp_path, zoo("dense"), slots=4) as engine:
        await engine.ask(prompt, max_tokens=2, cache_salt="goes")
        await engine.ask(kept, max_tokens=2, cache_salt="stays")
        await saved(states, 2)
        assert (await states.forget("goes"))[0] == 1
        await until(lambda: held(engine) == 201, what="the slot is empty")
        assert (await engine.ask(kept, max_tokens=2, cache_salt="stays")).cached_tokens == 199
        assert (await engine.ask(prompt, max_tokens=2, cache_salt="goes")).cached_tokens == 0
    await states.close()


async def test_a_state_survives_its_host_on_disk(zoo: Zoo, tmp_path: Path) -> None:
    prompt = ids(17, 300)
    states = open_node(tmp_path)
    async with connected(states, tmp_path, zoo("dense"), slots=2) as engine:
        before = await engine.ask(prompt, max_tokens=8, ignore_eos=True)
        await saved(states)
    await states.close()
    later = open_node(tmp_path)
    await later.load()
    async with connected(later, tmp_path, zoo("dense"), slots=2) as engine:
        after = await engine.ask(prompt, max_tokens=8, ignore_eos=True)
    assert (after.cached_tokens, after.ids) == (299, before.ids)
    await later.close()


async def test_states_larger_than_the_tier_are_not_copied(zoo: Zoo, tmp_path: Path) -> None:
    states = open_node(tmp_path, ram_bytes=MIB // 8)
    async with connected(states, tmp_path, zoo("dense"), slots=2) as engine:
        await engine.ask(ids(18, 400), max_tokens=2)
        await engine.ask(ids(19, 400), max_tokens=2)
    assert count(states) == 0
    await states.close()


def watch_slices(engine: Harness) -> list[int]:
    """Record the bytes of every slice that is copied from now on."""
    assert engine.engine._loop is not None
    context, sizes = engine.engine._loop._context, list[int]()
    save_slice = context.save_slice

    def watched(slot_id: int, start: int, stop: int) -> StateBytes:
        piece = save_slice(slot_id, start, stop)
        sizes.append(piece.size)
        return piece

    context.save_slice = watched  # type: ignore[method-assign]
    return sizes


def held(engine: Harness) -> int:
    """Inputs that all slots hold now."""
    assert engine.engine._loop is not None
    return engine.engine._loop._slots.held_inputs
