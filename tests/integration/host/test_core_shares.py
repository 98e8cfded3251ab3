"""Runners of one host that have work share its cores, and one that has it alone uses all of them."""

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from protos import cluster_pb2
from runner.client import RunnerClient
from runner.core.layout.layout import automatic_threads
from runner.cores import computing_cores
from tests.integration.host.node import Inventory, Node, runners_of, running_node
from tests.integration.runner.processes import greedy
from tools.model_zoo import build
from tools.model_zoo.recipe import Family, Recipe, WeightType

LAYOUT = cluster_pb2.Layout(context_tokens=512, slots=1, batch_tokens=64)
WIDE = Recipe(
    name="wide",
    family=Family.LLAMA,
    about="Just heavy enough for two threads.",
    weights=WeightType.Q8_0,
    embedding=1024,
    heads=8,
    kv_heads=2,
    feed_forward=4096,
    layers=3,
)


@pytest.fixture
def two_cores() -> Iterator[None]:
    """Processes that are started from here on may compute on two cores."""
    before = os.sched_getaffinity(0)
    pairs = (set(pair) for pair in itertools.combinations(sorted(before), 2))
    pair = next((pair for pair in pairs if computing_cores(cpus=pair) == 2), None)
    if pair is None:
        pytest.skip("one core cannot be shared")
    os.sched_setaffinity(0, pair)
    yield
    os.sched_setaffinity(0, before)


@asynccontextmanager
async def working(record: cluster_pb2.RunnerRecord) -> AsyncIterator[None]:
    """The runner has an answer to give, and another one after it, until the end of the block."""

    async def ask() -> None:
        async with RunnerClient(record.address) as client:
            while True:
                async for _ in client.generate(greedy("Hello", max_tokens=1_000_000)):
                    pass

    asking = asyncio.create_task(ask())
    try:
        yield
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


def threads_of(inventory: Inventory) -> dict[str, int]:
    return {record.model_name: record.status.threads for record in runners_of(inventory)}


async def start(node: Node, name: str, *, threads: int = 0) -> cluster_pb2.RunnerRecord:
    """A runner of the one model under a name of its own."""
    layout = cluster_pb2.Layout()
    layout.CopyFrom(LAYOUT)
    layout.threads = threads
    return await node.run(await node.start_request("wide:latest", model_name=name, layout=layout))


async def until(node: Node, **threads: int) -> None:
    """Wait until runners compute with so many threads."""
    await node.inventory(lambda seen: threads_of(seen) | threads == threads_of(seen))


@pytest.mark.usefixtures("two_cores")
async def test_runners_that_have_work_share_the_cores_and_a_number_that_was_asked_for_stays(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    size_bytes = build(WIDE, models).stat().st_size
    assert automatic_threads(physical_cores=2, weights_bytes=size_bytes) == 2
    async with running_node(tmp_path, models) as node:
        first, second = await start(node, "first"), await start(node, "second")
        await until(node, first=2, second=2)
        async with working(first):
            await until(node, first=2, second=1)
            async with working(second):
                await until(node, first=1, second=1)
                await node.host.end(signal.SIGKILL)
            # The next host finds one that computes with too few, and that the other one has no work any more.
            await node.restart_host()
            await until(node, first=2, second=1)
            asked = await start(node, "asked", threads=2)
            async with working(asked):
                await until(node, first=1, second=1, asked=2)
        await until(node, first=2, second=2, asked=2)


@pytest.mark.usefixtures("two_cores")
async def test_a_runner_that_is_gone_holds_no_core(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    build(WIDE, models)
    async with running_node(tmp_path, models) as node:
        first, second = await start(node, "first"), await start(node, "second")
        async with working(first), working(second):
            await until(node, first=1, second=1)
            os.kill(second.pid, signal.SIGKILL)
            await until(node, first=2)
