"""Choice of the layer to move after formulas were off, and the check of the second count."""

import pytest

from common.spec.layout import DeviceLayers, Layout, SplitMode
from runner.core.layout.layer_places import place_layers
from runner.core.layout.memory_layers import KnownLayer, LayerFacts, Mismatch, split_layers
from runner.core.layout.memory_report import ClassBytes, MemoryUse
from runner.core.layout.moved_layer import MovedLayer, choose_move, known_layer

BLOCKS = 6


def layout(*layers: int, **fields: object) -> Layout:
    devices = tuple(DeviceLayers(f"gpu-{index}", count) for index, count in enumerate(layers))
    return Layout(devices=devices, **fields)  # type: ignore[arg-type]


def off(device_id: str, *, by: int = 1000, what: str = "cache") -> Mismatch:
    return Mismatch(device_id=device_id, what=what, counted_bytes=2000 + by, expected_bytes=2000)


def move(of: Layout, *mismatches: Mismatch) -> MovedLayer | None:
    return choose_move(of, place_layers(of, block_count=BLOCKS), mismatches)


@pytest.mark.behaviour("B-64")
@pytest.mark.parametrize(
    ("layers", "device_id", "block", "moved"),
    [
        ((3, 2), "gpu-1", 5, None),  # it has one block and the output
        ((2, 3), "gpu-1", 4, (3, 2)),
        ((2, 3), "gpu-0", 2, (1, 3)),
        ((7,), "gpu-0", 0, (6,)),
        ((99,), "gpu-0", 0, (6,)),  # on one device so many mean all
        ((2, 3), "", 1, (3, 3)),
        ((5, 1), "", 0, None),  # one block in host RAM
    ],
)
def test_the_block_at_the_cut_is_moved_to_what_lies_before_it(
    layers: tuple[int, ...], device_id: str, block: int, moved: tuple[int, ...] | None
) -> None:
    before = layout(*layers, pipeline=True)
    found = move(before, off(device_id))
    if moved is None:
        assert found is None
        return
    assert found is not None
    assert (found.block, found.place) == (block, int(device_id[-1]) if device_id else None)
    assert tuple(device.layer_count for device in found.layout.devices) == moved
    assert not found.layout.pipeline
    places = place_layers(before, block_count=BLOCKS).devices
    assert [layer for layer in range(BLOCKS + 1) if places[layer] != found.places.devices[layer]] == [block]


def test_the_output_in_host_ram_stays_where_it_is() -> None:
    found = move(layout(2, 3, output_on_host=True), off("gpu-1"))
    assert found is not None
    assert [device.layer_count for device in found.layout.devices] == [3, 2]
    assert found.places.devices[-1] is None


def test_the_worst_place_from_which_a_block_can_go_is_chosen() -> None:
    one_block = off("gpu-1", by=9000)
    found = move(layout(4, 2), off("gpu-0", by=-700), one_block, off("gpu-0", by=500), off("elsewhere", by=5000))
    assert found is not None
    assert found.place == 0


@pytest.mark.parametrize(
    ("of", "device_id"),
    [
        (layout(), ""),  # nowhere to go
        (layout(2, 5, split_mode=SplitMode.ROW), "gpu-0"),  # every device has rows of every layer
        (layout(2, experts_on_host=5), ""),  # its experts would stay
        (layout(0), ""),  # the first layer that a device takes is the output
    ],
)
def test_nothing_is_moved_where_it_would_tell_nothing(of: Layout, device_id: str) -> None:
    assert move(of, off(device_id)) is None


def use(host: int, *caches: int, weights: int = 50) -> MemoryUse:
    devices = tuple(
        (f"gpu-{index}", ClassBytes(weights_bytes=weights, cache_bytes=size)) for index, size in enumerate(caches)
    )
    return MemoryUse(devices=devices, host=ClassBytes(weights_bytes=weights, cache_bytes=host))


def test_the_difference_of_two_counts_is_the_layer_in_classes_that_were_off() -> None:
    wrong = (off("gpu-1"), off("gpu-0", what="weights"))
    moved = move(layout(2, 3), off("gpu-1"))
    assert moved is not None
    before, after = use(0, 400, 900), use(0, 650, 640, weights=40)
    expected = KnownLayer(place=1, block=4, weights_bytes=None, cache_bytes=260)
    assert known_layer(moved, before, after, wrong) == expected
    assert known_layer(moved, before, use(0, 400, 901), wrong) is None
    from_host = move(layout(2, 3), off("", what="weights"))
    assert from_host is not None
    expected = KnownLayer(place=None, block=1, weights_bytes=10, cache_bytes=None)
    assert known_layer(from_host, before, use(0, 400, 900, weights=40), (off("", what="weights"),)) == expected


@pytest.mark.behaviour("B-64")
def test_a_layer_that_was_measured_has_its_bytes_and_formulas_share_out_the_rest() -> None:
    tensors = {f"blk.{block}.ffn_up.weight": 100 for block in range(3)}
    places = place_layers(layout(4), block_count=3)
    counted = MemoryUse(
        devices=(("gpu-0", ClassBytes(weights_bytes=300, cache_bytes=1000)),), host=ClassBytes(graph_bytes=1)
    )

    def caches(formula: tuple[int, int, int], known_bytes: int | None) -> tuple[int, ...]:
        facts = LayerFacts(places=places, tensors=tensors, block_cache_bytes=formula, adapter_tensors={})
        known = KnownLayer(place=0, block=0, weights_bytes=None, cache_bytes=known_bytes)
        report, _ = split_layers(counted, facts, known=known)
        assert report.devices[0][1].layer_weights_bytes == (100, 100, 100, 0)
        assert report.devices[0][1].cache_bytes == 1000
        return report.devices[0][1].layer_cache_bytes

    assert caches((100, 100, 300), 600) == (600, 100, 300, 0)
    assert caches((0, 0, 0), 600) == (600, 200, 200, 0)
    assert caches((0, 0, 0), 0) == (0, 500, 500, 0)
    assert caches((100, 100, 300), None) == (200, 200, 600, 0)
    assert caches((100, 100, 300), 1001) == (200, 200, 600, 0)  # more than there is: nothing was learned
