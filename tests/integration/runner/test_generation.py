"""Generation by the real engine: many sequences in one context, endings, log-probabilities, seeds."""

import asyncio
import gc
import itertools
import threading
from typing import Any

import numpy as np
import pytest

from common.errors import InvalidRequest
from common.spec.layout import Layout
from common.spec.sampling import Sampling
from runner.core.model.model_files import ModelFiles
from runner.core.sequence.batching import UNKNOWN_COST, BatchRow
from runner.core.sequence.endings import REPEATED_TOKENS_MAX, REPETITION, EndReason
from runner.core.threads.step_times import StepTimes
from runner.engine.batched import engine as batched
from runner.engine.batched.engine import BatchedEngine
from runner.engine.batched.loop import BatchedOptions, Loop
from runner.engine.contract.engine import Sampled
from runner.engine.llama.batch import Batch, RowBatch
from runner.engine.llama.context import Context
from tests.engines.formulas import log_softmax
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.contract import driven
from tests.integration.runner.harness import DEADLINE_S, GREEDY, assert_equals_cold, running

PROMPTS = [f"Tell me a story about number {index} and its friends" for index in range(16)]


async def test_sixteen_streams_share_decode_calls_and_all_finish(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=16) as engine:
        answers = await asyncio.gather(*(engine.ask(prompt, max_tokens=40, ignore_eos=True) for prompt in PROMPTS))
        assert [len(answer.tokens) for answer in answers] == [40] * 16
        assert max(report.batch_sequences for report in engine.reports) == 16
        assert engine.decode_calls < 16 * 40 / 4


async def test_each_of_sixteen_streams_has_the_logits_of_its_own_single_run(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=16) as engine:
        streams = [
            engine.open(prompt, max_tokens=12, top_logprobs=0, ignore_eos=True, cache_prompt=False)
            for prompt in PROMPTS
        ]
        answers = await asyncio.gather(*(engine.read(stream) for stream in streams))
        shared = [engine.rows.pop(stream.id) for stream in streams]
        for prompt, answer, rows in zip(PROMPTS, answers, shared, strict=True):
            for position, row in enumerate(rows):
                alone = await engine.logits(engine.tokens(prompt) + answer.ids[:position], cache_prompt=False)
                # 0.5 % is what sixteen rows in one batch instead of one move the logits of this model.
                assert_equals_cold(row, alone, tolerance=0.01)


@pytest.mark.behaviour("B-13")
async def test_one_context_serves_a_hundred_requests(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    created = []

    class Counted(Context):
        def __init__(self, *args: Any, **fields: Any) -> None:
            created.append(1)
            super().__init__(*args, **fields)

    monkeypatch.setattr(batched, "Context", Counted)
    async with running(zoo("dense"), slots=8) as engine:
        for _ in range(10):
            await asyncio.gather(*(engine.ask(f"Number {index}", max_tokens=2) for index in range(10)))
    assert len(created) == 1


@pytest.mark.behaviour("B-110")
async def test_log_probabilities_come_from_the_raw_logits(zoo: Zoo) -> None:
    hot = Sampling(temperature=1.5, seed=3, repeat_penalty=1.3, logit_bias={5: 3.0})
    async with running(zoo("dense")) as engine:
        stream = engine.open("Hello", max_tokens=20, top_logprobs=20, sampling=hot, ignore_eos=True)
        answer = await engine.read(stream)
        rows = engine.rows.pop(stream.id)
    assert len(answer.tokens) == len(rows) == 20
    for token, row in zip(answer.tokens, rows, strict=True):
        assert token.logprobs is not None
        assert np.exp(log_softmax(row)).sum() == pytest.approx(1.0, abs=1e-5)
        assert token.logprobs.chosen == pytest.approx(log_softmax(row)[token.token_id], abs=1e-6)
        assert len(token.logprobs.top) == 20
        expected = np.sort(log_softmax(row))[::-1][:20]
        assert [value for _, value in token.logprobs.top] == pytest.approx(expected.tolist(), abs=1e-6)


@pytest.mark.behaviour("B-110")
async def test_the_greedy_choice_is_the_first_of_its_list(zoo: Zoo) -> None:
    async with running(zoo("dense")) as engine:
        answer = await engine.ask("Hello there", max_tokens=20, top_logprobs=3, ignore_eos=True)
    for token in answer.tokens:
        assert token.logprobs is not None
        assert token.logprobs.top[0] == (token.token_id, token.logprobs.chosen)


@pytest.mark.behaviour("B-14")
async def test_a_kept_row_of_logits_stays_as_it_was(zoo: Zoo) -> None:
    async with running(zoo("dense")) as engine:
        first: list[np.ndarray[Any, Any]] = []
        copies: list[np.ndarray[Any, Any]] = []

        def keep(report: Any) -> None:
            for outcome in report.outcomes:
                if isinstance(outcome, Sampled) and outcome.logits is not None and not first:
                    first.append(outcome.logits)
                    copies.append(outcome.logits.copy())

        engine.on_step = keep
        await engine.ask("Hello", max_tokens=10, top_logprobs=0, ignore_eos=True)
        assert np.array_equal(first[0], copies[0])


@pytest.mark.behaviour("B-15")
async def test_a_collector_that_runs_all_the_time_takes_no_buffer(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()

    def collect() -> None:
        while not stop.is_set():
            gc.collect()

    gc.freeze()  # what is there already is not looked at, so that the collector comes often
    monkeypatch.setattr(gc, "freeze", lambda: None)  # and the engine may not take its own objects out
    async with running(zoo("dense"), slots=4, context=2048) as engine:
        expected = await engine.ask("Hello", max_tokens=1000, ignore_eos=True)
        collector = threading.Thread(target=collect)
        collector.start()
        try:
            answer = await engine.ask("Hello", max_tokens=1000, ignore_eos=True, cache_prompt=False)
        finally:
            stop.set()
            collector.join()
            gc.unfreeze()
        assert len(answer.ids) == 1000
        assert answer.ids == expected.ids


async def test_the_same_seed_draws_the_same_tokens_whatever_runs_beside(zoo: Zoo) -> None:
    sampling = Sampling(temperature=1.0, seed=7)
    async with running(zoo("dense"), slots=4) as engine:
        alone = await engine.ask("Once upon a time", max_tokens=16, sampling=sampling, cache_prompt=False)
        again = await engine.ask("Once upon a time", max_tokens=16, sampling=sampling, cache_prompt=False)
        other = await engine.ask(
            "Once upon a time",
            max_tokens=16,
            sampling=Sampling(temperature=1.0, seed=8),
            cache_prompt=False,
        )
    assert alone.ids == again.ids
    assert alone.ids != other.ids


@pytest.mark.parametrize("split", [1, 7, 15])
async def test_a_resumed_sequence_draws_what_the_first_runner_would_have_drawn(zoo: Zoo, split: int) -> None:
    sampling = Sampling(temperature=1.0, seed=11, repeat_penalty=1.2)
    async with running(zoo("dense"), slots=1, batch=1) as engine:
        whole = await engine.ask("Once upon a time", max_tokens=16, sampling=sampling, ignore_eos=True)
        rest = await engine.ask(
            "Once upon a time",
            max_tokens=16,
            sampling=sampling,
            ignore_eos=True,
            resumed=tuple(whole.ids[:split]),
            cache_prompt=False,
        )
    assert rest.ids == whole.ids[split:]
    assert rest.end.generated_tokens == 16


@pytest.mark.behaviour("B-01")
def test_overlap_changes_no_token(zoo: Zoo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight seeded requests that arrive at fixed steps: every call holds the same rows in both runs."""
    arrivals = {1: (1, 2), 4: (3,), 5: (4, 5), 9: (6,), 30: (7,)}

    def run(overlap: bool) -> tuple[list[list[int]], int]:
        layout = Layout(slots=4, context_tokens=512, batch_tokens=64, threads=1)
        with driven(BatchedEngine(ModelFiles(model=zoo("dense")), layout, BatchedOptions(overlap=overlap))) as driver:
            started: dict[int, int] = {}
            calls = 0

            def submit(number: int) -> None:
                sampling = Sampling(temperature=1.0, seed=number)
                started[number] = driver.submit(PROMPTS[number] * 4, max_tokens=12 + number, sampling=sampling)

            step = Loop._step

            def counted(loop: Loop, rows: tuple[BatchRow, ...]) -> None:
                nonlocal calls
                calls += 1
                for number in arrivals.get(calls, ()):
                    submit(number)
                step(loop, rows)

            with monkeypatch.context() as patch:
                patch.setattr(Loop, "_step", counted)
                # What was measured decides which prompts share a call.
                patch.setattr(StepTimes, "cost", lambda _: UNKNOWN_COST)
                submit(0)
                driver.listener.until(lambda: len(started) == 8)
                return [driver.read(started[number]).ids for number in range(8)], calls

    overlapped, calls = run(overlap=True)
    assert [len(answer) for answer in overlapped] == [12 + number for number in range(8)]
    assert run(overlap=False) == (overlapped, calls)


@pytest.mark.behaviour("B-01")
async def test_the_next_step_is_submitted_before_the_text_work_of_the_last(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next call is put together before the last one's tokens are told, and told right before it begins.

    On a CPU llama_decode returns only when everything is computed: whoever told afterwards would let the text wait for
    a whole step.
    """
    trace: list[str] = []
    async with running(zoo("dense"), slots=1, report_interval_s=0.0) as engine:
        loop = engine.engine._loop
        assert loop is not None
        fill = loop._fill

        def traced(*args: Any) -> list[int]:
            trace.append("submit")
            return fill(*args)

        monkeypatch.setattr(loop, "_fill", traced)
        engine.on_step = lambda report: trace.append("text") if report.generated_tokens else None
        await engine.ask("Hello", max_tokens=30, ignore_eos=True)
    # Text of step N comes only after step N + 1 was put together; the last step has no successor.
    for index in range(29):
        texts = [position for position, event in enumerate(trace) if event == "text"]
        submits = [position for position, event in enumerate(trace) if event == "submit"]
        assert submits[index + 1] < texts[index]


@pytest.mark.behaviour("B-01")
async def test_text_of_a_step_is_worked_on_while_a_device_computes_the_next(zoo: Zoo) -> None:
    """Each call takes, as on a slow device, until the text of the call before it has been worked on."""
    told, calls = threading.Semaphore(0), itertools.count(1)
    async with running(zoo("dense"), slots=1, report_interval_s=0.0) as engine:
        assert engine.engine._loop is not None
        context = engine.engine._loop._context
        decode = context.decode

        def slow(batch: Batch | RowBatch) -> int:
            answer = decode(batch)
            if next(calls) > 1:
                assert told.acquire(timeout=DEADLINE_S), "the text waits for the device"
            return answer

        context.decode = slow  # type: ignore[method-assign]
        engine.on_step = lambda report: told.release() if report.generated_tokens else None
        answer = await engine.ask("Hello", max_tokens=30, ignore_eos=True)
    assert len(answer.tokens) == 30


@pytest.mark.behaviour("B-01")
async def test_tokens_of_short_steps_are_reported_together_besides_the_first_and_the_last(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=2, report_interval_s=3600.0) as engine:
        # What the other one has comes with a sequence's slot, its first token and its end.
        answers = await asyncio.gather(
            engine.ask("Hello", max_tokens=30, ignore_eos=True), engine.ask("Bye", max_tokens=60, ignore_eos=True)
        )
        assert [len(answer.tokens) for answer in answers] == [30, 60]
        assert sum(report.generated_tokens > 0 for report in engine.reports) <= 6
        assert engine.decode_calls >= 60
        # Log-probabilities take memory, so they do not gather.
        engine.reports.clear()
        await engine.ask("Hello", max_tokens=30, ignore_eos=True, top_logprobs=1)
        assert sum(report.generated_tokens == 1 for report in engine.reports) == 30


@pytest.mark.behaviour("B-01")
async def test_tokens_do_not_wait_for_a_longer_step(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=1, report_interval_s=1e-9) as engine:
        await engine.ask("Hello", max_tokens=30, ignore_eos=True)
        assert sum(report.generated_tokens == 1 for report in engine.reports) == 30


@pytest.mark.behaviour("B-113")
async def test_a_limit_ends_with_length(zoo: Zoo) -> None:
    async with running(zoo("dense")) as engine:
        answer = await engine.ask("Hello", max_tokens=5, ignore_eos=True)
        assert answer.end.ending.reason is EndReason.LENGTH
        assert answer.end.generated_tokens == len(answer.tokens) == 5


async def test_a_limit_of_nothing_evaluates_the_prompt_and_ends(zoo: Zoo) -> None:
    async with running(zoo("dense")) as engine:
        prompt = engine.tokens(PROMPTS[0])
        answer = await engine.ask(prompt, max_tokens=0)
        assert answer.end.ending.reason is EndReason.LENGTH
        assert answer.tokens == []
        assert (await engine.ask(prompt, max_tokens=1)).cached_tokens == len(prompt) - 1


@pytest.mark.behaviour("B-110", "B-113")
async def test_an_end_token_ends_without_its_text(zoo: Zoo) -> None:
    async with running(zoo("dense")) as engine:
        end_token = min(engine.engine.vocabulary.end_tokens)
        sampling = Sampling(temperature=0.0, logit_bias={end_token: 1000.0})
        answer = await engine.ask("Hello", max_tokens=5, top_logprobs=1, sampling=sampling)
        assert answer.end.ending.reason is EndReason.END_TOKEN
        assert answer.tokens == []
        assert answer.end.generated_tokens == 1
        going_on = await engine.ask("Hello", max_tokens=5, sampling=sampling, ignore_eos=True)
        assert going_on.ids == [end_token] * 5


@pytest.mark.behaviour("B-117")
async def test_a_looping_sequence_ends_with_a_final_message_that_says_why(zoo: Zoo) -> None:
    async with running(zoo("dense")) as engine:
        token = engine.tokens(" the")[0]
        sampling = Sampling(temperature=0.0, logit_bias={token: 1000.0})
        answer = await engine.ask("Hello", sampling=sampling)
        assert answer.ids == [token] * (REPEATED_TOKENS_MAX + 1)
        assert answer.end.ending == REPETITION


@pytest.mark.behaviour("B-110", "B-113", "B-115")
async def test_a_stop_string_ends_and_its_tokens_leave_the_cache(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=1) as engine:
        free = await engine.ask("Hello", max_tokens=24, ignore_eos=True)
        pieces = [engine.engine.vocabulary.pieces[token_id] for token_id in free.ids]
        # The first piece that is plain text and has not come before: its text is the stop string.
        index = next(
            number
            for number in range(8, 24)
            if pieces[number].strip().isalpha() and pieces[number].strip() not in b"".join(pieces[:number])
        )
        stop = pieces[index].strip().decode()
        answer = await engine.ask("Hello", max_tokens=24, ignore_eos=True, stops=(stop,), top_logprobs=1)
        assert answer.end.ending.reason is EndReason.STOP_STRING
        assert answer.end.ending.stop_string == stop
        assert answer.ids == free.ids[:index]
        assert answer.end.generated_tokens == index + 1
        # What was trimmed from the text takes its log-probabilities along.
        assert all(token.logprobs is not None for token in answer.tokens)
        assert answer.text == free.text[: free.text.index(stop)]
        slot = engine.engine._loop._slots.slots[0]  # type: ignore[union-attr]
        assert slot.held == engine.tokens("Hello") + free.ids[:index]


@pytest.mark.behaviour("B-08")
async def test_a_prompt_of_five_batches_has_four_calls_without_sampling(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=1, context=1024, batch=64) as engine:
        answer = await engine.ask([9] * 320, max_tokens=1)
        assert engine.decode_calls == 5
        assert answer.progress  # the newest replaces an older one that nobody has read yet
        assert {event.done_tokens for event in answer.progress} <= {64, 128, 192, 256}
        assert sum(report.generated_tokens for report in engine.reports) == 1


@pytest.mark.behaviour("B-118")
async def test_durations_are_plausible(zoo: Zoo) -> None:
    async with running(zoo("dense")) as engine:
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        answer = await engine.ask(PROMPTS[0], max_tokens=20, ignore_eos=True)
        wall_ns = (loop.time() - started_s) * 1e9
        times = answer.end.times
        assert times is not None
        assert min(times.queue_ns, times.prompt_ns, times.generate_ns) >= 0
        assert times.prompt_ns > 0
        assert times.generate_ns > 0
        assert times.queue_ns + times.prompt_ns + times.generate_ns <= wall_ns
        assert times.prompt_tokens == len(engine.tokens(PROMPTS[0]))


async def test_bad_values_are_refused_and_name_their_field(zoo: Zoo) -> None:
    async with running(zoo("dense")) as engine:
        for fields, param in (
            ({"top_logprobs": 21}, "top_logprobs"),
            ({"context_tokens": 0}, "context_tokens"),
            ({"sampling": Sampling(top_p=float("nan"))}, "top_p"),
        ):
            with pytest.raises(InvalidRequest) as error:
                engine.open("Hello", **fields)
            assert error.value.param == param
        assert GREEDY.greedy
