"""Figures in a refusal: the newest sizes that an engine counted, and the sizes that would fit."""

from dataclasses import replace

from scheduler.core.planning.candidates import ClusterView, MeasureFirst, Refusal, RefusalKind, Verdict
from scheduler.core.values.constraints import Constraints, Shape
from scheduler.core.values.facts import ModelFacts
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import GIB, DeviceBytes, MemoryOrigin, MemoryReport
from tests.unit.scheduler.builders import counted, cpu, gpu, model, node
from tests.unit.scheduler.planning.test_placement import REQUEST, decide, refused
from tests.unit.scheduler.world import world_with

SMALL = node(devices=(cpu(free=16, total=16),))


def attempted_below(slots: int) -> object:
    """An engine that has tried to load with few slots: more was needed than it had counted."""

    def measure(wanted: MeasureFirst) -> MemoryReport:
        tried = wanted.layout.slots < slots
        report = counted(wanted.layout, weights=(40 if tried else 30) * GIB)
        return replace(report, origin=MemoryOrigin.ATTEMPTED) if tried else report

    return measure


def test_sizes_of_the_last_attempt_count_and_not_those_that_were_measured_before_it() -> None:
    refusal = refused(ClusterView(nodes=(SMALL,)), attempted_below(4))  # type: ignore[arg-type]
    (candidate,) = refusal.candidates
    assert candidate.origin is MemoryOrigin.ATTEMPTED
    assert candidate.slots == 1
    assert refusal.message.startswith("model requires more system memory (40.")


def test_what_an_engine_counted_is_quoted_and_not_an_estimate_that_lacks_less() -> None:
    """The runner of one device cannot count, and the formula finds it the lesser evil."""

    def measure(wanted: MeasureFirst) -> MemoryReport | Fault:
        if not wanted.layout.devices:
            return Fault(reason="model_unavailable", message="the measurement crashed")
        return counted(wanted.layout, weights=100 * GIB)

    machine = node(devices=(gpu(free=2, total=2), cpu(free=90, total=90)))
    outcome, _ = decide(ClusterView(nodes=(machine,)), measure, replace(REQUEST, slot_steps=(1,)))
    assert isinstance(outcome, Refusal)
    by_shape = {one.shape: one for one in outcome.candidates}
    assert by_shape[Shape.CPU].origin is MemoryOrigin.ESTIMATED
    assert by_shape[Shape.ONE_DEVICE].verdict is Verdict.SHORT_BYTES
    assert by_shape[Shape.CPU].short_bytes < by_shape[Shape.ONE_DEVICE].short_bytes
    assert outcome.message.startswith("model requires more system memory (100.")


FACTS = ModelFacts(
    embedding_length=4096,
    vocabulary_size=32000,
    head_count=32,
    layer_weights_bytes=(7 * GIB // 32,) * 32,
    layer_key_width=(1024,) * 31,
    layer_value_width=(1024,) * 31,
    layer_state_bytes=(0,) * 31,
)


def test_a_load_that_failed_everywhere_tells_its_last_attempt_and_what_would_fit() -> None:
    file = replace(model(), facts=FACTS)
    world = world_with(node(devices=(gpu(total=10, free=10), cpu(free=3, total=3)), models=(file,)), m=7)
    world.want("m", slots=1)
    world.ensure("c")
    for size in (9.0, 9.5, 10.0):
        world.measure_all()
        world.writes_done()
        tried = DeviceBytes(device_id="gpu-0", weights_bytes=7 * GIB, cache_bytes=int((size - 7) * GIB))
        attempted = MemoryReport(origin=MemoryOrigin.ATTEMPTED, devices=(tried,), host=DeviceBytes())
        text = f"{size} GiB could not be allocated"
        refused = Fault(reason="device_memory_exhausted", message=text, attempted=attempted)
        if world.starts:
            world.start_fails(world.starts.pop().record, refused)
            world.pass_time(5)
    world.settle()
    fault, last = world.fault("c"), world.explain(last=True)
    tries = len(world.all_starts)
    assert f"attempt {tries} on a: {(9.0, 9.5, 10.0)[tries - 1]} GiB could not be allocated" in fault.message
    assert isinstance(last.decision, Refusal)
    assert last.decision.nearest
    assert fault.message.endswith(f"by estimate it would fit with {' or with '.join(last.decision.nearest)}")


def test_of_many_devices_that_are_left_out_there_is_still_room_for_what_was_tried() -> None:
    """Each node's RAM is left out; that no GPU holds the model is what people have to know."""
    nodes = tuple(node(f"n{number:03}") for number in range(300))
    request = replace(REQUEST, slot_steps=(1,), constraints=Constraints(require_gpu=True))
    outcome, _ = decide(ClusterView(nodes=nodes), lambda wanted: counted(wanted.layout, weights=100 * GIB), request)
    assert isinstance(outcome, Refusal)
    assert outcome.kind is RefusalKind.INSUFFICIENT_MEMORY
    assert {one.verdict for one in outcome.candidates} == {Verdict.GPU_REQUIRED, Verdict.SHORT_BYTES}


def test_what_even_the_weights_have_no_room_for_is_measured_with_the_least_values_alone() -> None:
    """People are told of these; more slots take no less."""
    asked = []

    def measure(wanted: MeasureFirst) -> MemoryReport:
        asked.append((bool(wanted.layout.devices), wanted.layout.slots))
        return counted(wanted.layout, weights=400 * GIB)

    request = replace(REQUEST, slot_steps=(8, 4, 2, 1))
    outcome, _ = decide(ClusterView(nodes=tuple(node(name) for name in "abc")), measure, request)
    assert isinstance(outcome, Refusal)
    assert (False, 1) in asked
    assert not {slots for on_devices, slots in asked if not on_devices} & {8, 4, 2}
