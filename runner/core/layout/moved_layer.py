"""Choice of the layer to move for a second measurement where the formulas were off, and its result. Pure.

Two counts that differ by one layer show what it really takes. The first or the last of a place is moved: the layers of
a device are contiguous, and it is the one that the next plan moves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from common.errors import InvalidRequest
from common.spec.layout import DeviceLayers, Layout, SplitMode
from runner.core.layout.layer_places import LayerPlaces, place_layers
from runner.core.layout.memory_layers import KnownLayer, Mismatch
from runner.core.layout.memory_report import ClassBytes, MemoryUse


@dataclass(frozen=True, slots=True, kw_only=True)
class MovedLayer:
    """A layout that differs by the place of one block. `place` is where it was: a device's index, None for host RAM."""

    block: int
    place: int | None
    layout: Layout
    places: LayerPlaces


def choose_move(layout: Layout, places: LayerPlaces, mismatches: Sequence[Mismatch]) -> MovedLayer | None:
    """Return a block to move away from where the formulas were furthest off; None where no move would show anything."""
    if layout.split_mode is SplitMode.ROW or not layout.devices:
        return None
    numbers = {device.device_id: index for index, device in enumerate(layout.devices)}
    worst = sorted(mismatches, key=lambda one: abs(one.counted_bytes - one.expected_bytes), reverse=True)
    for mismatch in worst:
        if mismatch.device_id and mismatch.device_id not in numbers:
            continue
        place = numbers[mismatch.device_id] if mismatch.device_id else None
        moved = _move_from(place, layout, places)
        if moved is not None:
            return moved
    return None


def known_layer(
    moved: MovedLayer, before: MemoryUse, after: MemoryUse, mismatches: Sequence[Mismatch]
) -> KnownLayer | None:
    """Return the block's bytes at its old place, for classes with wrong formulas; None if the counts say nothing.

    Args:
        moved: what was done.
        before: the count with the layout as it is.
        after: the count with the block elsewhere.
        mismatches: of the count before.
    """
    device_id = "" if moved.place is None else before.devices[moved.place][0]
    off = {mismatch.what for mismatch in mismatches if mismatch.device_id == device_id}
    first, second = _at(before, moved.place), _at(after, moved.place)
    weights = first.weights_bytes - second.weights_bytes if "weights" in off else None
    cache = first.cache_bytes - second.cache_bytes if "cache" in off else None
    if any(size is not None and size < 0 for size in (weights, cache)):
        return None
    return KnownLayer(place=moved.place, block=moved.block, weights_bytes=weights, cache_bytes=cache)


def _move_from(place: int | None, layout: Layout, places: LayerPlaces) -> MovedLayer | None:
    blocks = [block for block, at in enumerate(places.devices[:-1]) if at == place]
    if len(blocks) < 2:  # what one block takes is what its place takes
        return None
    counts = [places.devices.count(index) for index in range(len(layout.devices))]
    if place is None:
        block = blocks[-1]
        counts[0] += 1
        if block < places.experts_on_host:  # its experts would stay
            return None
    else:
        block = blocks[0]
        counts[place] -= 1
        if place > 0:
            counts[place - 1] += 1
    moved = replace(layout, devices=_with_layers(layout.devices, counts), pipeline=False)
    try:
        found = place_layers(moved, block_count=places.block_count)
    except InvalidRequest:
        return None
    differ = [layer for layer, pair in enumerate(zip(places.devices, found.devices, strict=True)) if len(set(pair)) > 1]
    if differ != [block]:
        return None
    return MovedLayer(block=block, place=place, layout=moved, places=found)


def _with_layers(devices: Sequence[DeviceLayers], counts: Sequence[int]) -> tuple[DeviceLayers, ...]:
    return tuple(replace(device, layer_count=count) for device, count in zip(devices, counts, strict=True))


def _at(use: MemoryUse, place: int | None) -> ClassBytes:
    return use.host if place is None else use.devices[place][1]
