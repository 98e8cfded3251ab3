"""Decode speed as a real runner reports it."""

import asyncio
from pathlib import Path

import pytest
from gguf import GGUFReader

from protos import cluster_pb2
from runner.core.sequence.decode_windows import STEPS_OF_A_WINDOW
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.processes import RunnerProcess, collect, greedy, started

DEADLINE_S = 120.0
# No CPU reads so much: a figure beyond it is of another unit.
SPEED_MAX = 1e13
LAYOUT = '{"slots": 2, "contextTokens": 512, "threads": 1}'


def sizes_of(path: Path) -> dict[str, int]:
    """Bytes of every tensor, by another reader than the runner's."""
    return {tensor.name: int(tensor.n_bytes) for tensor in GGUFReader(path).tensors}


async def window_of(runner: RunnerProcess) -> cluster_pb2.DecodeWindow:
    """The first one that it tells."""
    async with asyncio.timeout(DEADLINE_S):
        async for status in runner.client.watch_load():
            if status.HasField("decode_window"):
                return status.decode_window
    raise AssertionError("the watch ended")


@pytest.mark.parametrize("name", ["dense", "tied", "moe"])
async def test_steps_tell_what_they_read_and_how_fast(zoo: Zoo, tmp_path: Path, name: str) -> None:
    model = zoo(name)
    async with started(model, tmp_path, layout=LAYOUT) as runner:
        await runner.ready()
        assert not (await runner.ready()).HasField("decode_window"), "nothing was decoded yet"
        # The first token comes with the prompt, the last one is not evaluated: one window, and no second one.
        await collect(runner.client, greedy("Hello", max_tokens=STEPS_OF_A_WINDOW + 2))
        window = await window_of(runner)
        decode_s = await runner.metric("puna_runner_decode_seconds_total")
    sizes = sizes_of(model)
    experts = sum(size for tensor, size in sizes.items() if "_exps" in tensor)
    table = sizes["token_embd.weight"]
    output = table if "output.weight" not in sizes else 0
    read_bytes = sum(sizes.values()) - table + output - experts + experts * 2 // 8
    assert [(read.device_id, read.bytes) for read in window.reads] == [("cpu", read_bytes)]
    assert (window.number, window.steps) == (1, STEPS_OF_A_WINDOW)
    # A quarter was at least so fast as told. If all others were slower, all together made no more than that by much.
    mean = read_bytes * window.steps / decode_s
    assert mean * 0.75 <= window.bytes_s <= SPEED_MAX
    assert window.span_ms <= DEADLINE_S * 1000


async def test_prompts_tell_nothing(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("dense"), tmp_path, layout=LAYOUT) as runner:
        await runner.ready()
        for number in range(STEPS_OF_A_WINDOW + 2):
            await collect(runner.client, greedy(f"{number}", max_tokens=1))
        assert await runner.metric("puna_runner_decode_calls_total") >= STEPS_OF_A_WINDOW + 2
        assert not (await runner.ready()).HasField("decode_window")
