"""A gateway collects garbage that has grown old; by Python's own rule it would wait for hours."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from gateway.app import GARBAGE_THRESHOLDS, collect_garbage
from tests.waiting import until


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


class Cycle:
    def __init__(self) -> None:
        self.me = self


async def test_old_cycles_go_until_the_gateway_stops() -> None:
    stop = asyncio.Event()
    collecting = asyncio.create_task(collect_garbage(stop, 0.01))
    await until(lambda: gc.get_threshold() == GARBAGE_THRESHOLDS, what="it has begun")
    for _ in range(2):
        cycle = Cycle()
        there = weakref.ref(cycle)
        gc.collect(1)  # out of the young ones
        del cycle
        await until(lambda there=there: there() is None, what="it is collected")  # type: ignore[misc]
    stop.set()
    await collecting
