"""Sets of nodes that may hold a model together: the fewest, of equal builds, those with the most room first."""

import itertools
from collections.abc import Iterator, Sequence

from scheduler.core.planning.device_sets import DEVICES_MAX, DeviceSet, DeviceSets, device_set_of
from scheduler.core.planning.ranking import roomiest_first
from scheduler.core.sizes.rooms import Rooms
from scheduler.core.sizes.speeds import OwnedDevice

NODES_LOOKED_AT = 6  # of each build: sets of roomier nodes hold whatever sets of others hold


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
