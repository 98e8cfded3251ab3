"""Python looks for cycles when the owner of the values is idle."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from common.telemetry.collector import LATEST_S, THRESHOLDS, WISHED_S, Collector, collect_garbage
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


def test_it_is_time_when_idle_and_in_the_end_whoever_is_busy() -> None:
    collector = Collector(0.0)
    assert not collector.due(WISHED_S - 1, idle=True)
    assert collector.due(WISHED_S, idle=True)
    assert not collector.due(WISHED_S, idle=False)
    assert collector.due(LATEST_S, idle=False)
    collector.collect(LATEST_S)
    assert not collector.due(LATEST_S + 1, idle=True)


def test_cycles_that_have_grown_old_go_with_the_next_look() -> None:
    collector = Collector(0.0)
    cycle = Cycle()
    there = weakref.ref(cycle)
    gc.collect(1)  # out of the young ones
    del cycle
    assert there() is not None
    collector.collect(1.0)
    assert there() is None


async def test_old_cycles_of_a_service_go_until_it_stops() -> None:
    stop = asyncio.Event()
    collecting = asyncio.create_task(collect_garbage(stop, 0.01))
    await until(lambda: gc.get_threshold() == THRESHOLDS, what="it has begun")
    for _ in range(2):
        cycle = Cycle()
        there = weakref.ref(cycle)
        gc.collect(1)  # out of the young ones
        del cycle
        await until(lambda there=there: there() is None, what="it is collected")  # type: ignore[misc]
    stop.set()
    await collecting
