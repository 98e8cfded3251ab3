"""Which nodes may hold a model together: the fewest, of equal builds, the roomiest first."""

import itertools
from collections.abc import Iterator, Sequence

from scheduler.core.grounds import DEVICES_MAX, Ground, Grounds, ground_of
from scheduler.core.rooms import Rooms

NODES_LOOKED_AT = 6  # of each build: sets of roomier nodes hold whatever sets of others hold


def node_sets(grounds: Grounds, rooms: Rooms, *, nodes_max: int) -> Iterator[Ground]:
    """Sets of two nodes, then of three and more. The head has the file, and takes the end of the model."""
    with_file = {ground.node.id for joint in grounds.joint.values() for ground in joint}
    builds: dict[str, list[Ground]] = {}
    for ground in grounds.lenders:
        builds.setdefault(ground.node.engine_build, []).append(ground)
    for count in range(2, nodes_max + 1):
        for _, members in sorted(builds.items()):
            roomiest = sorted(members, key=lambda ground: (-_room(ground, rooms), ground.node.id))[:NODES_LOOKED_AT]
            heads = [ground for ground in members if ground.node.id in with_file and ground not in roomiest]
            yield from _sets_of(count, [*roomiest, *heads[:1]], with_file)


def _sets_of(count: int, members: Sequence[Ground], with_file: set[str]) -> Iterator[Ground]:
    for chosen in itertools.combinations(members, count):
        head = next((ground for ground in chosen if ground.node.id in with_file), None)
        if head is None:
            continue
        others = [ground for ground in chosen if ground is not head]
        devices = (*head.devices, *itertools.chain.from_iterable(ground.devices for ground in others))
        if len(devices) - len(others[-1].devices) < DEVICES_MAX:  # else the last node would not take part
            yield ground_of(head.node, devices[:DEVICES_MAX])


def _room(ground: Ground, rooms: Rooms) -> int:
    return sum(rooms.on(node, device).available_bytes for node, device in ground.devices)
