"""Alternatives that a refusal names: from its own measurements, on a machine as small as it can be."""

from dataclasses import replace

import pytest

from scheduler.core.planning.candidates import MeasureFirst, Refusal, RefusalKind, Verdict
from scheduler.core.values.facts import ModelFacts
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import MIB, DeviceBytes, MemoryOrigin, MemoryReport
from scheduler.core.values.policy import Policy
from tests.unit.scheduler.builders import cpu, gpu, model, node
from tests.unit.scheduler.shape_planning import BASE, ask, decide

# The demo model as the engine counts it: 8 blocks, 2 MiB of cache for 1,024 tokens, ten times as much for copies.
BLOCKS = 8
FACTS = ModelFacts(
    embedding_length=256,
    vocabulary_size=1024,
    head_count=8,
    layer_weights_bytes=(400_000,) * BLOCKS + (300_000,),
    layer_key_width=(64,) * BLOCKS,
    layer_value_width=(64,) * BLOCKS,
    layer_state_bytes=(0,) * BLOCKS,
)
NO_RESERVE = Policy(host_reserve_bytes_min=0, host_reserve_fraction=0.0)


def count(wanted: MeasureFirst) -> MemoryReport | Fault:
    """In host RAM: 180 MiB with what a process takes for one slot of 2,048 tokens, 158 for one of 1,024."""
    layout = wanted.layout
    block = layout.context_tokens * layout.slots * 256
    copies = 10 * block * BLOCKS
    host = DeviceBytes(
        weights_bytes=sum(FACTS.layer_weights_bytes),
        cache_bytes=block * BLOCKS + copies,
        graph_bytes=5 * MIB,
        layer_weights_bytes=FACTS.layer_weights_bytes,
        layer_cache_bytes=(*((block,) * BLOCKS), copies),
    )
    return MemoryReport(origin=MemoryOrigin.MEASURED, devices=(), host=host)


def refused(cpu_mib: int, *, context_tokens: int = 2048) -> Refusal:
    size = cpu_mib / 1024
    machine = node(devices=(cpu(free=size, total=size),), models=(replace(model(), facts=FACTS),))
    request = ask(layout=replace(BASE, context_tokens=context_tokens), slot_steps=(8, 4, 2, 1))
    outcome = decide(machine, count=count, request=request, policy=NO_RESERVE)
    assert isinstance(outcome, Refusal)
    return outcome


def test_a_smaller_context_is_named_where_margins_are_as_large_as_the_model() -> None:
    refusal = refused(170)
    assert refusal.kind is RefusalKind.INSUFFICIENT_MEMORY
    assert refusal.nearest == ("num_ctx 1024", "cache type q8_0")
    assert refusal.message.endswith("by estimate it would fit with num_ctx 1024 or with cache type q8_0")


@pytest.mark.parametrize(("cpu_mib", "named"), [(150, "num_ctx 512"), (143, "num_ctx 256")])
def test_what_is_named_is_the_largest_that_fits(cpu_mib: int, named: str) -> None:
    assert refused(cpu_mib).nearest[0] == named


def test_nothing_is_named_where_a_process_alone_does_not_fit() -> None:
    assert refused(120).nearest == ()


def test_a_candidate_says_what_is_short_and_not_only_that_no_layout_was_found() -> None:
    (candidate,) = refused(170).candidates
    assert candidate.verdict is Verdict.SHORT_BYTES
    need, have = candidate.shortest
    assert have.available_bytes == 170 * MIB
    assert need.total_bytes > have.available_bytes
    assert candidate.reason.startswith("model requires more system memory (18")
    assert candidate.reason.endswith("than is available (170.0 MiB)")


def test_of_several_devices_the_one_that_lacks_most_is_named() -> None:
    huge = replace(model(), facts=replace(FACTS, layer_weights_bytes=(1 << 30,) * (BLOCKS + 1)))
    machine = node(devices=(gpu("G0", free=1.2, total=1.2), cpu(free=2, total=2)), models=(huge,))
    refusal = decide(machine, count=count, request=ask(slot_steps=(1,)), policy=replace(NO_RESERVE, measure=False))
    assert isinstance(refusal, Refusal)
    assert all("cannot be allocated" not in one.reason for one in refusal.candidates if one.short_bytes > 0)
