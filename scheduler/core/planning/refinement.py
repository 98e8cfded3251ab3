"""Refinement of a layout after the loop has found one: a better one, or a faster one that is as good.

The loop plans with graphs as they were in its last layout. Here they are guessed from all that was measured, and layers
are laid out in any order of devices with any cuts. A guess may be wrong: what was measured then is known, and either
another arrangement fits with it, or none does.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from common.spec.layout import Layout
from scheduler.core.sizes.arranging import DEVICES_MAX, Parts, Run, arranged, fastest
from scheduler.core.sizes.graphs import Bound, GraphBounds, GraphKind, Guess
from scheduler.core.sizes.speeds import SAME_TIME
from scheduler.core.sizes.splitting import Bin, DeviceKey, Split
from scheduler.core.values.constraints import Shape
from scheduler.core.values.memory import MemoryReport

TARGETS_MAX = 6  # of better layouts that are looked at, none of them far away

Number = TypeVar("Number", int, float)
Target = tuple[int, bool]  # blocks on devices, and whether the output is


class Space(Protocol):
    """One device set and the model that is laid onto it."""

    def layer_bytes(self) -> Sequence[int]:
        """Return the bytes of each layer on a device, the output last."""

    def layer_seconds(self, key: DeviceKey) -> Sequence[float]:
        """Return the seconds of each layer on this device, for a token."""

    def bins_beside(self, graphs: Mapping[DeviceKey, int], sizes: Sequence[int]) -> list[Bin]:
        """Return the devices with their room for layers, the roomiest first."""

    def split_exactly(self, bins: Sequence[Bin], sizes: Sequence[int], taken: int, *, output: bool) -> Split:
        """Split so many layers over all of these devices, filled in their fixed order."""

    def layout_of(self, split: Split) -> Layout | None:
        """Return the layout of a split; None: the host cannot hold its part."""

    def expected_s(self, layout: Layout) -> float:
        """Return the seconds for a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """Search for better layouts of one shape on one device set."""

    shape: Shape
    space: Space
    keys: Sequence[DeviceKey]  # of the set's devices
    devices_min: int
    in_any_order: bool  # else devices are filled as the splitter does it
    bounds: GraphBounds
    reports: Mapping[Layout, MemoryReport]  # what was measured

    def better(self, found: Layout | None) -> Layout | None:
        """Return the nearest better layout that may fit, by the best founded bound."""
        for bound, kind in self._in_order(found):
            layout = self._roomiest(kind, bound)
            if layout is not None and layout not in self.reports and len(layout.devices) == kind.devices:
                return layout
        return None

    def _in_order(self, found: Layout | None) -> Iterator[tuple[Bound, GraphKind]]:
        layers, most = len(self.space.layer_bytes()), len(self.keys)
        targets: list[Target] = [(layers - 1, True)]
        if self.shape is Shape.PARTIAL:
            have = target_of(found)
            order = [(blocks, output) for blocks in range(1, layers) for output in (False, True)]
            targets = [one for one in order if one > have][:TARGETS_MAX]
        elif found is not None:
            most = len(found.devices) - 1 if self.in_any_order else 0
        counts = range(self.devices_min, most + 1)
        kinds = [
            GraphKind(devices=count, taken=blocks + output, output=output)
            for blocks, output in targets
            for count in counts
        ]
        return itertools.product(Bound, self._possible(kinds))

    def _possible(self, kinds: Sequence[GraphKind]) -> list[GraphKind]:
        """Return the kinds whose layers fit so many devices if these held nothing else, in any order."""
        sizes = self.space.layer_bytes()
        rooms = [0, *itertools.accumulate(one.room_bytes for one in self.space.bins_beside({}, sizes))] if kinds else []
        return [kind for kind in kinds if sum(self._layers(kind, sizes)) <= rooms[kind.devices]]

    def _roomiest(self, kind: GraphKind, bound: Bound) -> Layout | None:
        """Return the layout on so many devices that leaves most free."""
        guess = self.bounds.guess(kind, self.keys, bound)
        bins = self.space.bins_beside(guess.graphs, self.space.layer_bytes())
        if self.in_any_order and kind.devices <= DEVICES_MAX:
            bins = bins[:DEVICES_MAX]
            parts = arranged(self._run(kind, guess, bins))
            return None if parts is None else self._layout(parts, bins, kind)
        bins, sizes = bins[: kind.devices], list(self.space.layer_bytes())
        sizes[-1] += max(guess.output_bytes.values(), default=0)
        if sum(self._layers(kind, sizes)) > sum(one.room_bytes for one in bins):
            return None  # however they are laid out
        split = self.space.split_exactly(bins, sizes, kind.taken, output=kind.output)
        return self.space.layout_of(split) if split.taken == kind.taken else None

    def faster(self, found: Layout) -> Layout | None:
        """Return a clearly faster layout of the same shape with the same layers on devices, if there is one."""
        if not self.in_any_order:
            return None
        blocks, output = target_of(found)
        counts = range(len(found.devices), len(found.devices) + 1)
        if self.shape is Shape.PARTIAL:
            counts = range(1, min(len(self.keys), DEVICES_MAX) + 1)
        kinds = [GraphKind(devices=count, taken=blocks + output, output=output) for count in counts]
        enough_s = self.space.expected_s(found) / SAME_TIME
        known = {layout: self.space.expected_s(layout) for kind in kinds for layout in self._ways(kind)}
        new = [layout for layout, seconds in known.items() if seconds < enough_s and layout not in self.reports]
        return min(new, key=lambda layout: known[layout], default=None)

    def _ways(self, kind: GraphKind) -> Iterator[Layout]:
        """Yield the fastest layout on every set of so many devices."""
        guess = self.bounds.guess(kind, self.keys, Bound.LIKE_THIS)
        seconds = {key: self._layers(kind, self.space.layer_seconds(key)) for key in self.keys}
        bins = self.space.bins_beside(guess.graphs, self.space.layer_bytes())
        bins = sorted(bins, key=lambda one: sum(seconds[one.key]))[:DEVICES_MAX]
        for parts in fastest(self._run(kind, guess, bins), [seconds[one.key] for one in bins]):
            if (layout := self._layout(parts, bins, kind)) is not None:
                yield layout

    def _run(self, kind: GraphKind, guess: Guess, bins: Sequence[Bin]) -> Run:
        """Return the run of blocks; a projector is on the first device, and counts with the first layer."""
        sizes = list(self._layers(kind, self.space.layer_bytes()))
        sizes[0] += guess.projector_bytes
        rooms = [one.room_bytes for one in bins]
        ends = [one.room_bytes - (guess.output_bytes[one.key] if kind.output else 0) for one in bins]
        return Run(sizes=sizes, rooms=rooms, end_rooms=ends, devices=kind.devices)

    def _layers(self, kind: GraphKind, values: Sequence[Number]) -> Sequence[Number]:
        """Return the values of the layers that are to be on devices."""
        end = len(values) - (not kind.output)
        return values[end - kind.taken : end]

    def _layout(self, parts: Parts, bins: Sequence[Bin], kind: GraphKind) -> Layout | None:
        split = Split(
            parts=tuple((bins[index].key, count) for index, count in parts),
            host_blocks=len(self.space.layer_bytes()) - 1 - (kind.taken - kind.output),
            output_on_host=not kind.output,
        )
        return self.space.layout_of(split)


def target_of(layout: Layout | None) -> Target:
    """Return the blocks on devices, then the output: a better layout has a larger value."""
    if layout is None:
        return 0, False
    taken = sum(part.layer_count for part in layout.devices)
    has_output = taken > 0 and not layout.output_on_host
    return taken - has_output, has_output
