"""Python looks for cycles when the owner of the values is idle."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from common.telemetry.collector import LATEST_S, WISHED_S, Collector


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
