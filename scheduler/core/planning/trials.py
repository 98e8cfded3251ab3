"""Which layout is worth measuring beyond what the loop has found: one that is better, or as good and faster.

The loop plans with graphs as they were in its last layout. Here they are guessed from all that was measured, and layers
are laid out in any order of devices with any cuts. A guess may be wrong: what was measured then is known, and either
another arrangement fits with it, or none does.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from scheduler.core.sizes.arranging import DEVICES_MAX, Parts, Run, arranged, fastest
from scheduler.core.sizes.graph_hopes import GraphHopes, Guess, Hope, Kind
from scheduler.core.sizes.speeds import SAME_TIME
from scheduler.core.sizes.splitting import Bin, DeviceKey, Split
from scheduler.core.values.constraints import Shape
from scheduler.core.values.layouts import Layout
from scheduler.core.values.memory import MemoryReport

TARGETS_MAX = 6  # of better layouts that are looked at, none of them far away

Number = TypeVar("Number", int, float)
Target = tuple[int, bool]  # blocks on devices, and whether the output is


class Space(Protocol):
    """The devices of one ground, and the model that is laid onto them."""

    def layer_bytes(self) -> Sequence[int]:
        """Of each layer on a device, the output last."""

    def layer_seconds(self, key: DeviceKey) -> Sequence[float]:
        """For a token, of each layer on this device."""

    def bins_beside(self, graphs: Mapping[DeviceKey, int], sizes: Sequence[int]) -> list[Bin]:
        """Devices with their room for layers, the roomiest first."""

    def split_exactly(self, bins: Sequence[Bin], sizes: Sequence[int], taken: int, *, output: bool) -> Split:
        """So many layers over all of these devices, filled in their fixed order."""

    def layout_of(self, split: Split) -> Layout | None:
        """None: the host does not hold what is left to it."""

    def expected_s(self, layout: Layout) -> float:
        """Seconds for a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """For one shape on one ground."""

    shape: Shape
    space: Space
    keys: Sequence[DeviceKey]  # devices of the ground
    devices_min: int
    in_any_order: bool  # else devices are filled as the splitter does it
    hopes: GraphHopes
    reports: Mapping[Layout, MemoryReport]  # what was measured

    def better(self, found: Layout | None) -> Layout | None:
        """The nearest better layout that may fit; of those the best founded."""
        for hope, kind in self._in_order(found):
            layout = self._roomiest(kind, hope)
            if layout is not None and layout not in self.reports and len(layout.devices) == kind.devices:
                return layout
        return None

    def _in_order(self, found: Layout | None) -> Iterator[tuple[Hope, Kind]]:
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
            Kind(devices=count, taken=blocks + output, output=output) for blocks, output in targets for count in counts
        ]
        return itertools.product(Hope, self._possible(kinds))

    def _possible(self, kinds: Sequence[Kind]) -> list[Kind]:
        """Those whose layers so many devices could hold if they took nothing else, however they are laid out."""
        sizes = self.space.layer_bytes()
        rooms = [0, *itertools.accumulate(one.room_bytes for one in self.space.bins_beside({}, sizes))] if kinds else []
        return [kind for kind in kinds if sum(self._layers(kind, sizes)) <= rooms[kind.devices]]

    def _roomiest(self, kind: Kind, hope: Hope) -> Layout | None:
        """The way that leaves most free on so many devices."""
        guess = self.hopes.guess(kind, self.keys, hope)
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
        """A layout of the same shape and with the same layers on devices that is clearly faster, if there is one."""
        if not self.in_any_order:
            return None
        blocks, output = target_of(found)
        counts = range(len(found.devices), len(found.devices) + 1)
        if self.shape is Shape.PARTIAL:
            counts = range(1, min(len(self.keys), DEVICES_MAX) + 1)
        kinds = [Kind(devices=count, taken=blocks + output, output=output) for count in counts]
        enough_s = self.space.expected_s(found) / SAME_TIME
        known = {layout: self.space.expected_s(layout) for kind in kinds for layout in self._ways(kind)}
        new = [layout for layout, seconds in known.items() if seconds < enough_s and layout not in self.reports]
        return min(new, key=lambda layout: known[layout], default=None)

    def _ways(self, kind: Kind) -> Iterator[Layout]:
        """The fastest on every set of so many devices."""
        guess = self.hopes.guess(kind, self.keys, Hope.LIKE_THIS)
        seconds = {key: self._layers(kind, self.space.layer_seconds(key)) for key in self.keys}
        bins = self.space.bins_beside(guess.graphs, self.space.layer_bytes())
        bins = sorted(bins, key=lambda one: sum(seconds[one.key]))[:DEVICES_MAX]
        for parts in fastest(self._run(kind, guess, bins), [seconds[one.key] for one in bins]):
            if (layout := self._layout(parts, bins, kind)) is not None:
                yield layout

    def _run(self, kind: Kind, guess: Guess, bins: Sequence[Bin]) -> Run:
        """What sees lies on the first device, and counts with the first layer."""
        sizes = list(self._layers(kind, self.space.layer_bytes()))
        sizes[0] += guess.projector_bytes
        rooms = [one.room_bytes for one in bins]
        ends = [one.room_bytes - (guess.output_bytes[one.key] if kind.output else 0) for one in bins]
        return Run(sizes=sizes, rooms=rooms, end_rooms=ends, devices=kind.devices)

    def _layers(self, kind: Kind, values: Sequence[Number]) -> Sequence[Number]:
        """Of the layers that are to lie on devices."""
        end = len(values) - (not kind.output)
        return values[end - kind.taken : end]

    def _layout(self, parts: Parts, bins: Sequence[Bin], kind: Kind) -> Layout | None:
        split = Split(
            parts=tuple((bins[index].key, count) for index, count in parts),
            host_blocks=len(self.space.layer_bytes()) - 1 - (kind.taken - kind.output),
            output_on_host=not kind.output,
        )
        return self.space.layout_of(split)


def target_of(layout: Layout | None) -> Target:
    """Blocks on devices, then the output: what is better is larger."""
    if layout is None:
        return 0, False
    taken = sum(part.layer_count for part in layout.devices)
    has_output = taken > 0 and not layout.output_on_host
    return taken - has_output, has_output
