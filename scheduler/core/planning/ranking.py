"""Order of device sets: the fastest first; within a tenth, those with most room left.

Of sets of nodes that may hold a model together: the fewest, of equal builds, those with the most room first.
"""

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from scheduler.core.planning.candidates import ClusterView, PlacementRequest
from scheduler.core.planning.device_sets import DEVICES_MAX, DeviceSet, DeviceSets, Site, device_set_of
from scheduler.core.sizes.ledger import overhead_bytes
from scheduler.core.sizes.rooms import Rooms
from scheduler.core.sizes.speeds import SAME_TIME, OwnedDevice, expected_s, speed_of
from scheduler.core.values.view import DeviceView, NodeView

NODES_LOOKED_AT = 6  # of each build: sets of roomier nodes hold whatever sets of others hold
Rank = tuple[int, float]  # nearness to other replicas, seconds for a token
_Ranked = TypeVar("_Ranked", DeviceSet, Site)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Order for one request, best first: another replica goes to another node, then to another device."""

    request: PlacementRequest
    view: ClusterView
    rooms: Rooms
    bytes_per_token: int
    speeds_known: bool

    def sets(self, device_sets: Sequence[DeviceSet]) -> Iterator[DeviceSet]:
        """Yield sets of devices."""
        for equals in self._groups(device_sets, self._rank):
            yield from roomiest_first(equals, self.rooms)

    def sites(self, sites: Sequence[Site]) -> Iterator[DeviceSet]:
        """Yield single devices; of thousands only those that are tried become device sets."""
        for equals in self._groups(sites, self._rank_site):
            yield from _roomiest_site_first(equals, self.rooms)

    def _groups(self, ones: Sequence[_Ranked], rank: Callable[[_Ranked], Rank]) -> Iterator[Sequence[_Ranked]]:
        if not self.speeds_known and not self.view.decoding and not self.request.replicas:
            yield ones  # they differ in room only
            return
        groups: dict[Rank, list[_Ranked]] = {}
        for one in ones:
            groups.setdefault(rank(one), []).append(one)
        yield from _in_order(groups)

    def _rank(self, device_set: DeviceSet) -> Rank:
        step = self.bytes_per_token / _speed(device_set, known=self.speeds_known)
        seconds = expected_s(step, device_set.key[1], self.view.decoding)
        return _nearness(device_set.node, device_set.devices, self.request), seconds

    def _rank_site(self, site: Site) -> Rank:
        _, node_id, device_id, one = site
        seconds = self.bytes_per_token / speed_of(one[1], known=self.speeds_known)
        seconds *= 1 + self.view.decoding.get((node_id, device_id), 0.0)
        return _nearness(one[0], (one,), self.request) if self.request.replicas else 0, seconds


def _in_order(groups: Mapping[Rank, list[_Ranked]]) -> Iterator[list[_Ranked]]:
    """Yield groups, lowest first; values within a tenth of the lowest count as equal."""
    pending = sorted(groups)
    while pending:
        nearness, best = pending[0]
        within = [rank for rank in pending if rank[0] == nearness and rank[1] <= best * SAME_TIME]
        yield [one for rank in within for one in groups[rank]]
        pending = pending[len(within) :]


def _roomiest_site_first(sites: Sequence[Site], rooms: Rooms) -> Iterator[DeviceSet]:
    heap: list[tuple[int, str, str, OwnedDevice | DeviceSet]] = list(sites)
    heapq.heapify(heap)
    while heap:
        _, node_id, device_id, found = heapq.heappop(heap)
        if isinstance(found, DeviceSet):
            yield found
            continue
        room = rooms.on(*found).available_bytes
        heapq.heappush(heap, (-room, node_id, device_id, device_set_of(found[0], (found,))))


def _nearness(node: NodeView, devices: Sequence[OwnedDevice], request: PlacementRequest) -> int:
    """Return 0: no replica of the model on the node; 1: on another device of it; 2: on one of these devices."""
    if not request.replicas:
        return 0
    if any((owner.id, device.id) in request.replicas for owner, device in devices):
        return 2
    return int(any(node_id == node.id for node_id, _ in request.replicas))


def _speed(device_set: DeviceSet, *, known: bool) -> float:
    """Return bytes a second: every device reads its part, one after the other."""
    if not device_set.devices:
        host = device_set.node.host_device
        return speed_of(host, known=known) if host is not None else 1.0
    return len(device_set.devices) / sum([1 / speed_of(device, known=known) for _, device in device_set.devices])


def roomiest_first(device_sets: Sequence[DeviceSet], rooms: Rooms) -> Iterator[DeviceSet]:
    """Yield device sets, most room first. Free bytes bound a room, so it is computed only for sets that are used."""
    heap = [(-_most_bytes(device_set, rooms), False, device_set.key, device_set) for device_set in device_sets]
    heapq.heapify(heap)
    while heap:
        _, is_exact, key, device_set = heapq.heappop(heap)
        if is_exact:
            yield device_set
            continue
        room = sum(rooms.on(node, device).available_bytes for node, device in _devices(device_set))
        heapq.heappush(heap, (-room, True, key, device_set))


def _most_bytes(device_set: DeviceSet, rooms: Rooms) -> int:
    """Return the free bytes, less the machine's reserve of RAM, which is large and alike on many nodes."""
    host = device_set.node.host_device
    kept = overhead_bytes(host, rooms.policy) if host is not None and not device_set.devices else 0
    return max(0, device_set.free_bytes - kept)


def _devices(device_set: DeviceSet) -> Sequence[tuple[NodeView, DeviceView]]:
    if device_set.devices:
        return device_set.devices
    host = device_set.node.host_device
    return ((device_set.node, host),) if host is not None else ()


def node_sets(device_sets: DeviceSets, rooms: Rooms, *, nodes_max: int) -> Iterator[DeviceSet]:
    """Yield sets of two nodes, then of three and more. The head has the file, and takes the end of the model."""
    with_file = {device_set.node.id for joint in device_sets.joint.values() for device_set in joint}
    builds: dict[str, list[DeviceSet]] = {}
    for device_set in device_sets.lenders:
        builds.setdefault(device_set.node.engine_build, []).append(device_set)
    members: list[tuple[DeviceSet, ...]] = []
    for _, lenders in sorted(builds.items()):
        roomiest = tuple(itertools.islice(roomiest_first(lenders, rooms), NODES_LOOKED_AT))
        heads = (one for one in lenders if one.node.id in with_file and one not in roomiest)
        members.append((*roomiest, *itertools.islice(heads, 1)))
    for count in range(2, nodes_max + 1):
        for one_build in members:
            yield from _sets_of(count, one_build, with_file, rooms)


def _sets_of(count: int, members: Sequence[DeviceSet], with_file: set[str], rooms: Rooms) -> Iterator[DeviceSet]:
    for chosen in itertools.combinations(members, count):
        head = next((device_set for device_set in chosen if device_set.node.id in with_file), None)
        if head is None:
            continue
        others = [one for one in chosen if one is not head]
        devices = _roomiest([*head.devices, *itertools.chain.from_iterable(one.devices for one in others)], rooms)
        if len({node.id for node, _ in devices}) == count:  # else fewer nodes do as well
            yield device_set_of(head.node, devices)


def _roomiest(devices: Sequence[OwnedDevice], rooms: Rooms) -> Sequence[OwnedDevice]:
    """Return the roomiest devices, at most as many as a layout may name, in their given order."""
    if len(devices) <= DEVICES_MAX:
        return devices
    by_room = sorted(devices, key=lambda one: (-rooms.on(*one).available_bytes, one[0].id, one[1].id))
    kept = {(node.id, device.id) for node, device in by_room[:DEVICES_MAX]}
    return [(node, device) for node, device in devices if (node.id, device.id) in kept]
