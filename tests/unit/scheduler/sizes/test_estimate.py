"""Formulas that stand in for a measurement, with numbers worked out by hand."""

from common.spec.layout import DeviceLayers, Layout
from runner.core.layout import layout as runner_layout
from scheduler.core.sizes.estimate import (
    COPIES_BYTES_MAX,
    COPIES_MAX,
    cache_bytes,
    estimate_report,
    graph_bytes,
    layer_ranges,
    sizes_by_facts,
)
from scheduler.core.sizes.layers import sizes_by_report
from scheduler.core.values.facts import ModelFacts, facts_of_size
from scheduler.core.values.memory import DeviceBytes, MemoryOrigin, MemoryReport

FACTS = ModelFacts(
    architecture="llama",
    embedding_length=64,
    vocabulary_size=1000,
    head_count=4,
    layer_weights_bytes=(100, 110, 120, 50),
    layer_expert_bytes=(70, 80, 90, 0),
    input_weights_bytes=40,
    layer_key_width=(32, 32, 0),
    layer_value_width=(16, 16, 0),
    layer_state_bytes=(0, 0, 900),
)
LAYOUT = Layout(context_tokens=250, slots=2, batch_tokens=8)


def on(*counts: int, output_on_host: bool = False, experts_on_host: int = 0) -> Layout:
    devices = tuple(DeviceLayers(device_id=f"d{index}", layer_count=count) for index, count in enumerate(counts))
    return Layout(
        devices=devices,
        context_tokens=250,
        slots=2,
        batch_tokens=8,
        output_on_host=output_on_host,
        experts_on_host=experts_on_host,
    )


def estimated(layout: Layout) -> MemoryReport:
    return estimate_report(sizes_by_facts(FACTS, layout), graph_bytes(FACTS, layout), layout)


def test_a_cell_holds_keys_and_values_and_contexts_are_padded() -> None:
    assert cache_bytes(FACTS, LAYOUT) == [512 * (32 + 16) * 2, 512 * (32 + 16) * 2, 1800, 0]


def test_a_quantised_cache_takes_its_blocks() -> None:
    layout = Layout(context_tokens=250, slots=2, batch_tokens=8, cache_type_k="q8_0", cache_type_v="q4_0")
    assert cache_bytes(FACTS, layout)[0] == 512 * 32 * 34 // 32 + 512 * 16 * 18 // 32


def test_the_graph_is_that_of_attention_or_of_the_output() -> None:
    assert graph_bytes(FACTS, LAYOUT) == 4 * 8 * (1 + 4 * 64 + 500 * 5)
    wide = Layout(context_tokens=1, slots=1, batch_tokens=8)
    assert graph_bytes(FACTS, wide) == 4 * 8 * (64 + 1000)


def test_ranges_end_with_the_output_unless_that_lies_on_the_host() -> None:
    assert layer_ranges(on(2, 1), 3) == [(1, 3), (3, 4)]
    assert layer_ranges(on(2, 1, output_on_host=True), 3) == [(0, 2), (2, 3)]


def test_an_estimate_puts_every_layer_where_the_layout_says() -> None:
    report = estimated(on(1, 2))
    assert report.origin is MemoryOrigin.ESTIMATED
    assert [part.weights_bytes for part in report.devices] == [110, 170]
    assert report.devices[1].layer_weights_bytes == (0, 0, 120, 50)
    assert report.host.weights_bytes == 100 + 40
    cells = 512 * 48 * 2
    assert report.host.layer_cache_bytes[0] == cells


def test_an_estimate_has_the_copies_that_a_runner_keeps_in_host_ram() -> None:
    assert (COPIES_MAX, COPIES_BYTES_MAX) == (runner_layout.COPIES_MAX, runner_layout.COPIES_BYTES_MAX)
    report = estimated(on(1, 2))
    cached = sum(part.cache_bytes for part in report.devices) + report.host.layer_cache_bytes[0]
    rows = on(1, 2).output_rows * FACTS.vocabulary_size * 4
    assert report.host.layer_cache_bytes[-1] == COPIES_MAX * cached + rows
    whole = estimated(on(4))
    assert whole.host.cache_bytes == report.host.layer_cache_bytes[-1], "wherever the layers lie"


def test_experts_on_the_host_leave_the_rest_of_their_block_where_it_was() -> None:
    report = estimated(on(4, experts_on_host=2))
    assert report.devices[0].layer_weights_bytes == (30, 30, 120, 50)
    assert report.host.layer_weights_bytes == (70, 80, 0, 0)


def test_without_facts_every_layer_is_as_large_as_any_other() -> None:
    assert facts_of_size(400, 3).layer_weights_bytes == (100, 100, 100, 100)
    assert sum(cache_bytes(facts_of_size(400, 3), LAYOUT)) == 80


def test_sizes_are_read_off_a_report_wherever_the_layers_lie() -> None:
    by_report = sizes_by_report(estimated(on(1, 2)), FACTS)
    assert by_report == sizes_by_facts(FACTS, LAYOUT)


def test_a_report_without_layers_is_shared_out_so_that_its_totals_hold() -> None:
    device = DeviceBytes(device_id="d", weights_bytes=840, cache_bytes=300)
    sizes = sizes_by_report(MemoryReport(origin=MemoryOrigin.MEASURED, devices=(device,), host=DeviceBytes()), FACTS)
    assert sizes.weights == (200, 220, 240, 100)
    assert sizes.caches == (100, 100, 100, 0)
    assert sizes.input_bytes == 80


def test_of_the_experts_a_token_reads_those_that_it_uses() -> None:
    moe = ModelFacts(layer_weights_bytes=(100, 50), layer_expert_bytes=(80, 0), expert_count=8, expert_used_count=2)
    assert moe.bytes_per_token(0) == 20 + 20
    assert moe.bytes_per_token(1) == 50


def test_what_sees_lies_on_the_first_device_or_in_host_ram() -> None:
    for layout, places in ((on(2, 2), (500, 0, 0)), (LAYOUT, (500,))):
        report = estimate_report(sizes_by_facts(FACTS, layout), 7, layout, projector_bytes=500)
        assert tuple(part.projector_bytes for part in (*report.devices, report.host)) == places
        assert report.total_bytes == estimate_report(sizes_by_facts(FACTS, layout), 7, layout).total_bytes + 500
