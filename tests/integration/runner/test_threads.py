"""The number of compute threads changes while a real engine answers, and the answers stay the same to the bit."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from common.spec.layout import FlashAttention
from runner.core.threads.kernels import SPLIT_CELLS_MIN
from runner.engine.contract.engine import StepReport
from runner.engine.llama.context import Context
from runner.engine.threads import spinning
from runner.engine.threads.spinning import Spinning
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.harness import Answer, Harness, running
from tests.integration.runner.pooled_harness import pooled

MOST = 3  # more than the cores of some machines: then it is slow, and as right
PROMPT_TOKENS = SPLIT_CELLS_MIN + 40
ANSWER_TOKENS = 24


@dataclass
class Calls:
    """Numbers of threads that were set, for calls of one token and of several."""

    made: list[tuple[int, int]] = field(default_factory=list)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Record the numbers of threads that every later context is set to."""
    seen, real = Calls(), Context.set_threads

    def watched(context: Context, single: int, several: int) -> None:
        seen.made.append((single, several))
        real(context, single, several)

    monkeypatch.setattr(Context, "set_threads", watched)
    return seen


@contextmanager
def changing(engine: Harness) -> Iterator[None]:
    """After every step another number of threads, in a row that also goes down."""
    counts = itertools.cycle([1, 3, 2])

    def on_step(_: StepReport) -> None:
        engine.engine.use_threads(next(counts))

    engine.on_step = on_step
    yield
    engine.on_step = None
    engine.engine.use_threads(MOST)


async def ask(engine: Harness) -> tuple[Answer, list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]]:
    prompt = [10 + index * 7 % 200 for index in range(PROMPT_TOKENS)]
    stream = engine.open(prompt, max_tokens=ANSWER_TOKENS, ignore_eos=True, cache_prompt=False, top_logprobs=0)
    return await engine.read(stream), engine.rows.pop(stream.id)


@pytest.mark.parametrize("attention", [FlashAttention.OFF, FlashAttention.ON, FlashAttention.AUTO])
@pytest.mark.parametrize("model", ["dense", "hybrid"])
async def test_an_answer_is_the_same_whatever_happens_to_the_threads(
    zoo: Zoo, model: str, attention: FlashAttention, calls: Calls
) -> None:
    # One slot: other cells round differently by themselves.
    sizes: dict[str, Any] = {"slots": 1, "context": 1024, "batch": 128}
    async with running(zoo(model), threads=MOST, flash_attention=attention, **sizes) as engine:
        expected, rows = await ask(engine)
        assert calls.made == []
        with changing(engine):
            answer, changed = await ask(engine)
        await engine.idle()
        assert answer.ids == expected.ids
        assert len(changed) == ANSWER_TOKENS
        for ours, theirs in zip(changed, rows, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert {several for _, several in calls.made} == {1, 2, 3}
        lone = {single for single, _ in calls.made}
        assert lone == ({MOST} if attention is FlashAttention.ON else lone), "fused attention would round differently"


async def test_calls_of_one_token_change_too_where_no_bit_depends_on_it(zoo: Zoo, calls: Calls) -> None:
    async with running(zoo("dense"), threads=MOST, context=1024, flash_attention=FlashAttention.OFF) as engine:
        for count in (1, 2, MOST, MOST + 5, 0):
            engine.engine.use_threads(count)
        await engine.ask("Hello", max_tokens=2)
    assert calls.made == [(1, 1), (2, 2), (3, 3), (3, 3), (1, 1)], "never none, and never more than it was made for"


@pytest.mark.parametrize("model", ["embed_mean", "embed_last"])
def test_vectors_are_the_same_whatever_happens_to_the_threads(zoo: Zoo, model: str, calls: Calls) -> None:
    with pooled(zoo(model), threads=MOST) as engine:
        inputs = [engine.tokens("Bread"), engine.tokens("A longer text about trains and about bread. " * 8)]
        expected = engine.compute(inputs)
        for count in (1, 2, 3):
            engine.engine.use_threads(count)
            for ours, theirs in zip(engine.compute(inputs), expected, strict=True):
                np.testing.assert_array_equal(ours, theirs)
    assert calls.made == [(1, 1), (2, 2), (3, 3)]


def test_with_fewer_threads_more_of_them_sleep_so_that_spinning_stays_short(monkeypatch: pytest.MonkeyPatch) -> None:
    teams: list[int] = []

    class Team:
        def __init__(self, _: object, threads: int) -> None:
            teams.append(threads)

        def end(self) -> None:
            teams.append(-1)

    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(spinning, "SleepingTeam", Team)
    monkeypatch.setattr(spinning, "_libgomp", object)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    of_eight = Spinning(threads=8)
    made = len(teams)

    of_eight.use(3)
    of_eight.use(5)
    of_eight.close()

    assert teams[:1] == [2]
    assert teams[made:] == [-1, 7, -1], "eight and one more than there are CPUs: 3 + 7 > 8 + 1"
