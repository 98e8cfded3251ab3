"""Room for layers on each device of a set: available bytes less everything else that a layout needs there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scheduler.core.planning.device_sets import DeviceSet
from scheduler.core.sizes.ledger import Kept, Need, overhead_bytes, pools_of, reserve_bytes
from scheduler.core.sizes.rooms import Rooms, device_of
from scheduler.core.sizes.speeds import OwnedDevice, speed_classes
from scheduler.core.sizes.splitting import Bin, DeviceKey
from scheduler.core.values.constraints import Constraints, Shape
from scheduler.core.values.memory import MemoryOrigin
from scheduler.core.values.view import DeviceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Needs of a layout beside its layers, as well as they are known."""

    graphs: Mapping[DeviceKey, int]
    host_bytes: int  # graph and inputs in host RAM
    largest_layer_bytes: int = 0  # kept free of every device where sizes are only estimated
    origin: MemoryOrigin = MemoryOrigin.MEASURED


@dataclass(slots=True, kw_only=True)
class LayerRooms:
    """Room for layers on one device set, if the placements `without` may go."""

    shape: Shape
    device_set: DeviceSet
    constraints: Constraints
    rooms: Rooms
    kept: Kept
    without: frozenset[str]

    def bins(self, beside: Beside, *, backoff: float, merged: bool) -> list[Bin]:
        """Return the devices for the splitter, the roomiest first; `backoff`: the part of the free bytes left alone."""
        classes = self._classes(merged=merged)
        rooms: dict[DeviceKey, int] = {}
        for node, device in self.device_set.devices:
            have = self.rooms.on(node, device, self.without)
            cap = self.constraints.max_bytes_on(node, device)
            room = have.available_bytes if cap is None else min(have.available_bytes, cap)
            left = room - int(backoff * have.free_bytes) - self.beside((node, device), beside)
            rooms[node.id, device.id] = max(0, left - beside.largest_layer_bytes)
        self._share_pools(rooms, beside)
        bins = [Bin(key=key, room_bytes=room, speed_class=classes[key]) for key, room in rooms.items()]
        return sorted(bins, key=lambda one: (-one.room_bytes, one.key))

    def beside(self, one: OwnedDevice, beside: Beside) -> int:
        """Return the bytes that a device needs beside layers."""
        node, device = one
        most = self.rooms.on(node, device, self.without).available_bytes
        is_split = len(self.device_set.devices) > 1 and self.shape is not Shape.ONE_DEVICE
        margin = self.kept.margin_bytes(node, device, beside.origin, need_bytes=most, is_split=is_split)
        return beside.graphs.get((node.id, device.id), 0) + reserve_bytes(device, self.kept.policy) + margin

    def on_host(self, beside: Beside) -> tuple[int, int]:
        """Return needed and available bytes of the runner's own RAM beside layers; without a figure 0 are available."""
        node, host = self.device_set.node, self.device_set.node.host_device
        if host is None:
            return beside.host_bytes, -1
        have = self.rooms.on(node, host, self.without).available_bytes
        bare = Beside(graphs={}, host_bytes=0, origin=beside.origin)
        return beside.host_bytes + self.beside((node, host), bare), have

    def others_are_loaded(self) -> bool:
        """Return True if any of our replicas is on the devices."""
        return any(
            self.rooms.on(node, device, self.without).promised_bytes > 0 for node, device in self.device_set.devices
        )

    def whole(self, need: Need) -> int:
        """Return the bytes that an empty device could give; of the machine's RAM, its free bytes."""
        node, device = device_of(need, self.device_set.nodes)
        if device.kind is DeviceKind.CPU:
            return self.rooms.on(node, device, self.without).available_bytes
        return device.total_bytes - overhead_bytes(device, self.kept.policy)

    def over_cap(self, needs: Sequence[Need]) -> bool:
        """Return True if a device would hold more of the model than its cap."""
        for need in needs:
            cap = self.constraints.max_bytes_on(*device_of(need, self.device_set.nodes))
            if cap is not None and need.report_bytes > cap:
                return True
        return False

    def _classes(self, *, merged: bool) -> dict[DeviceKey, int]:
        """Return one class per node if there are several, the runner's own first: it takes the end of the model."""
        if self.shape is not Shape.NODES:
            return speed_classes(self.device_set.devices, merged=merged)
        order = {node_id: number for number, node_id in enumerate(self.device_set.nodes)}
        return {(node.id, device.id): order[node.id] for node, device in self.device_set.devices}

    def _share_pools(self, rooms: dict[DeviceKey, int], beside: Beside) -> None:
        """Share the room of a pool among its devices in proportion to their rooms; they are not added up."""
        members: dict[tuple[str, str], list[OwnedDevice]] = {}
        for node, device in self.device_set.devices:
            for pool_id in pools_of(device):
                members.setdefault((node.id, pool_id), []).append((node, device))
        for (node_id, pool_id), owned in members.items():
            node = owned[0][0]
            host = node.host_device
            is_host = host is not None and host.pool_id == pool_id
            pool = self.rooms.of_pool(node, pool_id, self.without)
            if pool is None or (len(owned) == 1 and not is_host):
                continue
            left = pool.available_bytes - sum(self.beside(one, beside) for one in owned)
            if is_host and node_id == self.device_set.node.id:
                left -= self.on_host(beside)[0]
            keys = [(node_id, device.id) for _, device in owned]
            together = sum(rooms[key] for key in keys)
            if together > max(0, left):
                for key in keys:
                    rooms[key] = rooms[key] * max(0, left) // together
