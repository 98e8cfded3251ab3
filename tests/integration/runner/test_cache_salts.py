"""Cells of a prompt in the real engine serve requests of the same salt only, in every place."""

import asyncio

import pytest

from common.spec.layout import FlashAttention
from runner.core.sequence.slots import SlotPolicy
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.harness import CACHES, Harness, running
from tests.integration.runner.test_prefix_cache import equals_cold, held_cells, ids


async def cached(engine: Harness, prompt: list[int], salt: str) -> int:
    """Return the tokens of a prompt that were held for a salt."""
    return (await engine.ask(prompt, max_tokens=2, ignore_eos=True, cache_salt=salt)).cached_tokens


@CACHES
@pytest.mark.parametrize("policy", list(SlotPolicy))
async def test_an_equal_prompt_is_computed_again_for_another_salt(
    zoo: Zoo, policy: SlotPolicy, attention: FlashAttention, shared: bool
) -> None:
    async with running(zoo("dense"), slots=2, flash_attention=attention, policy=policy) as engine:
        assert engine.shares_cells is shared
        prompt = ids(1, 60)
        assert await cached(engine, prompt, "a") == 0
        assert await cached(engine, prompt, "a") == 59
        assert await cached(engine, prompt, "b") == 0
        assert await cached(engine, prompt, "b") == 59
        assert await cached(engine, prompt, "") == 0
        await equals_cold(engine, prompt, cached=59)


async def test_nothing_is_forked_from_a_busy_slot_of_another_salt(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=3) as engine:
        head = ids(2, 60)
        busy = engine.open([*head, 5], max_tokens=None, ignore_eos=True, cache_salt="a")
        await engine.until(lambda: engine.decode_calls >= 2)
        assert await cached(engine, [*head, 6], "b") == 0
        assert await cached(engine, [*head, 6], "a") == 60
        engine.streams.close(busy)


async def test_prompts_that_come_together_are_computed_once_for_each_salt(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=8, context=1024) as engine:
        head = ids(3, 400)
        asked = [cached(engine, [*head, number, 5], "ab"[number % 2]) for number in range(8)]
        assert sorted(await asyncio.gather(*asked)) == [0, 0, *[400] * 6]


@pytest.mark.parametrize("model", ["recurrent", "swa"])
async def test_a_checkpoint_brings_nothing_back_for_another_salt(zoo: Zoo, model: str) -> None:
    async with running(zoo(model), slots=2, context=1024, batch=64) as engine:
        head = ids(4, 300)
        long = [*head, *ids(5, 200)]
        await engine.ask(long, max_tokens=4, ignore_eos=True, boundaries=(300,), cache_salt="a")
        assert await cached(engine, [*head, *ids(6, 20)], "b") == 0
        await engine.ask(long, max_tokens=4, ignore_eos=True, boundaries=(300,), cache_salt="a")
        assert await cached(engine, [*head, *ids(7, 20)], "a") == 300


async def test_parked_prompts_come_back_for_their_salt_only(zoo: Zoo) -> None:
    async with running(zoo("dense"), slots=4, context=1024) as engine:
        prompt = ids(8, 600)
        for salt in ("a", "b"):  # the second does not replace the first as its beginning
            assert await cached(engine, prompt, salt) == 0
        for number in range(2):
            await cached(engine, ids(9 + number, 600), "a")
        await engine.until(lambda: held_cells(engine) <= 1024)
        assert await cached(engine, [*prompt, 5], "c") == 0
        assert await cached(engine, [*prompt, 5], "a") == 600
        assert await cached(engine, [*prompt, 5], "b") == 600
