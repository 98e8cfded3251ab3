"""Layers onto exactly so many devices, in any order of them and with any cuts. Numbers in, numbers out.

The splitter fills devices in a fixed order. Where layers differ in size, or the output adds to the graph of its device,
another order or other cuts may hold what that one does not, or make a token faster.

Both searches lay the end of the run onto one device after the other, and keep one way for every set of devices that
is used up: the one that reaches farthest, or the fastest for every place that it reaches.
"""

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

DEVICES_MAX = 6  # 2^n sets of them are looked at
SPARE_STEP_BYTES = 1 << 20  # what is left beside a run is known to the MiB

Parts = tuple[tuple[int, int], ...]  # device by its index, layers; the first layer first


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Layers that all lie on devices, one behind the other, and the devices."""

    sizes: Sequence[int]  # bytes of each layer
    rooms: Sequence[int]  # bytes of each device
    end_rooms: Sequence[int]  # of the device with the last layer, which may have less
    devices: int  # exactly so many of them are used, each for one layer at least

    @property
    def sums(self) -> list[int]:
        """Return the bytes before each layer, and of all."""
        return [0, *itertools.accumulate(self.sizes)]

    @property
    def is_possible(self) -> bool:
        """Return True if the arrangement is worth a try."""
        return 0 < self.devices <= min(len(self.rooms), len(self.sizes)) and len(self.rooms) <= DEVICES_MAX


def arranged(run: Run) -> Parts | None:
    """Return the way that leaves most free on every device alike. None: so many devices do not hold the run."""
    most = sum(sorted(run.rooms)[-run.devices :])
    sums = run.sums
    if not run.is_possible or most < sums[-1]:
        return None
    best = _in_any_order(run, sums, 0)
    if best is None:
        return None
    low, high = 0, (most - sums[-1]) // run.devices + 1
    while high - low > SPARE_STEP_BYTES:
        middle = (low + high) // 2
        found = _in_any_order(run, sums, middle)
        if found is None:
            high = middle
        else:
            best, low = found, middle
    return best


def _in_any_order(run: Run, sums: Sequence[int], spare: int) -> Parts | None:
    """Compute for every set of devices its reach from the end and its last device."""
    end = len(run.sizes)
    beyond = end + 1, -1  # of sets that some device adds nothing to
    reaches: list[tuple[int, int]] = [(end, -1)]
    for members in range(1, 1 << len(run.rooms)):
        left = run.devices - members.bit_count()
        reach = beyond
        for index in range(len(run.rooms) if left >= 0 else 0):
            if members >> index & 1:
                stop = reaches[members ^ (1 << index)][0]
                room = (run.end_rooms if stop == end else run.rooms)[index] - spare
                # The devices that are left need a layer each.
                start = max(left, bisect_left(sums, sums[stop] - room, 0, stop)) if stop <= end else stop
                if start < stop:
                    reach = min(reach, (start, index))
        reaches.append(reach)
        if left == 0 and reach[0] == 0:
            return _parts(reaches, members)
    return None


def _parts(reaches: Sequence[tuple[int, int]], members: int) -> Parts:
    parts = list[tuple[int, int]]()
    while members:
        start, index = reaches[members]
        members ^= 1 << index
        parts.append((index, reaches[members][0] - start))
    return tuple(parts)


def fastest(run: Run, seconds: Sequence[Sequence[float]]) -> Iterator[Parts]:
    """Yield, for every set of so many devices that holds the run, the way with the least time for a token.

    `seconds` are those of every layer, by device.
    """
    if not run.is_possible:
        return
    sums, end = run.sums, len(run.sizes)
    spent = [[0.0, *itertools.accumulate(one)] for one in seconds]
    # By set: seconds from a layer to the end, and the device and the stop of the range that begins there.
    ways: dict[int, dict[int, tuple[float, int, int]]] = {0: {end: (0.0, -1, end)}}
    for members in range(1, 1 << len(run.rooms)):
        left = run.devices - members.bit_count()
        if left < 0:
            continue
        found = ways[members] = dict[int, tuple[float, int, int]]()
        for index in range(len(run.rooms)):
            if not members >> index & 1:
                continue
            for stop, (before, _, _) in ways[members ^ (1 << index)].items():
                room = (run.end_rooms if stop == end else run.rooms)[index]
                for start in range(max(left, bisect_left(sums, sums[stop] - room, 0, stop)), stop):
                    way = before + spent[index][stop] - spent[index][start], index, stop
                    if start not in found or way < found[start]:
                        found[start] = way
        if left == 0 and 0 in found:
            yield _followed(ways, members)


def _followed(ways: dict[int, dict[int, tuple[float, int, int]]], members: int) -> Parts:
    """Return the ranges of a way, from its first layer."""
    parts, start = list[tuple[int, int]](), 0
    while members:
        _, index, stop = ways[members][start]
        parts.append((index, stop - start))
        start, members = stop, members ^ (1 << index)
    return tuple(parts)
