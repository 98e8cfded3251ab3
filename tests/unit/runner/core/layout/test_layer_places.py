"""Devices of layers, and layers of tensors."""

from dataclasses import replace

import pytest

from common.errors import InvalidRequest
from common.spec.layout import DeviceLayers, Layout, SplitMode
from runner.core.layout.layer_places import (
    EVERY_BLOCK,
    INPUT_LAYER,
    OUTPUT_LAYER,
    layer_of,
    offloaded_layers,
    place_layers,
)
from runner.core.layout.layout import can_pipeline, resolve_layout


def layout(*layers: int, output_on_host: bool = False, experts_on_host: int = 0) -> Layout:
    devices = tuple(DeviceLayers(f"gpu-{index}", count) for index, count in enumerate(layers))
    return Layout(devices=devices, output_on_host=output_on_host, experts_on_host=experts_on_host)


@pytest.mark.behaviour("B-70")
@pytest.mark.parametrize(
    ("wanted", "devices"),
    [
        (layout(), [None] * 5),
        (layout(3), [None, None, 0, 0, 0]),
        (layout(2, 3), [0, 0, 1, 1, 1]),
        (layout(1, 2), [None, None, 0, 1, 1]),
        (layout(0, 2), [None, None, None, 1, 1]),
        (layout(2, 2, output_on_host=True), [0, 0, 1, 1, None]),
        (layout(1, 1, output_on_host=True), [None, None, 0, 1, None]),
        (layout(0, output_on_host=True), [None] * 5),
        (layout(99), [0] * 5),
    ],
)
def test_a_head_of_blocks_stays_in_host_ram_and_the_rest_lies_in_ranges(
    wanted: Layout, devices: list[int | None]
) -> None:
    assert list(place_layers(wanted, block_count=4).devices) == devices


@pytest.mark.parametrize("wanted", [layout(3, 3), layout(3, 2, output_on_host=True)])
def test_more_layers_than_there_are_cannot_be_spread(wanted: Layout) -> None:
    with pytest.raises(InvalidRequest, match="6 layers"):
        place_layers(wanted, block_count=4)


def test_the_engine_counts_the_output_layer_even_where_it_is_sent_away() -> None:
    assert offloaded_layers(layout(5, 4)) == (5, 4)
    assert offloaded_layers(layout(4, 4, output_on_host=True)) == (4, 5)
    assert offloaded_layers(layout(0, 0, output_on_host=True)) == (0, 0)


@pytest.mark.parametrize(
    ("tensor", "layer"),
    [
        ("blk.0.attn_q.weight", 0),
        ("blk.31.ffn_down_exps.weight", 31),
        ("token_embd.weight", INPUT_LAYER),
        ("token_embd_norm.weight", INPUT_LAYER),
        ("position_embd.weight", INPUT_LAYER),
        ("rope_freqs.weight", EVERY_BLOCK),
        ("rope_factors_long.weight", EVERY_BLOCK),
        ("output.weight", OUTPUT_LAYER),
        ("output_norm.weight", OUTPUT_LAYER),
        ("cls.output.weight", OUTPUT_LAYER),
    ],
)
def test_a_tensors_name_says_its_layer(tensor: str, layer: int) -> None:
    assert layer_of(tensor) == layer


def test_experts_of_the_first_blocks_may_lie_elsewhere_than_their_block() -> None:
    places = place_layers(layout(5, experts_on_host=2), block_count=4)
    assert places.place_of("blk.1.ffn_gate_exps.weight") is None
    assert places.place_of("blk.1.ffn_up_chexps.weight") is None
    assert places.place_of("blk.1.attn_q.weight") == 0
    assert places.place_of("blk.1.ffn_gate_inp.weight") == 0
    assert places.place_of("blk.2.ffn_gate_exps.weight") == 0
    assert places.place_of("token_embd.weight") is None
    assert places.place_of("output.weight") == 0


@pytest.mark.behaviour("B-06")
def test_a_pipeline_needs_every_layer_on_several_devices() -> None:
    assert can_pipeline(layout(2, 3), block_count=4)
    for impossible in (layout(5), layout(2, 2), layout(2, 2, output_on_host=True), layout(2, 3, experts_on_host=1)):
        assert not can_pipeline(impossible, block_count=4)


@pytest.mark.behaviour("B-06", "B-65")
def test_a_pipeline_that_cannot_be_is_off_with_a_warning() -> None:
    wanted = Layout(devices=layout(2, 2).devices, pipeline=True)
    resolved = resolve_layout(wanted, trained_context_tokens=0, cpu_threads=1, block_count=4)
    assert not resolved.layout.pipeline
    assert any("pipeline" in warning for warning in resolved.warnings)
    assert resolve_layout(wanted, trained_context_tokens=0, cpu_threads=1, block_count=3).layout.pipeline


@pytest.mark.parametrize(
    ("wanted", "asked", "used"),
    [
        (layout(2, 3), None, False),
        (layout(99), None, False),
        (layout(2, 3), True, True),
        (layout(2, 2), None, None),
        (layout(), None, None),
        (layout(), False, False),
        (layout(2, 2, output_on_host=True), None, None),
        (layout(2, 3, experts_on_host=1), None, None),
    ],
)
def test_files_are_mapped_unless_everything_goes_to_devices(
    wanted: Layout, asked: bool | None, used: bool | None
) -> None:
    resolved = resolve_layout(replace(wanted, use_mmap=asked), trained_context_tokens=0, cpu_threads=1, block_count=4)
    assert resolved.layout.use_mmap is used


@pytest.mark.parametrize(
    "wanted",
    [
        Layout(devices=(DeviceLayers("a", 1), DeviceLayers("a", 1))),
        Layout(devices=tuple(DeviceLayers(str(index), 1) for index in range(16))),
        Layout(devices=(DeviceLayers("a", 1),), main_device=1),
        Layout(devices=(DeviceLayers("a", 1), DeviceLayers("b", 1)), split_mode=SplitMode.ROW, pipeline=True),
    ],
)
def test_devices_that_no_engine_can_have_are_refused(wanted: Layout) -> None:
    with pytest.raises(InvalidRequest):
        resolve_layout(wanted, trained_context_tokens=0, cpu_threads=1)
