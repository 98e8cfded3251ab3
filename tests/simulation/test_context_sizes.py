"""Clients that differ in num_ctx for an hour: one replica that is large enough, and no thrash."""

import pytest

from scheduler.core.values.policy import Policy
from tests.unit.scheduler.builders import cpu, gpu, model, node
from tests.unit.scheduler.world import World

SIZES = (2048, 8192, 4096, None, 16384, 2048)
MINUTES = 60
BEGIN_S = World().now_s


def hour_of(sizes: tuple[int | None, ...], *, gpus: int, pause_s: float = 5.0) -> World:
    """Clients ask one after the other, each answer takes a second."""
    world = World(policy=Policy(), sizes_gib={"digest-m": 16.0})
    devices = (*(gpu(f"g{number}") for number in range(gpus)), cpu(free=4, total=4))
    world.nodes = {"a": node("a", devices=devices, models=(model(trained=32768),))}
    world.report()
    world.lead()
    for number in range(round(MINUTES * 60 / pause_s)):
        caller = f"c{number}"
        world.ensure(caller, context_tokens=sizes[number % len(sizes)])
        for _ in range(90):
            world.settle()
            if world.finals(caller):
                break
            world.pass_time(1)
        assert world.is_ready(caller), f"{caller}: {world.finals(caller)}"
        (largest,) = sorted(world.runners, key=lambda one: world.runners[one].view.layout.context_tokens)[-1:]
        world.work(largest, busy=1)
        world.pass_time(1)
        world.work(largest, busy=0)
        world.pass_time(pause_s - 1)
    return world


@pytest.mark.parametrize("gpus", [1, 2])
def test_alternating_sizes_cause_a_load_per_larger_size_and_then_none(gpus: int) -> None:
    world = hour_of(SIZES, gpus=gpus)
    contexts = [start.record.layout.context_tokens for start in world.all_starts]
    assert contexts == sorted(contexts), "never a smaller one"
    assert len(contexts) <= 3, contexts
    assert contexts[-1] == 16384
    world.pass_time(60)
    world.settle()
    assert len(world.runners) == 1, "the small ones went when the large one served"


def test_sizes_that_keep_growing_reload_at_most_once_a_minute_and_end_at_the_largest() -> None:
    sizes = tuple(range(2048, 12288, 512))
    world = hour_of(sizes, gpus=1, pause_s=30.0)
    minutes = (world.now_s - BEGIN_S) / 60
    assert 2 < len(world.all_starts) <= minutes + 1
    assert world.all_starts[-1].record.layout.context_tokens == max(sizes)
