"""Counts of devices, split over layers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.layout.layer_places import LayerPlaces
from runner.core.layout.memory_layers import LayerFacts, Mismatch, add_sizes, split_layers
from runner.core.layout.memory_report import ClassBytes, MemoryUse

MIB = 1 << 20
TENSORS = {
    "token_embd.weight": 8 * MIB,
    "blk.0.attn_q.weight": 4 * MIB,
    "blk.1.attn_q.weight": 4 * MIB,
    "blk.1.ffn_up_exps.weight": 6 * MIB,
    "output_norm.weight": 1 * MIB,
    "output.weight": 8 * MIB,
}


def facts(devices: tuple[int | None, ...], **fields: object) -> LayerFacts:
    experts = fields.pop("experts_on_host", 0)
    places = LayerPlaces(devices=devices, experts_on_host=experts)  # type: ignore[arg-type]
    values = {"tensors": TENSORS, "block_cache_bytes": (MIB, 2 * MIB), "adapter_tensors": {}, **fields}
    return LayerFacts(places=places, **values)  # type: ignore[arg-type]


def use(host: ClassBytes, *devices: ClassBytes) -> MemoryUse:
    return MemoryUse(devices=tuple((f"gpu-{index}", count) for index, count in enumerate(devices)), host=host)


@pytest.mark.behaviour("B-64", "B-70")
def test_each_layer_gets_its_tensors_and_its_cache() -> None:
    counted = use(
        ClassBytes(weights_bytes=12 * MIB, cache_bytes=MIB, graph_bytes=3),
        ClassBytes(weights_bytes=19 * MIB, cache_bytes=2 * MIB, graph_bytes=4),
    )
    report, mismatches = split_layers(counted, facts((None, 0, 0), host_extra_bytes=5))
    assert mismatches == ()
    assert report.host == ClassBytes(
        weights_bytes=12 * MIB,
        cache_bytes=MIB + 5,
        graph_bytes=3,
        layer_weights_bytes=(4 * MIB, 0, 0),
        layer_cache_bytes=(MIB, 0, 5),
        input_weights_bytes=8 * MIB,
    )
    assert report.devices[0][1] == ClassBytes(
        weights_bytes=19 * MIB,
        cache_bytes=2 * MIB,
        graph_bytes=4,
        layer_weights_bytes=(0, 10 * MIB, 9 * MIB),
        layer_cache_bytes=(0, 2 * MIB, 0),
    )


def test_experts_in_host_ram_are_theirs_and_adapters_lie_with_what_they_change() -> None:
    counted = use(
        ClassBytes(weights_bytes=14 * MIB),
        ClassBytes(weights_bytes=17 * MIB, cache_bytes=3 * MIB),
    )
    adapters = {"blk.1.attn_q.weight": 7, "blk.1.ffn_up_exps.weight": 9, "token_embd.weight": 11, "output.weight": 13}
    report, mismatches = split_layers(counted, facts((0, 0, 0), experts_on_host=2, adapter_tensors=adapters))
    assert mismatches == ()
    assert report.host.layer_weights_bytes == (0, 6 * MIB + 9, 0)
    assert report.host.input_weights_bytes == 8 * MIB + 11
    assert report.devices[0][1].layer_weights_bytes == (4 * MIB, 4 * MIB + 7, 9 * MIB + 13)
    assert report.devices[0][1].weights_bytes == 17 * MIB + 20


@pytest.mark.behaviour("B-69")
def test_a_tied_output_is_counted_where_the_engine_copies_it() -> None:
    tied = {name: size for name, size in TENSORS.items() if name != "output.weight"}
    on_device = use(ClassBytes(weights_bytes=8 * MIB), ClassBytes(weights_bytes=23 * MIB, cache_bytes=3 * MIB))
    report, mismatches = split_layers(on_device, facts((0, 0, 0), tensors=tied))
    assert mismatches == ()
    assert report.devices[0][1].layer_weights_bytes[2] == 9 * MIB
    for counted, output in ((23 * MIB, MIB), (31 * MIB, 9 * MIB)):  # shared, and rearranged for the CPU
        alone = use(ClassBytes(weights_bytes=counted, cache_bytes=3 * MIB))
        report, mismatches = split_layers(alone, facts((None, None, None), tensors=tied))
        assert mismatches == ()
        assert report.host.layer_weights_bytes[2] == output


@pytest.mark.behaviour("B-69")
def test_what_every_block_uses_is_counted_once_on_each_device() -> None:
    shared = {**TENSORS, "rope_freqs.weight": MIB}
    counted = use(
        ClassBytes(weights_bytes=13 * MIB, cache_bytes=MIB), ClassBytes(weights_bytes=20 * MIB, cache_bytes=2 * MIB)
    )
    report, mismatches = split_layers(counted, facts((None, 0, 0), tensors=shared))
    assert mismatches == ()
    assert report.host.layer_weights_bytes[0] == 5 * MIB
    assert report.devices[0][1].layer_weights_bytes[1] == 11 * MIB


def test_a_mapped_file_counts_by_its_table() -> None:
    counted = use(
        ClassBytes(weights_bytes=31 * MIB, cache_bytes=MIB), ClassBytes(weights_bytes=19 * MIB, cache_bytes=2 * MIB)
    )
    report, mismatches = split_layers(counted, facts((None, 0, 0), mapped=True))
    assert mismatches == ()
    assert report.host.weights_bytes == 12 * MIB


@pytest.mark.behaviour("B-64")
def test_a_formula_that_is_off_is_named_and_scaled() -> None:
    counted = use(ClassBytes(weights_bytes=31 * MIB, cache_bytes=6 * MIB))
    report, mismatches = split_layers(counted, facts((None, None, None)))
    assert mismatches == (Mismatch(device_id="", what="cache", counted_bytes=6 * MIB, expected_bytes=3 * MIB),)
    assert report.host.layer_cache_bytes == (2 * MIB, 4 * MIB, 0)


def test_an_unknown_cache_is_shared_out_evenly_and_an_encoder_has_none() -> None:
    unknown = use(ClassBytes(weights_bytes=31 * MIB, cache_bytes=4 * MIB))
    report, mismatches = split_layers(unknown, facts((None, None, None), block_cache_bytes=(0, 0)))
    assert report.host.layer_cache_bytes == (2 * MIB, 2 * MIB, 0)
    assert [mismatch.what for mismatch in mismatches] == ["cache"]
    encoder = use(ClassBytes(weights_bytes=31 * MIB))
    report, mismatches = split_layers(encoder, facts((None, None, None)))
    assert report.host.layer_cache_bytes == (0, 0, 0)
    assert mismatches == ()


sizes = st.integers(0, 1 << 40)


@given(
    weights=st.tuples(sizes, sizes),
    caches=st.tuples(sizes, sizes),
    devices=st.sampled_from([(None, None, None), (None, 0, 0), (0, 0, 0), (0, 0, None), (None, 0, None)]),
)
def test_layers_always_add_up_to_what_was_counted(
    weights: tuple[int, int], caches: tuple[int, int], devices: tuple[int | None, ...]
) -> None:
    counted = use(
        ClassBytes(weights_bytes=weights[0], cache_bytes=caches[0]),
        ClassBytes(weights_bytes=weights[1], cache_bytes=caches[1]),
    )
    report, _ = split_layers(counted, facts(devices))
    for before, after in ((counted.host, report.host), (counted.devices[0][1], report.devices[0][1])):
        held = any(place is None for place in devices) if after is report.host else 0 in devices
        assert sum(after.layer_weights_bytes) + after.input_weights_bytes == after.weights_bytes
        assert sum(after.layer_cache_bytes) == after.cache_bytes
        if held:
            assert after.weights_bytes == before.weights_bytes


def test_equal_names_add_up() -> None:
    assert add_sizes([("a", 1), ("b", 2), ("a", 3)]) == {"a": 4, "b": 2}
