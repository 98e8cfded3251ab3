"""Refinement of a layout after the loop has found one: a better one, or a faster one that is as good.

The loop plans with graphs as they were in its last layout. Here they are guessed from all that was measured, and layers
are laid out in any order of devices with any cuts. A guess may be wrong: what was measured then is known, and either
another arrangement fits with it, or none does.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from common.spec.layout import Layout
from scheduler.core.planning.fitting import Fitting
from scheduler.core.sizes.arranging import DEVICES_MAX, Parts, Run, arranged, fastest
from scheduler.core.sizes.graphs import Bound, GraphBounds, GraphKind, Guess, kind_of
from scheduler.core.sizes.speeds import SAME_TIME
from scheduler.core.sizes.splitting import Bin, DeviceKey, Split
from scheduler.core.values.constraints import Shape
from scheduler.core.values.memory import MemoryReport

TARGETS_MAX = 6  # of better layouts that are looked at, none of them far away

Number = TypeVar("Number", int, float)
Target = tuple[int, bool]  # blocks on devices, and whether the output is


@dataclass(frozen=True)
class Refinement:
    """Search for better layouts of one shape on one device set, among what was measured there."""

    fitting: Fitting
    reports: Mapping[Layout, MemoryReport]

    @cached_property
    def _bounds(self) -> GraphBounds:
        return GraphBounds(self.reports, self.fitting.device_set.node.id)

    @property
    def _keys(self) -> Sequence[DeviceKey]:
        return self.fitting.device_set.key[1]

    def better(self, found: Layout | None) -> Layout | None:
        """Return the nearest better layout that may fit, by the best founded bound."""
        if self.fitting.shape in (Shape.CPU, Shape.EXPERTS_ON_HOST) or self.fitting.constraints.tensor_split:
            return None
        for bound, kind in self._in_order(found):
            layout = self._roomiest(kind, bound)
            if layout is not None and layout not in self.reports and len(layout.devices) == kind.devices:
                return layout
        return None

    def _in_order(self, found: Layout | None) -> Iterator[tuple[Bound, GraphKind]]:
        layers, most = len(self.fitting.sizes.on_devices()), len(self._keys)
        targets: list[Target] = [(layers - 1, True)]
        if self.fitting.shape is Shape.PARTIAL:
            have = target_of(found)
            order = [(blocks, output) for blocks in range(1, layers) for output in (False, True)]
            targets = [one for one in order if one > have][:TARGETS_MAX]
        elif found is not None:
            most = len(found.devices) - 1 if self.fitting.in_any_order else 0
        counts = range(self.fitting.devices_min, most + 1)
        kinds = [
            GraphKind(devices=count, taken=blocks + output, output=output)
            for blocks, output in targets
            for count in counts
        ]
        return itertools.product(Bound, self._possible(kinds))

    def _possible(self, kinds: Sequence[GraphKind]) -> list[GraphKind]:
        """Return the kinds whose layers fit so many devices if these held nothing else, in any order."""
        sizes = self.fitting.sizes.on_devices()
        rooms = (
            [0, *itertools.accumulate(one.room_bytes for one in self.fitting.bins_beside({}, sizes))] if kinds else []
        )
        return [kind for kind in kinds if sum(self._layers(kind, sizes)) <= rooms[kind.devices]]

    def _roomiest(self, kind: GraphKind, bound: Bound) -> Layout | None:
        """Return the layout on so many devices that leaves most free."""
        guess = self._bounds.guess(kind, self._keys, bound)
        bins = self.fitting.bins_beside(guess.graphs, self.fitting.sizes.on_devices())
        if self.fitting.in_any_order and kind.devices <= DEVICES_MAX:
            bins = bins[:DEVICES_MAX]
            parts = arranged(self._run(kind, guess, bins))
            return None if parts is None else self._layout(parts, bins, kind)
        bins, sizes = bins[: kind.devices], list(self.fitting.sizes.on_devices())
        sizes[-1] += max(guess.output_bytes.values(), default=0)
        if sum(self._layers(kind, sizes)) > sum(one.room_bytes for one in bins):
            return None  # however they are laid out
        split = self.fitting.split_exactly(bins, sizes, kind.taken, output=kind.output)
        return self.fitting.layout_of(split) if split.taken == kind.taken else None

    def faster(self, found: Layout) -> Layout | None:
        """Return a clearly faster layout of the same shape with the same layers on devices, if there is one."""
        constraints = self.fitting.constraints
        if self.fitting.shape not in (Shape.ONE_NODE, Shape.PARTIAL) or not self.fitting.speeds_known:
            return None
        if constraints.tensor_split or constraints.names_main_gpu or not self.fitting.in_any_order:
            return None
        blocks, output = target_of(found)
        counts = range(len(found.devices), len(found.devices) + 1)
        if self.fitting.shape is Shape.PARTIAL:
            counts = range(1, min(len(self._keys), DEVICES_MAX) + 1)
        kinds = [GraphKind(devices=count, taken=blocks + output, output=output) for count in counts]
        enough_s = self.fitting.expected_s(found) / SAME_TIME
        known = {layout: self.fitting.expected_s(layout) for kind in kinds for layout in self._ways(kind)}
        new = [layout for layout, seconds in known.items() if seconds < enough_s and layout not in self.reports]
        return min(new, key=lambda layout: known[layout], default=None)

    def _ways(self, kind: GraphKind) -> Iterator[Layout]:
        """Yield the fastest layout on every set of so many devices."""
        guess = self._bounds.guess(kind, self._keys, Bound.LIKE_THIS)
        seconds = {key: self._layers(kind, self.fitting.layer_seconds(key)) for key in self._keys}
        bins = self.fitting.bins_beside(guess.graphs, self.fitting.sizes.on_devices())
        bins = sorted(bins, key=lambda one: sum(seconds[one.key]))[:DEVICES_MAX]
        for parts in fastest(self._run(kind, guess, bins), [seconds[one.key] for one in bins]):
            if (layout := self._layout(parts, bins, kind)) is not None:
                yield layout

    def _run(self, kind: GraphKind, guess: Guess, bins: Sequence[Bin]) -> Run:
        """Return the run of blocks; a projector is on the first device, and counts with the first layer."""
        sizes = list(self._layers(kind, self.fitting.sizes.on_devices()))
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
            host_blocks=len(self.fitting.sizes.on_devices()) - 1 - (kind.taken - kind.output),
            output_on_host=not kind.output,
        )
        return self.fitting.layout_of(split)


def target_of(layout: Layout | None) -> Target:
    """Return the blocks on devices, then the output: a better layout has a larger value."""
    if layout is None:
        return 0, False
    kind = kind_of(layout)
    return kind.taken - kind.output, kind.output
