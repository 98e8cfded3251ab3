"""Clients that come, go, shift and stop at random: nothing leaks."""

import asyncio
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.spec.layout import FlashAttention
from runner.core.layout.cache_sizes import SCORES_BYTES_MAX
from runner.engine.llama.context import DecodeResult
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.harness import CACHES, running, watch_decoding

# `make test` sets 60 s; without it a short storm has to do.
STORM_S = float(os.environ.get("TEST_STORM_S", "6"))
CLIENTS = 16
MIB = 1024 * 1024
MEMORY_GROWTH_MAX = 16 * MIB


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def asked_for_bytes() -> int:
    """Writable memory of the process, written or not."""
    found = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.timeout(300 + 2 * STORM_S)
@pytest.mark.behaviour("B-12", "B-20", "B-46")
async def test_a_storm_of_sixteen_clients_leaves_all_slots_free_and_memory_flat(zoo: Zoo) -> None:
    """Half of the time to reach the high-water mark, half of it to stay there. Prompts take several batches."""
    async with running(zoo("dense"), slots=8, context=96, batch=32) as engine:
        decoded = watch_decoding(engine)
        rng = np.random.default_rng(9)
        text = (await engine.ask("Hello", max_tokens=30, ignore_eos=True)).text
        served = Counter[str]()

        async def one_request() -> None:
            prompt = rng.integers(300, 1000, size=int(rng.integers(1, 120))).tolist()
            start = int(rng.integers(0, len(text) - 2))
            stops = (text[start : start + 2],) if rng.random() < 0.5 else ()
            stream = engine.open(prompt, max_tokens=int(rng.integers(0, 150)), ignore_eos=True, stops=stops)
            if rng.random() < 0.3:
                wanted = int(rng.integers(0, 40))  # 0: while the prompt waits or is evaluated
                await engine.until(lambda: stream.text.counted >= wanted or stream.freed)
                engine.streams.close(stream)
                await engine.until(lambda: stream.freed)
                served["cancelled" if stream.ending is None else "ended before"] += 1
            else:
                answer = await engine.read(stream)
                served[answer.end.ending.reason.value] += 1
            assert set(decoded) <= {DecodeResult.DONE}, "a call found no free cell"
            decoded.clear()
            engine.reports.clear()

        async def client(until_s: float) -> None:
            while time.monotonic() < until_s:
                await one_request()

        async def storm(seconds: float) -> None:
            until_s = time.monotonic() + seconds
            await asyncio.gather(*(client(until_s) for _ in range(CLIENTS)))
            await engine.idle()

        await storm(STORM_S / 2)
        before = resident_bytes()
        await storm(STORM_S / 2)
        assert engine.streams.inside == 0
        assert min(served["cancelled"], served["stop_string"], served["length"]) > 0
        assert resident_bytes() - before < MEMORY_GROWTH_MAX


@pytest.mark.behaviour("B-60", "B-63")
@CACHES
async def test_nothing_is_allocated_after_the_load(zoo: Zoo, attention: FlashAttention, shared: bool) -> None:
    """The system hands pages out as they are written, so what is compared is the memory that the process asked for.

    In caches of their own one buffer grows with what they hold: the CPU's scores in half precision.
    """
    options: dict[str, Any] = {"flash_attention": attention, "copies_bytes_max": 0}
    async with running(zoo("dense"), slots=2, context=2048, batch=2048, **options) as engine:
        assert engine.shares_cells is shared
        await engine.ask("Hello", max_tokens=4)
        before = asked_for_bytes()
        full = np.random.default_rng(2).integers(300, 1000, size=2040).tolist()
        answers = await asyncio.gather(
            *(engine.ask([number, *full], max_tokens=8, ignore_eos=True) for number in (1, 2))
        )
        assert all(answer.end.generated_tokens == 8 for answer in answers)
        assert asked_for_bytes() - before < 4 * MIB + (0 if shared else SCORES_BYTES_MAX // 2)
