"""From sizes and rooms to layers per device. Numbers in, numbers out.

Layers 0…L−1 are blocks, L is the output. They are cut into contiguous ranges, block 0 side first; what no device takes
stays in host RAM, beginning with block 0.

1. All layers; then, if that was not complete, without the output: better to lose the output than blocks.
2. *pack*: the fewest devices that hold everything, the roomiest first; *spread*, or if nothing holds it: all.
3. Within a set the fastest class takes first. In a class every device gives the same part of its room, the smallest
   part with which the class still takes as many layers: that evens out in proportion to room.
4. A fixed order of devices can leave layers behind that another order takes: then every order is tried. Devices of a
   node stay together all the same, and the first node keeps the end: what crosses a network is cuts between nodes.
"""

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

DeviceKey = tuple[str, str]  # node id, device id

FACTOR_STEP_MIN = 1e-6
FACTOR_EXCEEDING = 1000.0  # a count that the user gave may exceed the room; the reserve check decides
SETS_MAX = 128  # all sets of a node of eight; each is a plan of its own, and thousands of them would take seconds
SETS_OF_MANY_MAX = 32  # of more devices than that, whose sets are larger, too
ANY_ORDER_DEVICES_MAX = 6  # 2^n sets of them are looked at, in every round of a plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """A device as the splitter sees it."""

    key: DeviceKey
    room_bytes: int
    speed_class: int = 0  # 0 is the fastest


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Number of layers on each device, block 0 side first; devices without layers are left out."""

    parts: tuple[tuple[DeviceKey, int], ...]
    host_blocks: int  # block 0 up to here lie in host RAM
    output_on_host: bool = False

    @property
    def taken(self) -> int:
        """Count the layers on devices; the output counts as one."""
        return sum(count for _, count in self.parts)

    @property
    def is_complete(self) -> bool:
        """Return True if nothing is left for host RAM."""
        return self.host_blocks == 0 and not self.output_on_host

    @property
    def worth(self) -> tuple[int, int]:
        """Return the rank of a split; larger is better: blocks on devices first, then the output."""
        return self.taken - (not self.output_on_host), int(not self.output_on_host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """Policy for filling devices."""

    spread: bool = False
    given_layers: int | None = None  # exactly so many, the output counts as one; None: as many as fit
    may_exceed: bool = False
    output: bool | None = None  # whether the output lies on a device; None: whatever is better
    only_complete: bool = False  # what leaves layers to the host is of no use, and not worked out
    devices_min: int = 1  # fewer were tried and did not do: going back would go in circles
    score: Callable[[Split], tuple[object, ...]] | None = field(default=None)  # of splits over equally many devices


FILLING = Filling()


def split_layers(sizes: Sequence[int], bins: Sequence[Bin], filling: Filling = FILLING) -> Split:
    """Lay `sizes` (the output last) onto devices."""
    if filling.output is not None:
        return _pack(sizes if filling.output else sizes[:-1], bins, filling, has_output=filling.output)
    wanted = len(sizes) if filling.given_layers is None else min(filling.given_layers, len(sizes))
    with_output = _pack(sizes, bins, filling, has_output=True)
    if with_output.taken >= wanted:
        return with_output
    without_output = _pack(sizes[:-1], bins, filling, has_output=False)
    return max(with_output, without_output, key=lambda split: split.worth)


def _pack(layers: Sequence[int], bins: Sequence[Bin], filling: Filling, *, has_output: bool) -> Split:
    order = sorted(bins, key=lambda one: (-one.room_bytes, one.key))
    lay = _Layer(layers, filling, has_output=has_output)
    if not filling.spread:
        for count in range(max(1, filling.devices_min), len(order)):
            if lay.holds(order[:count]):
                return _best_of_size(lay, order, count, lay.over(order[:count]), filling)
    if filling.only_complete and not lay.holds(order):
        return Split(parts=(), host_blocks=len(layers) - has_output, output_on_host=True)
    everywhere = lay.over(order)
    if everywhere.taken < lay.wanted and filling.given_layers is not None and filling.may_exceed:
        return lay.over(order, factor_max=FACTOR_EXCEEDING)
    return everywhere


def _best_of_size(lay: "_Layer", order: Sequence[Bin], count: int, roomiest: Split, filling: Filling) -> Split:
    """Return the best split over a set of so many devices that holds everything."""
    if filling.score is None:
        return roomiest
    best, best_score = roomiest, filling.score(roomiest)
    for members in itertools.combinations(_looked_at(order, count), count):
        if members == tuple(order[:count]) or not lay.holds(members):
            continue
        split = lay.over(members)
        if (score := filling.score(split)) < best_score:
            best, best_score = split, score
    return best


def _looked_at(order: Sequence[Bin], count: int) -> Sequence[Bin]:
    """Return the devices to try, roomiest first; if there are too many, the fastest of them."""
    most = len(order)
    if math.comb(most, count) <= SETS_MAX:
        return order
    while math.comb(most, count) > SETS_OF_MANY_MAX:
        most -= 1
    fastest = sorted(order, key=lambda one: (one.speed_class, -one.room_bytes, one.key))[:most]
    return sorted(fastest, key=lambda one: (-one.room_bytes, one.key))


class _Layer:
    """Lays one run of layers over sets of devices."""

    def __init__(self, layers: Sequence[int], filling: Filling, *, has_output: bool) -> None:
        self.count = len(layers)
        given = filling.given_layers
        self.wanted = self.count if given is None else min(given, self.count)
        self._sums = [0, *itertools.accumulate(layers)]
        self._has_output = has_output
        self._blocks = self.count - has_output

    @property
    def wanted_bytes(self) -> int:
        """Return the bytes of the layers that are to be on devices."""
        return self._sums[self.count] - self._sums[self.count - self.wanted]

    def holds(self, bins: Sequence[Bin]) -> bool:
        """Return True if `over` would place all wanted layers; much quicker, because nothing is balanced."""
        if sum(one.room_bytes for one in bins) < self.wanted_bytes:
            return False
        start, goal = self.count, self.count - self.wanted
        for speed_class in sorted({one.speed_class for one in bins}):
            start = self._fill([one for one in bins if one.speed_class == speed_class], start, 1.0)[0]
        return start == goal or (len(bins) <= ANY_ORDER_DEVICES_MAX and self._in_any_order(bins)[0] == goal)

    def over(self, bins: Sequence[Bin], *, factor_max: float = 1.0) -> Split:
        """Split over these devices, the roomiest of them first."""
        start, parts = self.count, list[tuple[DeviceKey, int]]()
        for speed_class in sorted({one.speed_class for one in bins}):
            members = [one for one in bins if one.speed_class == speed_class]
            starts = self._balance(members, start, factor_max)
            ends = [*starts[1:], start]
            parts = [(one.key, end - begin) for one, begin, end in zip(members, starts, ends, strict=True)] + parts
            start = starts[0]
        goal = self.count - self.wanted
        holds = sum(one.room_bytes for one in bins)
        if start > goal and len(bins) <= ANY_ORDER_DEVICES_MAX and holds >= self._sums[self.count] - self._sums[start]:
            other_start, other_parts = self._in_any_order(bins)
            if other_start < start:
                start, parts = other_start, other_parts
        return Split(
            parts=tuple((key, count) for key, count in parts if count),
            host_blocks=min(start, self._blocks),
            output_on_host=not self._has_output or start == self.count,
        )

    def _balance(self, members: Sequence[Bin], stop: int, factor_max: float) -> list[int]:
        """Return the start of each device's range, with the smallest share of the rooms that takes as many layers."""
        best = self._fill(members, stop, factor_max)
        if len(members) == 1:
            return best  # no other device to balance with
        low, high = 0.0, factor_max
        while high - low > FACTOR_STEP_MIN:
            middle = (low + high) / 2
            starts = self._fill(members, stop, middle)
            if starts[0] == best[0]:
                best, high = starts, middle
            else:
                low = middle
        return best

    def _fill(self, members: Sequence[Bin], stop: int, factor: float) -> list[int]:
        """Fill from the last layer backwards, from the least roomy device to the roomiest."""
        starts = [0] * len(members)
        for index in range(len(members) - 1, -1, -1):
            stop = starts[index] = self._reach(stop, int(members[index].room_bytes * factor))
        return starts

    def _reach(self, stop: int, room_bytes: int) -> int:
        """Return the first layer of the longest range that ends before `stop` and fits."""
        start = bisect_left(self._sums, self._sums[stop] - room_bytes, 0, stop)
        return max(start, min(stop, self.count - self.wanted))

    def _in_any_order(self, bins: Sequence[Bin]) -> tuple[int, list[tuple[DeviceKey, int]]]:
        """Return the order of devices and nodes that takes most, with its first layer. The first node stays first."""
        first, *others = _by_node(bins)
        ways = (self._node_by_node([first, *order]) for order in itertools.permutations(others))
        return min(ways, key=lambda way: way[0])

    def _node_by_node(self, nodes: Iterable[Sequence[Bin]]) -> tuple[int, list[tuple[DeviceKey, int]]]:
        start, parts = self.count, list[tuple[DeviceKey, int]]()
        for bins in nodes:
            start, before = self._over_node(bins, start)
            parts = before + parts
        return start, parts

    def _over_node(self, bins: Sequence[Bin], stop: int) -> tuple[int, list[tuple[DeviceKey, int]]]:
        """Return the order of a node's devices that takes most before `stop`: for every set of them, its reach."""
        reaches: list[tuple[int, int]] = [(stop, -1)]  # per set: first layer, the device that came last
        for members in range(1, 1 << len(bins)):
            reaches.append(
                min(
                    (self._reach(reaches[members ^ (1 << index)][0], one.room_bytes), index)
                    for index, one in enumerate(bins)
                    if members >> index & 1
                )
            )
        members, parts = len(reaches) - 1, list[tuple[DeviceKey, int]]()
        while members:
            start, index = reaches[members]
            members ^= 1 << index
            parts.append((bins[index].key, reaches[members][0] - start))
        return reaches[-1][0], parts


def _by_node(bins: Sequence[Bin]) -> list[list[Bin]]:
    """Group devices by node, the one that is filled first at the beginning: of several the runner's."""
    nodes: dict[str, list[Bin]] = {}
    for one in bins:
        nodes.setdefault(one.key[0], []).append(one)
    return sorted(nodes.values(), key=lambda members: min(one.speed_class for one in members))
