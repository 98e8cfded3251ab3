"""Keeping, evicting and stopping replicas through the whole core."""

import pytest

from scheduler.core.state.effects import AnswerReplicas
from scheduler.core.state.events import StopEnded
from scheduler.core.state.promises import promises
from scheduler.core.values.desired import Phase
from scheduler.core.values.faults import Fault
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.world import World, models, world_with

ONE_GPU = (gpu(), cpu(free=4, total=4))


def loaded(
    name: str = "m",
    *,
    keep_alive_ms: int | None = None,
    world: World | None = None,
    context_tokens: int | None = None,
) -> World:
    """A world in which a model runs and has answered one request."""
    world = world or world_with(node())
    world.ensure(f"first-{name}", name, keep_alive_ms=keep_alive_ms, context_tokens=context_tokens)
    world.settle()
    use(world, name)
    return world


def use(world: World, name: str = "m", *, keep_alive_ms: int | None = None) -> None:
    (placement_id,) = world.route(f"{name}:latest")
    world.work(placement_id, busy=1, keep_alive_ms=keep_alive_ms)
    world.report()
    world.work(placement_id, busy=0)
    world.report()


def test_an_idle_replica_goes_when_its_keep_alive_ends_and_not_before() -> None:
    world = loaded()
    world.pass_time(298)
    assert world.route() == ["p1"]
    world.pass_time(3)
    assert world.route() == []
    world.settle()
    assert world.runners == {}
    assert world.store == {}
    assert [note.fields["reason"] for note in world.noted("model.evicted")] == ["keep_alive"]


def test_the_time_starts_when_the_last_sequence_ends() -> None:
    world = loaded()
    world.work("p1", busy=2)
    world.pass_time(1000)
    assert world.route() == ["p1"]
    world.work("p1", busy=0)
    world.pass_time(299)
    assert world.route() == ["p1"]
    world.pass_time(2)
    assert world.route() == []


@pytest.mark.parametrize(("keep_alive_ms", "gone_after_s"), [(0, 1), (5_000, 7), (600_000, 602)])
def test_the_newest_keep_alive_at_the_runner_counts(keep_alive_ms: int, gone_after_s: float) -> None:
    world = loaded(keep_alive_ms=60_000)
    use(world, keep_alive_ms=keep_alive_ms)
    world.pass_time(gone_after_s - 3)
    assert bool(world.route()) is (keep_alive_ms > 0)
    world.pass_time(3)
    assert world.route() == []


def test_a_negative_keep_alive_keeps_it_for_ever() -> None:
    world = loaded(keep_alive_ms=-1)
    world.pass_time(2_000)
    assert world.route() == ["p1"]


def test_a_keep_alive_at_the_scheduler_for_a_warm_model_is_the_newest_one() -> None:
    world = loaded()
    use(world, keep_alive_ms=-1)
    world.ensure("c", keep_alive_ms=20_000)
    world.writes_done()
    assert world.store["p1"].keep_alive_ms == 20_000
    world.pass_time(21)
    assert world.route() == []


def test_a_caller_who_was_just_sent_there_finds_the_replica_also_with_keep_alive_zero() -> None:
    world = world_with(node())
    world.ensure("c", keep_alive_ms=0)
    world.settle()
    world.pass_time(5)
    assert world.route() == ["p1"]
    world.work("p1", busy=1, keep_alive_ms=0)
    world.pass_time(50)
    assert world.route() == ["p1"]
    world.work("p1", busy=0)
    world.pass_time(1)
    assert world.route() == []


def test_a_caller_who_left_the_queue_when_it_saw_the_route_finds_the_replica_too() -> None:
    world = world_with(node())
    world.ensure("c", keep_alive_ms=0)
    world.measure_all()
    world.writes_done()
    world.hosts_take_starts()
    world.load("p1", 1.0, telling=False)
    world.leave("c")
    world.report()
    world.pass_time(5)
    assert world.route() == ["p1"]
    world.pass_time(6)
    assert world.route() == [], "nobody came"


def test_a_frozen_view_expires_nothing() -> None:
    world = loaded()
    world.lose_inventory()
    world.pass_time(4000, reporting=False)
    assert world.route() == ["p1"]
    assert world.all_stops == []


def test_without_leadership_nothing_expires() -> None:
    world = loaded()
    world.lose_leadership()
    world.pass_time(4000)
    assert world.route() == ["p1"]
    assert world.all_stops == []


def test_unload_withdraws_the_route_at_once_and_lets_a_busy_replica_finish() -> None:
    world = loaded()
    world.work("p1", busy=1)
    world.report()
    world.unload("u")
    assert world.finals("u") == [AnswerReplicas(caller_id="u", replicas=1)]
    assert world.route() == []
    world.pass_time(100)
    assert world.all_stops == []
    world.work("p1", busy=0)
    world.pass_time(1)
    world.writes_done()
    assert [(one.placement_id, one.drain_ms) for one in world.stops] == [("p1", 30_000)]


def test_the_intent_to_stop_is_written_before_the_command() -> None:
    world = loaded()
    world.unload("u")
    assert world.all_stops == []
    world.writes_done()
    assert world.store["p1"].phase is Phase.STOPPING
    assert len(world.stops) == 1


def test_a_stop_that_cannot_be_written_is_tried_again() -> None:
    world = loaded()
    world.unload("u")
    world.writes_fail(Fault(reason="model_unavailable", message="state store unreachable"))
    assert world.all_stops == []
    world.pass_time(2)
    world.settle()
    assert world.runners == {}


def test_a_stop_that_the_host_does_not_answer_is_tried_again() -> None:
    world = loaded()
    world.unload("u")
    world.writes_done()
    stop = world.stops.pop()
    world.send(
        StopEnded(
            placement_id=stop.placement_id,
            generation=stop.generation,
            fault=Fault(reason="model_unavailable", message="service unreachable"),
        )
    )
    world.pass_time(2)
    world.settle()
    assert world.runners == {}


@pytest.mark.behaviour("B-137")
def test_what_cannot_be_ended_stays_promised_until_it_has_gone() -> None:
    world = loaded()
    held = {one.placement_id: one.device_bytes for one in promises(world.core.state)}
    world.unload("u")
    for _ in range(5):  # its host says so again and again, for as long as it takes
        world.writes_done()
        for stop in [*world.stops]:
            world.stops.remove(stop)
            why = Fault(reason="model_unavailable", message="process 7 has not ended 10 s after SIGKILL")
            world.send(StopEnded(placement_id=stop.placement_id, generation=stop.generation, fault=why))
        world.pass_time(20)
        world.report()
        assert {one.placement_id: one.device_bytes for one in promises(world.core.state)} == held
        assert world.route() == []
    world.settle()
    assert world.runners == {}
    assert list(promises(world.core.state)) == []


def test_unloading_what_is_not_loaded_orders_nothing() -> None:
    world = world_with(node())
    world.unload("u1")
    world.unload("u2", "nope")
    assert world.finals("u1") == [AnswerReplicas(caller_id="u1", replicas=0)]
    assert world.fault("u2").reason == "model_not_found"


def test_a_load_that_nobody_waits_for_is_stopped_by_unload() -> None:
    world = world_with(node())
    world.ensure("c")
    world.measure_all()
    world.writes_done()
    world.hosts_take_starts()
    world.load("p1", 0.5)
    world.leave("c")
    world.unload("u")
    world.settle()
    assert world.runners == {}
    assert world.finals("u") == [AnswerReplicas(caller_id="u", replicas=1)]


def test_an_idle_replica_makes_room_for_another_model() -> None:
    world = loaded(world=world_with(node(devices=ONE_GPU, models=models("m", "n")), m=15, n=15))
    world.pass_time(20)
    world.ensure("c", "n")
    world.settle()
    world.pass_time(6)
    world.settle()
    assert world.is_ready("c")
    assert list(world.runners) == ["p2"]
    assert [note.fields["reason"] for note in world.noted("model.evicted")] == ["memory"]


@pytest.mark.behaviour("B-137")
def test_a_load_waits_until_the_memory_of_an_evicted_one_has_come_back() -> None:
    world = loaded(world=world_with(node(devices=ONE_GPU, models=models("m", "n")), m=15, n=15))
    world.pass_time(20)
    world.ensure("c", "n")
    world.measure_all()
    world.writes_done()
    held = world.runners["p1"]
    world.stops_done()
    # The process is gone; its bytes are not, until the driver gives them back.
    world.runners["ghost"] = held
    held.view = type(held.view)(
        **{name: getattr(held.view, name) for name in held.view.__slots__} | {"placement_id": "ghost", "state": "error"}
    )
    world.report()
    assert len(world.all_starts) == 1
    del world.runners["ghost"]
    world.report()
    world.writes_done()
    assert len(world.all_starts) == 2


def test_a_busy_replica_is_never_evicted_and_the_load_waits_for_it() -> None:
    world = loaded(world=world_with(node(devices=ONE_GPU, models=models("m", "n")), m=15, n=15))
    world.work("p1", busy=1)
    world.pass_time(20)
    world.ensure("c", "n")
    world.measure_all()
    world.writes_done()
    world.pass_time(5)
    assert world.all_stops == []
    assert world.finals("c") == []
    world.work("p1", busy=0)
    world.pass_time(7)
    world.settle()
    assert world.is_ready("c")


def test_a_load_that_waits_too_long_for_a_busy_replica_gets_its_place_when_that_is_done() -> None:
    world = loaded(world=world_with(node(devices=ONE_GPU, models=models("m", "n")), m=15, n=15))
    world.work("p1", busy=1)
    world.pass_time(20)
    world.ensure("c", "n")
    world.measure_all()
    world.pass_time(31)
    assert world.route("m:latest") == [], "it takes nothing new"
    assert world.all_stops == [], "but what runs on it goes on"
    world.work("p1", busy=0)
    world.pass_time(2)
    world.settle()
    world.pass_time(6)
    world.settle()
    assert world.is_ready("c")


def test_a_replica_is_not_evicted_in_its_first_moments() -> None:
    world = loaded(world=world_with(node(devices=ONE_GPU, models=models("m", "n")), m=15, n=15))
    world.ensure("c", "n")
    world.measure_all()
    world.pass_time(5)
    assert world.route("m:latest") == ["p1"]
    world.pass_time(12)
    world.settle()
    assert world.is_ready("c")


def test_a_larger_context_than_any_replica_has_is_another_load_and_the_smaller_replica_goes_when_idle() -> None:
    world = loaded(context_tokens=4096)
    world.ensure("c", context_tokens=8192)
    world.settle()
    assert world.is_ready("c")
    assert [one.record.layout.context_tokens for one in world.all_starts] == [4096, 8192]
    assert world.route() == ["p2"]
    world.pass_time(6)
    assert [note.fields["reason"] for note in world.noted("model.evicted")] == ["superseded"]


@pytest.mark.parametrize("context_tokens", [None, 1, 512, 4096])
def test_a_smaller_or_unsaid_context_uses_the_replica_that_is_there(context_tokens: int | None) -> None:
    world = loaded()
    world.ensure("c", context_tokens=context_tokens)
    assert world.is_ready("c")
    assert len(world.all_starts) == 1


def test_a_context_beyond_what_was_trained_is_the_trained_one() -> None:
    world = loaded(context_tokens=4096)
    world.ensure("c", context_tokens=1_000_000)
    world.settle()
    assert world.runners["p2"].view.layout.context_tokens == 8192


def test_a_larger_context_is_never_a_reload_of_a_busy_replica() -> None:
    world = loaded(world=world_with(node(devices=ONE_GPU), m=15), context_tokens=4096)
    world.work("p1", busy=1)
    world.pass_time(20)
    world.ensure("c", context_tokens=8192)
    world.measure_all()
    world.pass_time(5)
    assert world.route() == ["p1"]
    assert world.all_stops == []
    world.work("p1", busy=0)
    world.pass_time(2)
    world.settle()
    world.pass_time(6)
    world.settle()
    assert world.is_ready("c")


def test_clients_with_growing_contexts_replace_a_replica_at_most_once_a_minute() -> None:
    world = loaded(world=world_with(node(devices=ONE_GPU), m=15), context_tokens=4096)
    world.pass_time(20)
    world.ensure("c1", context_tokens=6000)
    for _ in range(4):
        world.settle()
        world.pass_time(6)
    assert world.is_ready("c1")
    use(world)
    world.ensure("c2", context_tokens=8000)
    world.pass_time(20)
    world.settle()
    assert len(world.all_starts) == 2
    world.pass_time(60)
    world.settle()
    world.pass_time(6)
    world.settle()
    assert world.is_ready("c2")


def test_a_larger_context_that_fits_beside_the_replica_waits_for_no_minute() -> None:
    world = loaded(context_tokens=1024)
    for caller, context_tokens in (("c1", 2048), ("c2", 4096)):
        world.pass_time(6)
        world.ensure(caller, context_tokens=context_tokens)
        world.settle()
        assert world.is_ready(caller)
    assert [one.record.layout.context_tokens for one in world.all_starts] == [1024, 2048, 4096]


def test_requests_with_different_contexts_that_wait_for_one_load_share_it_with_the_larger() -> None:
    world = world_with(node())
    world.ensure("c1")
    world.ensure("c2", context_tokens=6000)
    world.settle()
    assert world.is_ready("c1")
    assert world.is_ready("c2")
    assert [one.record.layout.context_tokens for one in world.all_starts] == [6000]
