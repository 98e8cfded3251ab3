"""Measurements hold a context on their devices and themselves in RAM: booked while they run, not begun without room."""

from scheduler.core.state.effects import AnswerExplained
from scheduler.core.state.events import ExplainAsked
from scheduler.core.state.promises import promises
from scheduler.core.values.memory import GIB, MIB, MemoryOrigin
from scheduler.core.values.policy import Policy
from tests.unit.scheduler.builders import cpu, gpu, node
from tests.unit.scheduler.world import World, models, world_with

RESERVE = Policy().device_reserve_bytes


def booked(world: World) -> dict[str, int]:
    found: dict[str, int] = {}
    for promise in promises(world.core.state):
        if promise.is_measurement:
            found.update(promise.device_bytes)
    return found


def on_devices(world: World) -> dict[str, int]:
    return {device_id: count for device_id, count in booked(world).items() if device_id != "cpu"}


def test_a_measurement_is_booked_on_its_devices_while_it_runs() -> None:
    world = world_with(node(devices=(gpu("gpu-0", free=12, total=12), gpu("gpu-1", free=12, total=12), cpu())), m=16)
    world.ensure("c")
    (measure,) = world.measures
    assert on_devices(world) == {part.device_id: RESERVE for part in measure.layout.devices}
    assert on_devices(world), "on a GPU"
    world.measure_all()
    assert booked(world) == {}


def test_a_measurement_that_fails_or_outlives_leadership_is_booked_no_more() -> None:
    world = world_with(node())
    world.send(ExplainAsked(caller_id="why", model_name="m"))
    assert on_devices(world) == {"gpu-0": RESERVE}
    world.lose_leadership()
    assert booked(world) == {}


def test_what_fits_beside_a_measurement_does_not_wait_for_it() -> None:
    world = world_with(node(models=models("m", "n")), m=8, n=8)
    world.ensure("first", "n")
    world.settle()
    world.unload("gone", "n")
    world.settle()
    world.pass_time(6)
    world.send(ExplainAsked(caller_id="why", model_name="m", wait_s=5))
    assert booked(world)
    world.ensure("second", "n")
    world.writes_done()
    assert [one.record.model_name for one in world.starts] == ["n:latest"]


def test_what_lacks_only_the_room_of_a_measurement_waits_for_it_and_evicts_nobody() -> None:
    """A GPU of 24 GiB: one replica of 8 stays, and one of 15 has room beside it, but not beside a measurement."""
    world = world_with(node(devices=(gpu(), cpu(free=3, total=3)), models=models("m", "n", "o")), m=8, n=14.6, o=1)
    world.ensure("warm-up", "n")
    world.settle()
    world.unload("gone", "n")
    world.settle()
    world.pass_time(6)
    world.ensure("stays", "m")
    world.settle()
    world.pass_time(60)
    stops = len(world.all_stops)
    world.send(ExplainAsked(caller_id="why", model_name="o", wait_s=5))
    assert on_devices(world) == {"gpu-0": RESERVE}
    world.ensure("waits", "n")
    world.writes_done()
    assert world.starts == []
    assert world.explain("n").waits_for == "a measurement"
    world.measure_all()
    world.writes_done()
    assert [one.record.model_name for one in world.starts] == ["n:latest"]
    world.settle()
    assert world.is_ready("waits")
    assert len(world.all_stops) == stops
    assert sorted(world.route("m:latest")) != []


def test_a_full_device_is_not_measured_on_until_its_idle_replica_has_gone_and_the_place_is_kept_meanwhile() -> None:
    world = world_with(
        node(devices=(gpu(total=10, free=10), cpu(free=3, total=3)), models=models("m", "n")), m=9.2, n=9
    )
    world.ensure("first", "m")
    world.settle()
    world.pass_time(60)
    world.ensure("second", "n")
    assert world.measures == [], "a context more does not fit beside what is there"
    world.writes_done()
    assert [one.placement_id for one in world.stops] == world.route("m:latest") or world.stops
    world.stops_done()
    world.report()
    (measure,) = world.measures
    assert measure.key.model_digest == "digest-n"
    held = [promise for promise in promises(world.core.state) if promise.placement_id.startswith("load:")]
    assert [promise.device_bytes["gpu-0"] > 9 * GIB for promise in held] == [True]
    total = sum(promise.device_bytes.get("gpu-0", 0) for promise in promises(world.core.state))
    assert total <= 10 * GIB
    world.settle()
    assert world.is_ready("second")
    (replica,) = world.runners.values()
    assert replica.view.model_digest == "digest-n"


def test_a_load_that_is_planned_beside_a_measurement_does_not_get_the_memory_that_it_holds_in_ram() -> None:
    """RAM of 3 GiB, 1 GiB of it the machine's: a model of 1.8 has room, but not beside the process that counts."""
    world = world_with(node(devices=(cpu(free=3, total=3),), models=models("m", "n")), m=1, n=1.8)
    world.ensure("warm-up", "n")
    world.settle()
    assert world.is_ready("warm-up")
    world.unload("gone", "n")
    world.settle()
    world.pass_time(6)
    world.send(ExplainAsked(caller_id="why", model_name="m", wait_s=5))
    held = booked(world)["cpu"]
    assert held > Policy().host_process_reserve_bytes
    world.ensure("waits", "n")
    world.writes_done()
    assert world.starts == []
    assert world.explain("n").waits_for.endswith("measurement")
    promised = sum(promise.device_bytes.get("cpu", 0) for promise in promises(world.core.state))
    assert promised == held, "nothing else was promised meanwhile"
    world.measure_all()
    world.settle()
    assert world.is_ready("waits")
    assert [one.record.model_name for one in world.all_starts] == ["n:latest", "n:latest"]


def test_without_room_in_ram_for_the_process_nothing_is_measured_and_an_estimate_has_to_do() -> None:
    world = world_with(node(devices=(gpu(), cpu(free=1.1, total=3))), m=8)
    world.ensure("c")
    assert world.measures == []
    assert world.core.state.measuring == {}
    on_gpu = [one for one in world.explain(last=True).candidates if one.device_id == "gpu-0"]
    assert MemoryOrigin.ESTIMATED in {one.origin for one in on_gpu}
    assert not any(one.origin.is_counted for one in on_gpu)


def test_without_room_in_ram_a_report_that_is_known_is_used() -> None:
    world = world_with(node(), m=8)
    world.ensure("first")
    world.settle()
    world.unload("gone")
    world.settle()
    world.pass_time(6)
    world.nodes["a"] = node(devices=(gpu(), cpu(free=1.1, total=3)))
    world.report()
    on_gpu = [one for one in world.explain().candidates if one.device_id == "gpu-0"]
    assert world.measures == []
    assert MemoryOrigin.MEASURED in {one.origin for one in on_gpu}


def test_where_nobody_can_go_for_a_measurement_an_estimate_says_what_is_short() -> None:
    world = world_with(node(devices=(gpu(free=0.2), cpu(free=3, total=3))), m=8)
    answers = world.send(ExplainAsked(caller_id="why", model_name="m"))
    (answer,) = [one for one in answers if isinstance(one, AnswerExplained)]
    on_gpu = [one for one in answer.explanation.candidates if one.device_id == "gpu-0"]
    assert all(not measure.layout.devices for measure in world.measures)
    assert world.core.state.measuring or on_gpu
    for candidate in on_gpu:
        assert candidate.origin is MemoryOrigin.ESTIMATED
        assert candidate.available[0].available_bytes < 457 * MIB
