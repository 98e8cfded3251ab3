"""Bytes that are booked for a measurement: a context on each device, and a process in RAM that grows with its count."""

from dataclasses import replace

from common.spec.layout import DeviceLayers, Layout
from scheduler.core.sizes.measuring_bytes import CELL_BYTES, CELLS_COUNTED_MAX, TOKEN_BYTES, measuring_bytes
from scheduler.core.values.facts import ModelFacts
from scheduler.core.values.memory import MIB
from scheduler.core.values.policy import Policy
from tests.unit.scheduler.builders import cpu, gpu, node

POLICY = Policy()
HEAD = node("a", devices=(gpu("gpu-0"), cpu()))
LENDER = node("b", devices=(gpu("gpu-1"), cpu()))
NODES = {"a": HEAD, "b": LENDER}
FACTS = ModelFacts(vocabulary_size=1000, layer_weights_bytes=(1,) * 5, layer_key_width=(64,) * 4)
LAYOUT = Layout(context_tokens=4096, slots=2, batch_tokens=512)


def test_in_ram_it_grows_with_the_vocabulary_and_with_the_cells() -> None:
    held = measuring_bytes(HEAD, LAYOUT, FACTS, NODES, POLICY)
    assert held == {("a", "cpu"): 64 * MIB + 1000 * TOKEN_BYTES + 8192 * CELL_BYTES}


def test_more_cells_than_the_engine_is_asked_for_cost_no_more() -> None:
    most = measuring_bytes(HEAD, replace(LAYOUT, context_tokens=1 << 20, slots=8), FACTS, NODES, POLICY)
    more = measuring_bytes(HEAD, replace(LAYOUT, context_tokens=1 << 20, slots=32), FACTS, NODES, POLICY)
    assert most == more
    assert most["a", "cpu"] > CELLS_COUNTED_MAX * CELL_BYTES


def test_each_device_holds_a_context_and_so_does_the_process_that_lends_it() -> None:
    parts = (
        DeviceLayers(device_id="gpu-1", layer_count=2, node_id="b"),
        DeviceLayers(device_id="gpu-0", layer_count=3),
    )
    held = measuring_bytes(HEAD, replace(LAYOUT, devices=parts), FACTS, NODES, POLICY)
    assert held.keys() == {("a", "gpu-0"), ("b", "gpu-1"), ("a", "cpu"), ("b", "cpu")}
    assert held["a", "gpu-0"] == held["b", "gpu-1"] == POLICY.device_reserve_bytes
    assert held["b", "cpu"] == POLICY.host_process_reserve_bytes < held["a", "cpu"]


def test_states_of_recurrent_layers_are_allocated_where_they_lie() -> None:
    facts = ModelFacts(vocabulary_size=1000, layer_weights_bytes=(1,) * 5, layer_state_bytes=(MIB,) * 4)
    parts = (DeviceLayers(device_id="gpu-0", layer_count=2),)  # the last block and the output
    held = measuring_bytes(HEAD, replace(LAYOUT, devices=parts, slots=8), facts, NODES, POLICY)
    assert held["a", "gpu-0"] == POLICY.device_reserve_bytes + 8 * MIB
    assert held["a", "cpu"] == 64 * MIB + 1000 * TOKEN_BYTES + 3 * 8 * MIB + 8 * CELL_BYTES
