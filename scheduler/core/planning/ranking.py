"""In which order grounds are tried: the fastest first; within a tenth, where most room is left."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from scheduler.core.planning.candidates import ClusterView, PlacementRequest
from scheduler.core.planning.grounds import Ground, Site, ground_of
from scheduler.core.sizes.ledger import overhead_bytes
from scheduler.core.sizes.rooms import Rooms
from scheduler.core.sizes.speeds import SAME_TIME, OwnedDevice, expected_s, speed_of
from scheduler.core.values.view import DeviceView, NodeView

Rank = tuple[int, float]  # nearness to other replicas, seconds for a token
_Ranked = TypeVar("_Ranked", Ground, Site)


def ranked(
    grounds: Sequence[Ground],
    request: PlacementRequest,
    view: ClusterView,
    rooms: Rooms,
    bytes_per_token: int,
    *,
    speeds_known: bool,
) -> Iterator[Ground]:
    """Best first. Another replica goes to another node, then to another device, then beside the first."""
    if not speeds_known and not view.decoding and not request.replicas:
        yield from roomiest_first(grounds, rooms)  # nothing but room tells them apart
        return
    groups: dict[Rank, list[Ground]] = {}
    for ground in grounds:
        step = bytes_per_token / _speed(ground, known=speeds_known)
        seconds = expected_s(step, ground.key[1], view.decoding)
        groups.setdefault((_nearness(ground.node, ground.devices, request), seconds), []).append(ground)
    for equals in _in_order(groups):
        yield from roomiest_first(equals, rooms)


def ranked_sites(
    sites: Sequence[Site],
    request: PlacementRequest,
    view: ClusterView,
    rooms: Rooms,
    bytes_per_token: int,
    *,
    speeds_known: bool,
) -> Iterator[Ground]:
    """The same for single devices: of thousands only those become grounds that are looked at."""
    if not speeds_known and not view.decoding and not request.replicas:
        yield from _roomiest_site_first(sites, rooms)
        return
    groups: dict[Rank, list[Site]] = {}
    for site in sites:
        _, node_id, device_id, one = site
        seconds = bytes_per_token / speed_of(one[1], known=speeds_known)
        seconds *= 1 + view.decoding.get((node_id, device_id), 0.0)
        nearness = _nearness(one[0], (one,), request) if request.replicas else 0
        groups.setdefault((nearness, seconds), []).append(site)
    for equals in _in_order(groups):
        yield from _roomiest_site_first(equals, rooms)


def _in_order(groups: Mapping[Rank, list[_Ranked]]) -> Iterator[list[_Ranked]]:
    """Lowest first; what is within a tenth of the lowest counts as equal."""
    pending = sorted(groups)
    while pending:
        nearness, best = pending[0]
        within = [rank for rank in pending if rank[0] == nearness and rank[1] <= best * SAME_TIME]
        yield [one for rank in within for one in groups[rank]]
        pending = pending[len(within) :]


def _roomiest_site_first(sites: Sequence[Site], rooms: Rooms) -> Iterator[Ground]:
    heap: list[tuple[int, str, str, OwnedDevice | Ground]] = list(sites)
    heapq.heapify(heap)
    while heap:
        _, node_id, device_id, found = heapq.heappop(heap)
        if isinstance(found, Ground):
            yield found
            continue
        room = rooms.on(*found).available_bytes
        heapq.heappush(heap, (-room, node_id, device_id, ground_of(found[0], (found,))))


def _nearness(node: NodeView, devices: Sequence[OwnedDevice], request: PlacementRequest) -> int:
    """0: no replica of the model on the node; 1: on another device of it; 2: on one of these devices."""
    if not request.replicas:
        return 0
    if any((owner.id, device.id) in request.replicas for owner, device in devices):
        return 2
    return int(any(node_id == node.id for node_id, _ in request.replicas))


def _speed(ground: Ground, *, known: bool) -> float:
    """Bytes a second: every device reads its part, one after the other."""
    if not ground.devices:
        host = ground.node.host_device
        return speed_of(host, known=known) if host is not None else 1.0
    return len(ground.devices) / sum([1 / speed_of(device, known=known) for _, device in ground.devices])


def roomiest_first(grounds: Sequence[Ground], rooms: Rooms) -> Iterator[Ground]:
    """Rooms are worked out only for as many grounds as are looked at: what is free now bounds them."""
    heap = [(-_most_bytes(ground, rooms), False, ground.key, ground) for ground in grounds]
    heapq.heapify(heap)
    while heap:
        _, is_exact, key, ground = heapq.heappop(heap)
        if is_exact:
            yield ground
            continue
        room = sum(rooms.on(node, device).available_bytes for node, device in _devices(ground))
        heapq.heappush(heap, (-room, True, key, ground))


def _most_bytes(ground: Ground, rooms: Rooms) -> int:
    """What is free, less what the machine keeps of its RAM: that is a large part, and alike on many nodes."""
    host = ground.node.host_device
    kept = overhead_bytes(host, rooms.policy) if host is not None and not ground.devices else 0
    return max(0, ground.free_bytes - kept)


def _devices(ground: Ground) -> Sequence[tuple[NodeView, DeviceView]]:
    if ground.devices:
        return ground.devices
    host = ground.node.host_device
    return ((ground.node, host),) if host is not None else ()
