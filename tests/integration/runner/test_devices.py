"""Layouts over devices, on lent CPUs that the engine takes for GPUs: every part of a layout lands where it says."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from structlog.testing import capture_logs

from common.errors import DeviceMemoryExhausted, InvalidRequest, ModelUnavailable, PunaError
from common.spec.layout import DeviceLayers, FlashAttention, Layout, SplitMode
from runner.core.layout.memory_report import ClassBytes
from runner.core.model.model_files import ModelFiles
from runner.measure import measure
from tests.integration.runner import harness
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.contract import Driver
from tests.integration.runner.devices import loaded, spread
from tests.integration.runner.pooled_harness import cosine_distance, pooled
from tests.limited_device import MIB, LimitedDevice, limited_device
from tests.waiting import wait_until
from tools.model_zoo import ZOO

Devices = tuple[LimitedDevice, LimitedDevice]
# Devices compute in other shapes than the CPU does, and prompts of 150 tokens sum the differences up.
TOLERANCE = 0.01
PROMPT = "The weather is cold in the morning. " * 8
HOST = Layout(slots=2, context_tokens=512, batch_tokens=64, threads=1)


@pytest.fixture(scope="module")
def lenders() -> Iterator[Devices]:
    with ExitStack() as stack:
        yield stack.enter_context(limited_device(mib=256)), stack.enter_context(limited_device(mib=256))


@pytest.fixture
def devices(lenders: Devices) -> Iterator[Devices]:
    """Two lent devices; whatever a test loads there is gone afterwards."""
    yield lenders
    empty(*lenders)


def empty(*devices: LimitedDevice) -> None:
    """Wait until everything was given back: the engine's last words to a server take their time."""
    wait_until(lambda: all(device.used_bytes() == 0 for device in devices), deadline_s=10, what="devices are empty")


def logits(driver: Driver, text: str = PROMPT) -> NDArray[np.float32]:
    """The row behind a prompt."""
    return driver.ask(text, max_tokens=1, top_logprobs=0, cache_prompt=False).rows[0]


def assert_equals_cold(warm: NDArray[np.float32], cold: NDArray[np.float32], *, tolerance: float = TOLERANCE) -> None:
    harness.assert_equals_cold(warm, cold, tolerance=tolerance)


def row_of(path: Path, layout: Layout, **files: Any) -> NDArray[np.float32]:
    with loaded(path, layout, **files) as driver:
        return logits(driver)


def memory(driver: Driver) -> tuple[list[ClassBytes], ClassBytes]:
    """Return the bytes on each device, and in host RAM."""
    assert driver.model.memory is not None
    return [count for _, count in driver.model.memory.devices], driver.model.memory.host


def tensor_bytes(path: Path) -> dict[str, int]:
    return {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors}


@pytest.mark.behaviour("B-64", "B-70")
@pytest.mark.parametrize("layers", [(5, 4), (1, 8), (3, 2)])
def test_blocks_lie_where_the_layout_says_and_the_report_is_what_the_devices_hold(
    zoo: Zoo, devices: Devices, layers: tuple[int, int]
) -> None:
    path = zoo("dense")
    sizes, blocks = tensor_bytes(path), 8
    with loaded(path, spread(devices, layers)) as driver:
        held, host = memory(driver)
        assert [count.total_bytes for count in held] == [device.used_bytes() for device in devices]
        assert_equals_cold(logits(driver), row_of(path, HOST))
    head = blocks + 1 - sum(layers)
    cuts = [(0, head), (head, head + layers[0]), (head + layers[0], blocks + 1)]
    for count, (start, stop) in zip((host, *held), cuts, strict=True):
        for layer in range(blocks + 1):
            expected = sum(
                size for name, size in sizes.items() if name.startswith(f"blk.{layer}." if layer < blocks else "output")
            )
            here = start <= layer < stop
            assert abs(count.layer_weights_bytes[layer] - (expected if here else 0)) <= 0.02 * expected
            if layer < blocks:
                assert bool(count.layer_cache_bytes[layer]) is here
        assert sum(count.layer_weights_bytes) + count.input_weights_bytes == count.weights_bytes
        assert sum(count.layer_cache_bytes) == count.cache_bytes
    assert host.input_weights_bytes == sizes["token_embd.weight"]


@pytest.mark.behaviour("B-65", "B-66", "B-70")
@pytest.mark.parametrize(
    "name", ["dense", "tied", "swa", "moe", "hybrid", "recurrent", "rope_freqs", "dense_wide_head"]
)
def test_measured_is_what_is_loaded(zoo: Zoo, devices: Devices, name: str) -> None:
    path = zoo(name)
    blocks = len(measure(ModelFiles(model=path), HOST).host.layer_weights_bytes) - 1
    layout = spread(devices, (blocks // 2, blocks + 1 - blocks // 2))
    planned = measure(ModelFiles(model=path), layout)
    empty(*devices)
    with loaded(path, layout) as driver:
        held, host = memory(driver)
        for count, plan in zip((*held, host), (*planned.devices, planned.host), strict=True):
            total = plan.weights_bytes + plan.cache_bytes + plan.graph_bytes
            assert count.total_bytes == total
            assert len(plan.layer_weights_bytes) == blocks + 1
            for mine, theirs in zip(count.layer_cache_bytes, plan.layer_cache_bytes, strict=True):
                assert mine == theirs


@pytest.mark.behaviour("B-64", "B-69", "B-71")
@pytest.mark.parametrize("name", [name for name, recipe in ZOO.items() if recipe.tokenizer is not None])
def test_tensor_table_and_formulas_agree_with_the_engine_for_every_model(zoo: Zoo, name: str) -> None:
    with capture_logs() as lines:
        report = measure(ModelFiles(model=zoo(name)), Layout(slots=3, context_tokens=1024, batch_tokens=64))
    assert [line for line in lines if line["event"] == "memory.formula_off"] == []
    host = report.host
    assert sum(host.layer_weights_bytes) + host.input_weights_bytes == host.weights_bytes
    assert sum(host.layer_cache_bytes) == host.cache_bytes
    assert host.input_weights_bytes > 0


@pytest.mark.parametrize("name", ["dense", "tied"])
def test_the_output_may_stay_in_host_ram_although_every_block_lies_on_devices(
    zoo: Zoo, devices: Devices, name: str
) -> None:
    path = zoo(name)
    half = 4 if name == "dense" else 2
    with loaded(path, spread(devices, (half, half), output_on_host=True)) as driver:
        held, host = memory(driver)
        assert [bool(size) for size in held[0].layer_weights_bytes] == [True] * half + [False] * (half + 1)
        assert [bool(size) for size in held[1].layer_weights_bytes] == [False] * half + [True] * half + [False]
        assert host.layer_weights_bytes[-1] > 0
        assert not any(host.layer_weights_bytes[:-1])
        assert_equals_cold(logits(driver), row_of(path, HOST), tolerance=0.08 if name == "tied" else TOLERANCE)


def test_the_experts_of_the_first_blocks_may_stay_in_host_ram(zoo: Zoo, devices: Devices) -> None:
    path = zoo("moe")
    sizes = tensor_bytes(path)
    with loaded(path, spread(devices, (2, 3), experts_on_host=2, batch_tokens=512)) as driver:
        held, host = memory(driver)
        expected = [
            sum(size for name, size in sizes.items() if f"blk.{i}." in name and "exps" in name) for i in range(2)
        ]
        assert all(expected)
        for size, wanted in zip(host.layer_weights_bytes[:2], expected, strict=True):
            assert abs(size - wanted) <= 0.02 * wanted
        assert not any(host.layer_weights_bytes[2:])
        # Attention and cache of these blocks lie on the device.
        assert all(held[0].layer_weights_bytes[:2])
        assert all(held[0].layer_cache_bytes[:2])
        assert_equals_cold(logits(driver), row_of(path, replace(HOST, batch_tokens=512)), tolerance=0.01)


@pytest.mark.behaviour("B-06")
def test_a_pipeline_costs_graphs_and_changes_no_answer(zoo: Zoo, devices: Devices) -> None:
    path = zoo("dense")
    cold = row_of(path, HOST)
    graphs = []
    for pipeline in (False, True):
        layout = spread(devices, (5, 4), pipeline=pipeline)
        planned = measure(ModelFiles(model=path), layout)
        with loaded(path, layout) as driver:
            held, _ = memory(driver)
            assert driver.model.layout.pipeline is pipeline
            graphs.append([count.graph_bytes for count in held])
            assert [device.graph_bytes for device in planned.devices] == graphs[-1]
            rows = [driver.submit(f"{index} {PROMPT}", max_tokens=1, cache_prompt=False) for index in range(2)]
            assert_equals_cold(logits(driver), cold)
            for row in rows:
                driver.read(row)
            calls = sum(report.decode_calls for report in driver.listener.reports)
        graphs[-1].append(calls)
    assert graphs[1][0] > 1.5 * graphs[0][0]
    assert graphs[1][1] > 1.5 * graphs[0][1]
    # Calls of a pipeline have a piece for each slot, so there are fewer of them.
    assert graphs[1][2] < graphs[0][2]


@pytest.mark.behaviour("B-65")
def test_a_pipeline_that_does_not_fit_is_off_and_the_report_says_so(zoo: Zoo) -> None:
    path = zoo("dense")
    with limited_device(mib=256) as first, limited_device(mib=256) as roomy:
        layout = spread((first, roomy), (5, 4), pipeline=True, batch_tokens=256)
        sizes = [measure(ModelFiles(model=path), replace(layout, pipeline=on)).devices[1] for on in (False, True)]
    totals = [size.weights_bytes + size.cache_bytes + size.graph_bytes for size in sizes]
    with (
        limited_device(mib=256) as first,
        limited_device(mib=sum(totals) / 2 / MIB) as tight,
        loaded(path, spread((first, tight), (5, 4), pipeline=True, batch_tokens=256)) as driver,
    ):
        assert driver.model.layout.pipeline is False
        assert any("pipeline" in warning for warning in driver.model.warnings)
        held, _ = memory(driver)
        assert held[1].graph_bytes == sizes[0].graph_bytes
        assert_equals_cold(logits(driver), row_of(path, HOST))


def test_a_pipeline_over_a_part_of_the_layers_is_off_with_a_warning(zoo: Zoo, devices: Devices) -> None:
    with loaded(zoo("dense"), spread(devices, (2, 2), pipeline=True)) as driver:
        assert driver.model.layout.pipeline is False
        assert any("pipeline" in warning for warning in driver.model.warnings)


@pytest.mark.behaviour("B-16")
def test_offload_of_operations_is_as_told_and_a_device_without_it_computes_the_same(zoo: Zoo, devices: Devices) -> None:
    """RPC devices take no single operations: that large batches go to a GPU is only seen there (docs/gpu.md)."""
    path = zoo("dense")
    rows, graphs = [], []
    for offload in (True, False):
        with loaded(path, spread(devices[:1] + devices[1:], (2, 2), op_offload=offload)) as driver:
            assert driver.model.layout.op_offload is offload
            rows.append(logits(driver))
            held, _ = memory(driver)
            graphs.append([device.graph_bytes for device in held])
    assert np.array_equal(rows[0], rows[1])
    assert graphs[0] == graphs[1]


@pytest.mark.behaviour("B-17")
def test_flash_attention_is_as_told_or_as_found_and_changes_no_answer(zoo: Zoo, devices: Devices) -> None:
    path = zoo("dense")
    rows, resolved = [], []
    for attention in FlashAttention:
        with loaded(path, spread(devices, (5, 4), flash_attention=attention)) as driver:
            rows.append(logits(driver))
            resolved.append(driver.model.layout.flash_attention)
    assert resolved[0] in (FlashAttention.ON, FlashAttention.OFF)
    assert resolved[1:] == [FlashAttention.ON, FlashAttention.OFF]
    for row in rows[1:]:
        assert_equals_cold(row, rows[0])


def test_a_quantised_cache_lies_on_the_devices_and_is_smaller(zoo: Zoo, devices: Devices) -> None:
    caches = []
    for kind in ("f16", "q8_0", "q4_0"):
        with loaded(zoo("dense"), spread(devices, (5, 4), cache_type_k=kind, cache_type_v=kind)) as driver:
            held, _ = memory(driver)
            caches.append(held[0].layer_cache_bytes[0])
            driver.ask(PROMPT, max_tokens=4)
    assert [cache / caches[0] for cache in caches] == [1.0, 34 / 64, 18 / 64]


def test_graphs_may_be_smaller_than_calls(zoo: Zoo, devices: Devices) -> None:
    path = zoo("dense")
    graphs = []
    for ubatch in (0, 16):
        with loaded(path, spread(devices, (5, 4), ubatch_tokens=ubatch)) as driver:
            held, _ = memory(driver)
            graphs.append(held[0].graph_bytes)
            assert_equals_cold(logits(driver), row_of(path, HOST))
    assert graphs[1] < graphs[0]


def test_a_row_split_where_no_device_can_is_refused_by_name(zoo: Zoo, devices: Devices) -> None:
    with (
        pytest.raises(InvalidRequest, match="split"),
        loaded(zoo("dense"), spread(devices, (5, 4), split_mode=SplitMode.ROW)),
    ):
        pass


def test_more_layers_than_the_model_has_are_refused_on_several_devices_and_mean_all_on_one(
    zoo: Zoo, devices: Devices
) -> None:
    with pytest.raises(InvalidRequest, match="10 layers"), loaded(zoo("dense"), spread(devices, (5, 5))):
        pass
    with loaded(zoo("dense"), spread(devices, (99,))) as driver:
        held, _ = memory(driver)
        assert all(held[0].layer_weights_bytes)


def test_an_address_where_nobody_answers_is_refused_and_the_process_lives_on(zoo: Zoo) -> None:
    layout = replace(HOST, devices=(DeviceLayers("gone", 9, rpc_address="127.0.0.1:1"),))
    with pytest.raises(ModelUnavailable, match=r"127\.0\.0\.1:1"), loaded(zoo("dense"), layout):
        pass
    with pytest.raises(ModelUnavailable):
        measure(ModelFiles(model=zoo("dense")), layout)


def test_a_device_number_that_is_not_lent_is_refused(zoo: Zoo) -> None:
    with limited_device(mib=64, devices=2) as pair:
        second = DeviceLayers("second", 9, rpc_address=pair.address, rpc_device=1)
        with loaded(zoo("dense"), replace(HOST, devices=(second,))) as driver:
            held, _ = memory(driver)
            assert held[0].total_bytes == pair.used_bytes()
        with (
            pytest.raises(InvalidRequest, match="lends 2 devices"),
            loaded(zoo("dense"), replace(HOST, devices=(replace(second, rpc_device=2),))),
        ):
            pass


def phase_limits(path: Path) -> dict[str, float]:
    """Caps in MiB at which a load fails at its weights, its cache, its graph; and at which it just fits."""
    with limited_device(mib=256) as roomy:
        (size,) = measure(ModelFiles(model=path), spread((roomy,), (9,))).devices
    weights, cache, graph = size.weights_bytes, size.cache_bytes, size.graph_bytes
    return {
        "weights": weights / 2 / MIB,
        "cache": (weights + cache / 2) / MIB,
        "graph": (weights + cache + graph / 2) / MIB,
        "": (weights + cache + graph + 64 * 1024) / MIB,
    }


@pytest.mark.behaviour("B-61", "B-68")
def test_each_refused_allocation_names_device_class_and_bytes_and_the_process_goes_on(zoo: Zoo) -> None:
    path = zoo("dense")
    for phase, mib in phase_limits(path).items():
        with limited_device(mib=mib) as device:
            refused: PunaError | None = None
            try:
                with loaded(path, spread((device,), (9,))) as driver:
                    driver.ask(PROMPT, max_tokens=4)
            except PunaError as error:
                refused = error
            empty(device)
            if phase:
                assert isinstance(refused, DeviceMemoryExhausted)
                assert f"device gpu-a refused {device.refusals()[-1]} bytes for {phase}" in refused.message
            else:
                assert refused is None


@pytest.mark.behaviour("B-64", "B-65")
@pytest.mark.parametrize("name", ["embed_mean", "embed_last"])
def test_a_pooled_model_computes_on_a_device_too(zoo: Zoo, devices: Devices, name: str) -> None:
    path, lent = zoo(name), (DeviceLayers("gpu-a", 5, rpc_address=devices[0].address),)
    with pooled(path) as harness:
        inputs = [harness.tokens(text) for text in ("How do I bake bread?", "The train leaves at seven.")]
        expected = harness.compute(inputs)
    planned = measure(ModelFiles(model=path), Layout(devices=lent, context_tokens=512))
    with pooled(path, devices=lent) as harness:
        for mine, theirs in zip(harness.compute(inputs), expected, strict=True):
            assert cosine_distance(mine, theirs) < 1e-4
        assert harness.model is not None
        assert harness.model.memory is not None
        ((_, held),) = harness.model.memory.devices
        assert held.total_bytes == pytest.approx(devices[0].used_bytes(), abs=64 * 1024)
        assert held.weights_bytes == planned.devices[0].weights_bytes
        assert harness.model.memory.host.cache_bytes == planned.host.cache_bytes


@pytest.mark.behaviour("B-60")
def test_nothing_more_is_needed_on_a_device_once_a_model_is_loaded(zoo: Zoo) -> None:
    with limited_device(mib=256) as device, loaded(zoo("dense"), spread((device,), (9,))) as driver:
        device.take()
        held = device.used_bytes()
        expected = row_of(zoo("dense"), HOST)
        answers = [driver.submit(f"{index} {PROMPT}", max_tokens=600, shift=True) for index in range(2)]
        for answer in answers:
            assert len(driver.read(answer).ids) == 600
        assert_equals_cold(logits(driver), expected)
        assert device.used_bytes() == held
        assert device.refusals() == []
