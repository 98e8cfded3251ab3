"""The best layout that there is on one node, found without the planner: every set, order and cut of its devices.

What a device takes beside its layers is known once the number of devices, the number of layers and the place of the
output are. For each of these the end of the model is laid onto one device after the other, and of all ways in which
the same devices hold the same layers only the fastest is kept: five devices and twelve layers take milliseconds.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from common.spec.layout import DeviceLayers, Layout
from scheduler.core.values.constraints import Shape

ORDER = list(Shape)
Rank = tuple[int, int, int]  # lower is better: the shape, then devices or missing blocks, then a missing output
# Of so many devices with so many layers, with or without the output: bytes beside layers, and more beside the output.
Graphs = Callable[[int, int, bool], tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The fastest of the layouts that nothing outranks."""

    rank: Rank
    token_s: float
    layout: Layout


def rank_of(layout: Layout, layers: int) -> Rank:
    """Complete on few devices, else many blocks, else everything in host RAM."""
    taken = sum(part.layer_count for part in layout.devices)
    if taken == layers:
        shape = Shape.ONE_DEVICE if len(layout.devices) == 1 else Shape.ONE_NODE
        return ORDER.index(shape), len(layout.devices), 0
    blocks = taken - (not layout.output_on_host)
    if blocks > 0:
        return ORDER.index(Shape.PARTIAL), -blocks, int(layout.output_on_host)
    return ORDER.index(Shape.CPU), 0, 0  # the output alone on a device is no shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Force:
    """A problem of layout: layers, devices and their rooms."""

    sizes: Sequence[int]  # bytes of each layer on a device, the output last
    layer_s: Mapping[str, Sequence[float]]  # seconds for each layer, by device
    host_s: Sequence[float]  # the same in host RAM
    rooms: Mapping[str, int]  # bytes for layers and graphs, by device
    base: Layout

    def best(self, graphs: Graphs) -> Found:
        """Rank by rank, best first; the first that anything has."""
        for _, ways in itertools.groupby(self._ways(), key=lambda way: way[0]):
            found = [one for way in ways if (one := self._fastest(*way, graphs)) is not None]
            if found:
                return min(found, key=lambda one: one.token_s)
        layout = self.base.without_devices()
        return Found(rank=rank_of(layout, len(self.sizes)), token_s=sum(self.host_s), layout=layout)

    def _ways(self) -> Iterator[tuple[Rank, int, int, bool]]:
        """Ranks, and for each how many devices take how many layers with or without the output."""
        layers, most = len(self.sizes), len(self.rooms)
        for count in range(1, min(most, layers) + 1):
            shape = Shape.ONE_DEVICE if count == 1 else Shape.ONE_NODE
            yield (ORDER.index(shape), count, 0), count, layers, True
        for blocks in range(layers - 1, 0, -1):
            for output in (True, False):
                taken = blocks + output
                if taken == layers:
                    continue
                for count in range(1, min(most, taken) + 1):
                    yield (ORDER.index(Shape.PARTIAL), -blocks, int(not output)), count, taken, output

    def _fastest(self, rank: Rank, count: int, taken: int, output: bool, graphs: Graphs) -> Found | None:
        everywhere, beside_output = graphs(count, taken, output)
        end = len(self.sizes) if output else len(self.sizes) - 1
        goal = end - taken
        rooms = {name: room - everywhere for name, room in self.rooms.items()}
        # By the devices that are used: from where to the end they hold, how fast, and how.
        held: dict[tuple[frozenset[str], int], tuple[float, tuple[tuple[str, int], ...]]] = {
            (frozenset(), end): (0.0, ())
        }
        for placed in range(count):
            before, held = held, {}
            for (used, stop), (seconds, parts) in before.items():
                for name in self.rooms.keys() - used:
                    left = rooms[name] - (beside_output if not placed and output else 0)
                    spent = seconds
                    for start in range(stop - 1, goal + (count - placed - 1) - 1, -1):
                        left -= self.sizes[start]
                        if left < 0:
                            break
                        spent += self.layer_s[name][start]
                        key = used | {name}, start
                        if key not in held or spent < held[key][0]:
                            held[key] = spent, ((name, stop - start), *parts)
        ends = [one for (_, start), one in held.items() if start == goal]
        if not ends:
            return None
        seconds, parts = min(ends)
        on_host = [*self.host_s[:goal], *([] if output else [self.host_s[-1]])]
        devices = tuple(DeviceLayers(device_id=name, layer_count=layers) for name, layers in parts)
        layout = replace(self.base, devices=devices, output_on_host=not output)
        return Found(rank=rank, token_s=seconds + sum(on_host), layout=layout)
