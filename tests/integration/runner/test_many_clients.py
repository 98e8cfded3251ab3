"""Clients that come at once, leave, are refused or read slowly, at the real engine: nobody else is hurt."""

import asyncio
import threading
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest

from common.errors import InvalidRequest, PromptTooLong, QueueFull
from runner.engine.contract.engine import Sampled
from runner.engine.llama.batch import Batch, RowBatch
from runner.serve.streams import WAITING_MAX
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.harness import DEADLINE_S, assert_equals_cold, running, stand_at

PROMPTS = [f"Tell me a story about number {index} and its friends" for index in range(16)]


@pytest.mark.behaviour("B-02")
async def test_no_token_of_a_cancelled_sequence_reaches_another_stream(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=4) as engine:
        prompts = [engine.tokens(prompt) for prompt in PROMPTS]
        expected = [
            (await engine.ask(prompt, max_tokens=8, ignore_eos=True, cache_prompt=False)).ids for prompt in prompts
        ]
        tables = dict(zip(map(tuple, prompts), expected, strict=True))
        logits = {}
        for prompt, ids in tables.items():
            logits[prompt] = [await engine.logits([*prompt, *ids[:n]], cache_prompt=False) for n in range(8)]
        rng = np.random.default_rng(5)
        for _ in range(6):
            streams = [
                engine.open(prompt, max_tokens=8, ignore_eos=True, top_logprobs=0, cache_prompt=False)
                for prompt in prompts
            ]
            doomed = set(rng.choice(16, size=8, replace=False).tolist())
            for number in doomed:
                engine.streams.close(streams[number])
            for number, stream in enumerate(streams):
                if number not in doomed:
                    await engine.read(stream)
                    # Every row belongs to this prompt: its first one has the logits of a cold run.
                    assert_equals_cold(engine.rows[stream.id][0], logits[tuple(prompts[number])][0], tolerance=0.01)
            await engine.idle()


@pytest.mark.behaviour("B-12")
async def test_a_cancelled_prompt_makes_at_most_one_further_call(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []  # calls; and how many they were when a cancel was posted
    begun_at_cancel: list[int] = []
    async with running(zoo("dense"), slots=1, context=8192, batch=64) as engine:
        loop = engine.engine._loop
        assert loop is not None
        decode, post, posted = loop._context.decode, loop.post, threading.Event()

        def counted(batch: Batch | RowBatch) -> int:
            begun.append(batch.size)
            if len(begun) == 3:
                assert posted.wait(DEADLINE_S)
            return decode(batch)

        def noted(command: Callable[[], None]) -> None:
            post(command)
            begun_at_cancel.append(len(begun))
            posted.set()

        monkeypatch.setattr(loop._context, "decode", counted)
        stream = engine.open([7] * 8000, max_tokens=1)
        await engine.until(lambda: engine.decode_calls >= 1)
        monkeypatch.setattr(loop, "post", noted)
        engine.streams.close(stream)
        await engine.idle()
        assert len(begun) - begun_at_cancel[0] <= 1
        assert len(begun) < 8000 / 64
        assert (await engine.ask("Hello", max_tokens=2, ignore_eos=True)).end.generated_tokens == 2


@pytest.mark.behaviour("B-04", "B-05")
async def test_chats_get_a_token_while_a_long_prompt_is_read(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=8, context=2048, batch=64) as engine:
        goes_on = stand_at(engine, call=12)
        chats = [engine.open(prompt, max_tokens=60, ignore_eos=True) for prompt in PROMPTS[:7]]

        def begun() -> set[int]:
            outcomes = [outcome for report in engine.reports for outcome in report.outcomes]
            return {outcome.sequence_id for outcome in outcomes if isinstance(outcome, Sampled)}

        await engine.until(lambda: len(begun()) == len(chats))
        first = len(engine.reports)
        long = engine.open([11] * 1500, max_tokens=1)
        goes_on.set()
        await engine.read(long)
        reports = engine.reports[first:]
        during = [place for place, report in enumerate(reports) if report.prompt_tokens > 0]
        assert len(during) >= 20
        for one, two in pairwise(during):  # of the prompt: chats share its calls, or have one of their own between
            told = {outcome.sequence_id for report in reports[one : two + 1] for outcome in report.outcomes}
            assert {chat.id for chat in chats} <= told
        assert all(report.prompt_tokens + report.generated_tokens <= 64 * report.decode_calls for report in reports)
        for chat in chats:
            engine.streams.close(chat)


@pytest.mark.behaviour("B-47")
async def test_beyond_slots_and_waiting_places_requests_are_refused_at_once(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=2) as engine:
        goes_on = stand_at(engine, call=1)
        streams = [engine.open(f"Number {index}", max_tokens=4) for index in range(2 + WAITING_MAX)]
        with pytest.raises(QueueFull):
            engine.open("One too many", max_tokens=4)
        goes_on.set()
        answers = await asyncio.gather(*(engine.read(stream) for stream in streams))
        assert all(answer.finished is not None for answer in answers)
        assert max(report.slots_busy for report in engine.reports) == 2
        assert max(report.waiting for report in engine.reports) == WAITING_MAX


@pytest.mark.behaviour("B-46")
async def test_a_hundred_injected_failures_leave_every_slot_free(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=4) as engine:
        for number in range(25):
            with pytest.raises(PromptTooLong):
                engine.open([3] * 600, truncate=False)
            with pytest.raises(InvalidRequest):
                engine.open([10**6])
            left = engine.open(f"Number {number}", max_tokens=50)
            early = engine.open(f"Another {number}", max_tokens=50)
            engine.streams.close(early)
            engine.streams.close(left)
            await engine.until(lambda: left.freed and early.freed)  # noqa: B023
        await engine.idle()
        assert engine.streams.inside == 0
        answers = await asyncio.gather(*(engine.ask(prompt, max_tokens=3, ignore_eos=True) for prompt in PROMPTS[:4]))
        assert len({answer.slot_id for answer in answers}) == 4


@pytest.mark.behaviour("B-31")
async def test_two_hundred_arrivals_during_decode_keep_the_slots_in_order(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=8) as engine:
        rng = np.random.default_rng(1)

        async def one(number: int) -> None:
            for _ in range(20):
                stream = engine.open(PROMPTS[number], max_tokens=int(rng.integers(1, 6)), ignore_eos=True)
                if rng.random() < 0.3:
                    engine.streams.close(stream)
                    await engine.until(lambda: stream.freed)  # noqa: B023
                else:
                    await engine.read(stream)

        await asyncio.gather(*(one(number) for number in range(10)))


async def test_a_slow_reader_is_left_out_until_it_has_caught_up(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=2, context=2048) as engine:
        slow = engine.open("Hello", max_tokens=1200, ignore_eos=True)
        await engine.until(lambda: slow.paused)
        assert slow.backlog_tokens < 400
        other = await engine.ask("Hello", max_tokens=50, ignore_eos=True)
        assert len(other.tokens) == 50
        answer = await engine.read(slow)
        assert len(answer.tokens) == 1200
