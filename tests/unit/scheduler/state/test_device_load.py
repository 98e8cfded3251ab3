"""Recent load of a device."""

import pytest

from scheduler.core.state.device_load import decoding
from tests.unit.scheduler.builders import node
from tests.unit.scheduler.world import World, world_with


def busy(world: World) -> float:
    return decoding(world.core.state).get(("a", "gpu-0"), 0.0)


def test_a_replica_that_decodes_counts_more_and_more_and_fades_again() -> None:
    world = world_with(node())
    world.ensure("c", keep_alive_ms=-1)
    world.settle()
    assert busy(world) == 0.0
    (placement_id,) = world.runners
    world.work(placement_id, busy=1)
    world.pass_time(60)
    after_a_minute = busy(world)
    assert after_a_minute == pytest.approx(0.63, abs=0.03)
    world.pass_time(240)
    assert busy(world) > 0.95
    world.work(placement_id, busy=0)
    world.pass_time(60)
    assert busy(world) == pytest.approx(0.37, abs=0.03)
    world.pass_time(300)
    assert busy(world) == 0.0
