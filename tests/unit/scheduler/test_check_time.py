"""Wake-ups of the core without an event: at each moment at which time alone changes something."""

from dataclasses import replace

import pytest

from scheduler.core.keeping.keeping import SCALE_UP_AFTER_S
from scheduler.core.loading.starting import load_deadline_s
from scheduler.core.lost_devices import DEVICE_LOST_S
from scheduler.core.reconcile import NODE_FORGOTTEN_S
from scheduler.core.state.events import QueuesReported
from scheduler.core.state_machine import RETRY_S
from scheduler.core.stopping.stopping import RECOVERY_S, STOP_RETRY_S
from scheduler.core.values.faults import Fault
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.world import World, models, world_with

UNAVAILABLE = Fault(reason="model_unavailable", message="no answer")


def served() -> World:
    world = world_with(node("a", devices=(gpu(), cpu(free=3, total=3)), models=models("m", "n")), m=16, n=16)
    world.ensure("c", "m")
    world.settle()
    return world


def begun() -> World:
    """A load that was sent."""
    world = world_with(node("a", models=models("m", "n")), m=16, n=16)
    world.ensure("c", "m")
    world.measure_all()
    world.writes_done()
    return world


def moments(world: World) -> list[float]:
    """Everything that it would wake for, in seconds from now, if nothing happened."""
    found: list[float] = []
    at_s = world.now_s
    while (next_s := world.core.wake_at_s(at_s)) is not None and len(found) < 50:
        assert next_s > at_s
        found.append(round(next_s - world.now_s, 3))
        at_s = next_s
    return found


def test_a_standby_wakes_for_no_command() -> None:
    world = served()
    world.pass_time(20)
    world.lose_leadership()
    assert moments(world) == []


def test_keep_alive_ends() -> None:
    assert 300.0 in moments(served())


def test_an_expiry_that_nobody_may_act_on_wakes_nobody() -> None:
    world = served()
    world.lose_inventory()
    assert 300.0 not in moments(world)


def test_a_record_of_an_unknown_node_is_forgotten() -> None:
    world = served()
    world.writes_done()
    world.store["old"] = replace(world.store["p1"], placement_id="old", node_id="gone")
    world.lead()
    assert NODE_FORGOTTEN_S in moments(world)


def test_a_drain_is_over() -> None:
    world = served()
    world.work("p1", busy=1)
    world.report()
    world.drain("a", budget_s=42)
    assert 42.0 in moments(world)


def test_a_lost_device_is_gone() -> None:
    world = served()
    first, *others = world.nodes["a"].devices
    world.nodes["a"] = replace(world.nodes["a"], devices=(replace(first, lost=True, usable=False), *others))
    world.report()
    assert DEVICE_LOST_S in moments(world)


def test_a_stop_is_tried_again() -> None:
    world = served()
    world.unload("u", "m")
    world.writes_fail(UNAVAILABLE)
    assert STOP_RETRY_S in moments(world)


def test_memory_that_is_not_back_is_waited_for_no_longer() -> None:
    world = served()
    world.unload("u", "m")
    world.writes_done()
    world.stops_done()
    assert RECOVERY_S in moments(world)


def test_requests_have_waited_long_enough_for_another_replica() -> None:
    world = served()
    world.send(QueuesReported(gateway_id="g", waits_s={"m:latest": 60.0}))
    assert SCALE_UP_AFTER_S in moments(world)


def test_a_load_stands_still_or_takes_too_long() -> None:
    world = begun()
    (job,) = world.core.state.jobs.values()
    assert moments(world) == [
        world.policy.load_stall_s,
        pytest.approx(load_deadline_s(job) - world.now_s),
    ]


def test_an_unanswered_start_is_sent_again() -> None:
    world = begun()
    world.start_fails(world.starts.pop().record, UNAVAILABLE)
    (job,) = world.core.state.jobs.values()
    assert job.attempt.resend_at_s is not None
    assert pytest.approx(job.attempt.resend_at_s - world.now_s) in moments(world)


def test_a_load_looks_again_after_its_pause() -> None:
    world = begun()
    world.start_fails(world.starts.pop().record, Fault(reason="device_memory_exhausted", message="words"))
    (job,) = world.core.state.jobs.values()
    assert job.not_before_s > world.now_s
    assert pytest.approx(job.not_before_s - world.now_s) in moments(world)


def test_a_load_that_waits_for_memory_of_busy_ones_looks_again_every_second() -> None:
    world = served()
    world.work("p1", busy=1)
    world.report()
    world.ensure("d", "n")
    world.measure_all()
    (job,) = world.core.state.jobs.values()
    assert job.busy_since_s is not None
    assert world.core.wake_at_s(world.now_s) == world.now_s + RETRY_S
