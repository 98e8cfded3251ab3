"""Clients that come, go, shift and stop at random: nothing leaks."""

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest

from tests.integration.runner.conftest import Zoo
from tests.integration.runner.harness import running

STORM_REQUESTS = 400


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.behaviour("B-20", "B-46")
async def test_a_storm_of_sixteen_clients_leaves_all_slots_free_and_memory_flat(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=8, context=96) as engine:
        rng = np.random.default_rng(9)
        text = (await engine.ask("Hello", max_tokens=30, ignore_eos=True)).text

        async def client(requests: int) -> None:
            for _ in range(requests):
                prompt = rng.integers(300, 1000, size=int(rng.integers(1, 120))).tolist()
                start = int(rng.integers(0, len(text) - 2))
                stops = (text[start : start + 2],) if rng.random() < 0.5 else ()
                stream = engine.open(prompt, max_tokens=int(rng.integers(0, 150)), ignore_eos=True, stops=stops)
                if rng.random() < 0.3:
                    wanted = int(rng.integers(0, 40))
                    await engine.until(lambda: stream.text.counted >= wanted or stream.freed)  # noqa: B023
                    engine.streams.close(stream)
                    await engine.until(lambda: stream.freed)  # noqa: B023
                else:
                    await engine.read(stream)
                engine.reports.clear()

        await asyncio.gather(*(client(STORM_REQUESTS // 32) for _ in range(16)))
        await engine.idle()
        before = resident_bytes()
        await asyncio.gather(*(client(STORM_REQUESTS // 32) for _ in range(16)))
        await engine.idle()
        assert engine.streams.inside == 0
        assert resident_bytes() - before < 16 * 1024 * 1024


@pytest.mark.behaviour("B-60", "B-63")
async def test_nothing_is_allocated_after_the_load(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=2, context=2048, batch=2048) as engine:
        await engine.ask("Hello", max_tokens=4)
        before = resident_bytes()
        full = np.random.default_rng(2).integers(300, 1000, size=2040).tolist()
        answers = await asyncio.gather(
            *(engine.ask([number, *full], max_tokens=8, ignore_eos=True) for number in (1, 2))
        )
        assert all(answer.end.generated_tokens == 8 for answer in answers)
        assert engine.model is not None
        assert engine.model.memory is not None
        # Cells and graph were reserved and reported, but the system hands pages out as they are written.
        reported = engine.model.memory.host
        assert resident_bytes() - before < reported.cache_bytes + reported.graph_bytes + 4 * 1024 * 1024
