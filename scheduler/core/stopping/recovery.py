"""Return of a stopped replica's memory, device by device, on every node that it was on.

1. Its process is gone: from its host's reports, and on nodes that lend to it, what was lent is back.
2. RAM, and what shares it, is back with the process. A GPU is, once its driver has let go: the process has left the
   driver's list, or most of what it held is seen to be free.
A device that has come back is free for other loads, also before the others. One that takes too long is left to
the next report: what is available there is never more than it shows as free.
"""

from dataclasses import replace

from scheduler.core.sizes.ledger import METAL_BACKENDS, Promise
from scheduler.core.sizes.splitting import DeviceKey
from scheduler.core.state.cluster_state import ClusterState, ReplicaStop
from scheduler.core.values.view import DeviceKind, DeviceView, NodeView

RECOVERY_FRACTION = 0.75


def remember_before(state: ClusterState, stop: ReplicaStop) -> None:
    """Remember the state of its devices before the stop."""
    for promise in stop.held:
        node = state.node(promise.node_id)
        for device_id in promise.device_bytes:
            device = node.device(device_id) if node is not None else None
            if device is None:
                continue
            key = promise.node_id, device_id
            stop.free_bytes_before[key] = device.free_bytes
            holder = device.holder(stop.placement_id)
            if holder is not None and holder.listed:
                stop.listed_before.add(key)


def take_back(state: ClusterState, stop: ReplicaStop) -> None:
    """Reduce the promises of a stop by the recovered bytes. Its runner is gone from its host's reports."""
    held = []
    for promise in stop.held:
        node = state.node(promise.node_id)
        if node is None:
            continue  # nothing is planned there
        still = {
            device_id: count
            for device_id, count in promise.device_bytes.items()
            if (device := node.device(device_id)) is not None and not _is_back(stop, promise, node, device)
        }
        if still:
            freed = {device_id: count for device_id, count in promise.freed_bytes.items() if device_id in still}
            held.append(replace(promise, device_bytes=still, freed_bytes=freed))
    stop.held = tuple(held)


def devices_held(stop: ReplicaStop) -> set[DeviceKey]:
    """Return the devices that still hold its memory."""
    return {(promise.node_id, device_id) for promise in stop.held for device_id in promise.device_bytes}


def _is_back(stop: ReplicaStop, promise: Promise, node: NodeView, device: DeviceView) -> bool:
    holder, key = device.holder(stop.placement_id), (node.id, device.id)
    if node.id != stop.node_id and holder is not None and not holder.listed:
        return False  # what lends it lives
    if not _recovers_late(device):
        return node.id == stop.node_id or holder is None
    if key in stop.listed_before and (holder is None or not holder.listed):
        return True
    risen = device.free_bytes - stop.free_bytes_before.get(key, 0)
    return risen >= RECOVERY_FRACTION * promise.freed_bytes.get(device.id, 0)


def _recovers_late(device: DeviceView) -> bool:
    """Return True for memory that drivers free late; RAM and devices that share it are free with the process's end."""
    return device.kind is DeviceKind.GPU and device.backend not in METAL_BACKENDS
