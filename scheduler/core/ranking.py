"""In which order grounds are tried (spec: 4.5): the fastest first; within a tenth, where most room is left."""

import heapq
from collections.abc import Iterator, Sequence

from scheduler.core.candidates import ClusterView, PlacementRequest
from scheduler.core.grounds import Ground, Site, ground_of
from scheduler.core.rooms import Rooms
from scheduler.core.speeds import SAME_TIME, OwnedDevice, expected_s, speed_of
from scheduler.core.view import DeviceView, NodeView


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
    if are_equal(request, view, speeds_known=speeds_known):
        yield from _roomiest_first(grounds, rooms)
        return
    groups: dict[tuple[int, float], list[Ground]] = {}
    for ground in grounds:
        step = bytes_per_token / _speed(ground, known=speeds_known)
        seconds = expected_s(step, ground.devices, view.decoding)
        groups.setdefault((_nearness(ground, request), seconds), []).append(ground)
    pending = sorted(groups)
    while pending:
        nearness, best = pending[0]
        within = [key for key in pending if key[0] == nearness and key[1] <= best * SAME_TIME]
        yield from _roomiest_first([ground for key in within for ground in groups[key]], rooms)
        pending = pending[len(within) :]


def roomiest_sites(sites: Sequence[Site], rooms: Rooms) -> Iterator[Ground]:
    """Single devices where all are equally fast. Of thousands only those are looked at that are taken."""
    heap: list[tuple[int, str, str, OwnedDevice | Ground]] = list(sites)
    heapq.heapify(heap)
    while heap:
        _, node_id, device_id, found = heapq.heappop(heap)
        if isinstance(found, Ground):
            yield found
            continue
        room = rooms.on(*found).available_bytes
        heapq.heappush(heap, (-room, node_id, device_id, ground_of(found[0], (found,))))


def are_equal(request: PlacementRequest, view: ClusterView, *, speeds_known: bool) -> bool:
    """Whether nothing but room tells devices of a kind apart."""
    return not speeds_known and not view.decoding and not request.replicas


def _nearness(ground: Ground, request: PlacementRequest) -> int:
    """0: no replica of the model on the node; 1: on another device of it; 2: on one of these devices."""
    if not request.replicas:
        return 0
    if any((node.id, device.id) in request.replicas for node, device in ground.devices):
        return 2
    return int(any(node_id == ground.node.id for node_id, _ in request.replicas))


def _speed(ground: Ground, *, known: bool) -> float:
    """Bytes a second: every device reads its part, one after the other."""
    if not ground.devices:
        host = ground.node.host_device
        return speed_of(host, known=known) if host is not None else 1.0
    return len(ground.devices) / sum(1 / speed_of(device, known=known) for _, device in ground.devices)


def _roomiest_first(grounds: Sequence[Ground], rooms: Rooms) -> Iterator[Ground]:
    """Rooms are worked out only for as many grounds as are looked at: what is free now bounds them."""
    heap = [(-ground.free_bytes, False, ground.key, ground) for ground in grounds]
    heapq.heapify(heap)
    while heap:
        _, is_exact, key, ground = heapq.heappop(heap)
        if is_exact:
            yield ground
            continue
        room = sum(rooms.on(node, device).available_bytes for node, device in _devices(ground))
        heapq.heappush(heap, (-room, True, key, ground))


def _devices(ground: Ground) -> Sequence[tuple[NodeView, DeviceView]]:
    if ground.devices:
        return ground.devices
    host = ground.node.host_device
    return ((ground.node, host),) if host is not None else ()
