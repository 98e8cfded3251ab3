"""Which nodes may hold a model together: the fewest, of equal builds, the roomiest first."""

import itertools
from collections.abc import Iterator, Sequence

from scheduler.core.planning.grounds import DEVICES_MAX, Ground, Grounds, ground_of
from scheduler.core.planning.ranking import roomiest_first
from scheduler.core.sizes.rooms import Rooms
from scheduler.core.sizes.speeds import OwnedDevice

NODES_LOOKED_AT = 6  # of each build: sets of roomier nodes hold whatever sets of others hold


def node_sets(grounds: Grounds, rooms: Rooms, *, nodes_max: int) -> Iterator[Ground]:
    """Sets of two nodes, then of three and more. The head has the file, and takes the end of the model."""
    with_file = {ground.node.id for joint in grounds.joint.values() for ground in joint}
    builds: dict[str, list[Ground]] = {}
    for ground in grounds.lenders:
        builds.setdefault(ground.node.engine_build, []).append(ground)
    members: list[tuple[Ground, ...]] = []
    for _, lenders in sorted(builds.items()):
        roomiest = tuple(itertools.islice(roomiest_first(lenders, rooms), NODES_LOOKED_AT))
        heads = (ground for ground in lenders if ground.node.id in with_file and ground not in roomiest)
        members.append((*roomiest, *itertools.islice(heads, 1)))
    for count in range(2, nodes_max + 1):
        for one_build in members:
            yield from _sets_of(count, one_build, with_file, rooms)


def _sets_of(count: int, members: Sequence[Ground], with_file: set[str], rooms: Rooms) -> Iterator[Ground]:
    for chosen in itertools.combinations(members, count):
        head = next((ground for ground in chosen if ground.node.id in with_file), None)
        if head is None:
            continue
        others = [ground for ground in chosen if ground is not head]
        devices = _roomiest([*head.devices, *itertools.chain.from_iterable(ground.devices for ground in others)], rooms)
        if len({node.id for node, _ in devices}) == count:  # else fewer nodes do as well
            yield ground_of(head.node, devices)


def _roomiest(devices: Sequence[OwnedDevice], rooms: Rooms) -> Sequence[OwnedDevice]:
    """As many as a layout may name, in the order in which they came."""
    if len(devices) <= DEVICES_MAX:
        return devices
    by_room = sorted(devices, key=lambda one: (-rooms.on(*one).available_bytes, one[0].id, one[1].id))
    kept = {(node.id, device.id) for node, device in by_room[:DEVICES_MAX]}
    return [(node, device) for node, device in devices if (node.id, device.id) in kept]
