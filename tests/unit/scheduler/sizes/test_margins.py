"""Margins on top of measurements: numbers of placement 2, and their learning from loads and crashes."""

from dataclasses import replace

from scheduler.core.sizes.ledger import device_kind
from scheduler.core.sizes.margins import LOADS_MIN, MARGIN_BYTES_MIN, NO_MARGINS, MarginKey, Margins, percentile
from scheduler.core.state.residuals import keep, sizes_by_class
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import GIB, MIB
from scheduler.core.values.policy import Policy
from tests.unit.scheduler.builders import cpu, gpu, model, node
from tests.unit.scheduler.world import World, world_with

KEY = MarginKey(build="b1", architecture="llama", device_kind="CUDA A100")
UNLEARNED = 64 * MIB


def learned(*residuals_mib: int) -> Margins:
    margins = NO_MARGINS
    for mib in residuals_mib:
        margins = margins.with_residual(KEY, mib * MIB)
    return margins


def margin_mib(margins: Margins, *, digest: str = "d", key: MarginKey = KEY) -> float:
    return margins.of(key, digest, unlearned_bytes=UNLEARNED) / MIB


def test_until_twenty_loads_were_seen_64_mib_are_kept() -> None:
    assert margin_mib(learned(*[1] * 19)) == 64
    assert margin_mib(learned(*[1] * 20)) == 16  # never less


def test_from_then_on_it_is_what_99_of_100_loads_were_off_by() -> None:
    assert margin_mib(learned(*range(1, 101))) == 99
    assert percentile(tuple(range(200))) == 197


def test_the_last_200_loads_count() -> None:
    assert margin_mib(learned(900, *[30] * 200)) == 30


def test_other_builds_architectures_and_devices_learn_by_themselves() -> None:
    margins = learned(*[30] * 20)
    for other in (replace(KEY, build="b2"), replace(KEY, architecture="qwen"), replace(KEY, device_kind="CUDA T4")):
        assert margin_mib(margins, key=other) == 64


def test_a_model_that_ran_out_of_device_memory_gets_more_for_itself() -> None:
    margins = NO_MARGINS.with_exhausted("d", KEY.device_kind, graph_and_cache_bytes=1 * GIB)
    assert margin_mib(margins) == 64 + 256
    again = margins.with_exhausted("d", KEY.device_kind, graph_and_cache_bytes=10 * GIB)
    assert margin_mib(again) == 64 + 256 + 1024
    assert margin_mib(again, digest="other") == 64


def ready(world: World) -> None:
    world.ensure("c")
    world.settle()
    assert world.is_ready("c")


def test_every_load_teaches_how_far_its_measurement_was_off() -> None:
    world = world_with(node())
    ready(world)
    residuals = world.core.state.margins.residuals
    assert {key.device_kind for key in residuals} == {device_kind(gpu()), device_kind(cpu())}
    assert all(seen == (0,) for seen in residuals.values())  # these hosts hold exactly what was counted


def test_what_was_planned_and_what_is_held_is_known_by_device() -> None:
    world = world_with(node())
    ready(world)
    planned, allocated = sizes_by_class(world.core.state)["a", "gpu-0"]
    assert planned == allocated
    assert sum(planned) == 8 * GIB


def test_a_crash_for_device_memory_widens_the_margin_of_its_device() -> None:
    world = world_with(node())
    ready(world)
    (one,) = world.runners.values()
    fault = Fault(reason="device_memory_exhausted", message="out of memory")
    world.crash(one.view.placement_id, fault)
    assert world.core.state.margins.exhausted == {(model().digest, device_kind(gpu())): 256 * MIB}


def test_the_next_leader_begins_with_what_was_learned() -> None:
    world = world_with(node())
    ready(world)
    (one,) = world.runners.values()
    world.crash(one.view.placement_id, Fault(reason="device_memory_exhausted", message="out of memory"))
    world.writes_done()
    known = world.core.state.margins
    assert known.residuals
    assert known.exhausted
    world.restart_scheduler()
    assert world.core.state.margins == NO_MARGINS
    world.report()
    world.lead()
    assert world.core.state.margins == known


def test_a_store_that_forgot_is_told_again_and_a_store_that_knows_better_is_believed() -> None:
    world = world_with(node())
    ready(world)
    known = world.core.state.margins
    (key, *_) = known.residuals
    world.stored_margins = NO_MARGINS
    world.lose_leadership()
    world.lead()
    world.writes_done()
    assert world.stored_margins == known
    world.lose_leadership()
    better = known.with_residual(key, 7)  # another leader's load
    world.stored_margins = better
    world.lead()
    assert world.core.state.margins == better


def test_what_is_learned_without_leadership_is_not_written() -> None:
    world = world_with(node())
    ready(world)
    world.writes.clear()
    world.lose_leadership()
    keep(world.core.state, world.core.state.margins.with_residual(KEY, 1))
    world.writes_done()
    assert KEY not in world.stored_margins.residuals


def test_three_crashes_within_a_minute_rule_a_node_out_for_a_while() -> None:
    world = World(policy=Policy())
    world.nodes = {"a": node("a", devices=(gpu(), cpu())), "b": node("b", devices=(gpu(free=20, total=20), cpu()))}
    world.report()
    world.lead()
    for number in range(3):
        world.ensure(f"c{number}")
        world.settle()
        (placement_id,) = world.runners
        assert world.runners[placement_id].node_id == "a"
        world.crash(placement_id, Fault(reason="runner_lost", message="signal 11"))
        world.pass_time(5)
    world.ensure("d")
    world.settle()
    assert [one.node_id for one in world.runners.values()] == ["b"]


def test_a_load_that_fails_three_times_on_a_node_goes_to_another() -> None:
    world = world_with(node("a"), node("b", devices=(gpu(free=12, total=12), cpu())))
    world.ensure("c")
    fault = Fault(reason="device_memory_exhausted", message="no room for the cache on gpu-0")
    for _ in range(3):
        world.measure_all()
        world.writes_done()
        (start,) = world.starts
        assert start.address == "a:1"
        world.starts.clear()
        world.start_fails(start.record, fault)
        world.pass_time(3)
        world.measure_all()
        world.writes_done()
    assert [start.address for start in world.starts] == ["b:1"]


def test_a_load_that_fails_everywhere_says_so_with_every_attempt() -> None:
    world = world_with(node("a"))
    world.ensure("c")
    fault = Fault(reason="device_memory_exhausted", message="no room for the cache on gpu-0")
    for _ in range(3):
        world.measure_all()
        world.writes_done()
        (start,) = world.starts
        world.starts.clear()
        world.start_fails(start.record, fault)
        world.pass_time(3)
    told = world.fault("c")
    assert told.reason == "device_memory_exhausted"
    assert told.message.count("no room for the cache") == 3
    assert told.message.startswith("attempt 1 on a: ")


def test_sizes_that_could_not_be_allocated_are_what_is_planned_with_next() -> None:
    world = world_with(node(devices=(gpu(free=12, total=12), cpu())), m=10)
    world.ensure("c")
    world.measure_all()
    world.writes_done()
    (start,) = world.starts
    world.starts.clear()
    planned = start.record.planned
    assert planned is not None
    attempted = replace(planned, devices=(replace(planned.devices[0], graph_bytes=4 * GIB),))
    fault = Fault(reason="device_memory_exhausted", message="no room for the graph", attempted=attempted)
    world.start_fails(start.record, fault)
    world.pass_time(3)
    world.measure_all()
    world.writes_done()
    (again,) = world.starts
    # What 8 slots were refused says nothing of 4: they are counted, and fit with every layer.
    assert (start.record.layout.slots, again.record.layout.slots) == (8, 4)
    assert sum(part.layer_count for part in again.record.layout.devices) == 32


def test_a_small_device_keeps_the_same_part_of_its_memory_as_a_large_one() -> None:
    margins = learned(*([0] * LOADS_MIN))
    assert margins.of(KEY, "d", unlearned_bytes=UNLEARNED, total_bytes=80 * GIB) == MARGIN_BYTES_MIN
    assert margins.of(KEY, "d", unlearned_bytes=UNLEARNED, total_bytes=12 * GIB) == MARGIN_BYTES_MIN // 2
    assert Margins().of(KEY, "d", unlearned_bytes=UNLEARNED, total_bytes=12 * GIB) == UNLEARNED // 2


def test_what_was_learned_of_large_needs_counts_for_small_ones_as_a_part_of_them() -> None:
    margins = Margins()
    for _ in range(LOADS_MIN):
        margins = margins.with_residual(KEY, 40 * MIB, 4000 * MIB)
    assert margins.of(KEY, "d", unlearned_bytes=UNLEARNED, need_bytes=4000 * MIB) == 40 * MIB
    assert margins.of(KEY, "d", unlearned_bytes=UNLEARNED, need_bytes=2000 * MIB) == 20 * MIB
    assert margins.of(KEY, "d", unlearned_bytes=UNLEARNED, need_bytes=9000 * MIB) == 40 * MIB


def test_what_several_devices_hand_each_other_is_learned_apart() -> None:
    split = replace(KEY, is_split=True)
    margins = Margins().with_residual(split, 300 * MIB, 1000 * MIB)
    assert margins.of(split, "d", unlearned_bytes=UNLEARNED) == 300 * MIB
    assert margins.of(KEY, "d", unlearned_bytes=UNLEARNED) == UNLEARNED
