"""Devices that may hold a model at all, and sets of them. Filters come before scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.core.planning.candidates import ClusterView, PlacementRequest, Verdict
from scheduler.core.sizes.speeds import OwnedDevice
from scheduler.core.sizes.splitting import DeviceKey
from scheduler.core.values.constraints import Shape, device_obstacle, whole_obstacle
from scheduler.core.values.view import DeviceKind, DeviceView, NodeView, Trust, cached_per_view

CANDIDATES_MAX = 256  # that a decision carries for people
FIGURES_UNUSABLE_S = 5.0  # nothing is placed by older figures
LOADS_PER_NODE_MAX = 2  # they share one disk

DEVICES_MAX = 15  # llama.cpp's limit less one, which BLAS may take

Obstacle = tuple[Verdict, str]
# A device by itself, roomiest first: minus the bytes that it may have at most, node id, device id.
Site = tuple[int, str, str, OwnedDevice]
DeviceSetKey = tuple[str, tuple[DeviceKey, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSet:
    """Devices that a model may lie on together. The runner runs on `node`; no devices: host RAM alone."""

    node: NodeView
    devices: tuple[OwnedDevice, ...]
    key: DeviceSetKey
    free_bytes: int  # no more than this can be had without eviction
    total_bytes: int  # nor more than this with it

    @property
    def nodes(self) -> Mapping[str, NodeView]:
        """Return all nodes of the set, by id."""
        return {self.node.id: self.node} | {node.id: node for node, _ in self.devices}

    def device(self, node_id: str, device_id: str) -> OwnedDevice:
        """Return a device by its ids; an empty node id means the runner's node."""
        wanted = (node_id or self.node.id, device_id)
        return next(one for one in self.devices if (one[0].id, one[1].id) == wanted)


def device_set_of(node: NodeView, devices: Sequence[OwnedDevice] = ()) -> DeviceSet:
    """Return the set of these devices; without any, of the node's RAM."""
    keys: list[DeviceKey] = []
    free = total = 0
    for owner, device in devices:
        keys.append((owner.id, device.id))
        free += device.free_bytes if device.free_bytes < device.total_bytes else device.total_bytes
        total += device.total_bytes
    if not devices and (host := node.host_device) is not None:
        free, total = min(host.free_bytes, host.total_bytes), host.total_bytes
    return DeviceSet(node=node, devices=tuple(devices), key=(node.id, tuple(keys)), free_bytes=free, total_bytes=total)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeDevices:
    """Usable devices of one node."""

    single: Mapping[DeviceKind, list[Site]]
    joint: Mapping[DeviceKind, list[DeviceSet]]
    host: DeviceSet | None
    left_out: list[tuple[NodeView, DeviceView, Obstacle]]
    speeds_known: bool


@dataclass(slots=True, kw_only=True)
class DeviceSets:
    """Usable part of a snapshot for a request."""

    single: dict[DeviceKind, list[Site]] = field(default_factory=dict)  # one device each
    joint: dict[DeviceKind, list[DeviceSet]] = field(
        default_factory=dict
    )  # devices of a node that one process can use together
    hosts: list[DeviceSet] = field(default_factory=list)
    lenders: list[DeviceSet] = field(default_factory=list)  # as joint, of nodes that may take part with others
    left_out: list[tuple[NodeView, DeviceView, Obstacle]] = field(default_factory=list)
    speeds_known: bool = True  # of every device

    def of_shape(self, shape: Shape, kind: DeviceKind) -> list[DeviceSet]:
        """Return the device sets on which a shape may be tried."""
        match shape:
            case Shape.ONE_DEVICE:
                return [device_set_of(one[0], (one,)) for *_, one in self.single.get(kind, [])]
            case Shape.CPU:
                return self.hosts
            case Shape.ONE_NODE:
                return [device_set for device_set in self.joint.get(kind, []) if len(device_set.devices) > 1]
            case _:
                return self.joint.get(kind, [])


def find_device_sets(request: PlacementRequest, view: ClusterView) -> DeviceSets:
    """Sort the devices of a snapshot into what may be used and what may not, with the reason."""
    device_sets = DeviceSets()
    loading = {node_id for node_id, _ in view.loading_pools}
    is_plain = _asks_for_nothing(request)
    for node in view.nodes:
        obstacle = node_obstacle(request, view, node)
        is_full = len(device_sets.left_out) >= CANDIDATES_MAX  # no more are shown
        if obstacle is not None:
            if not is_full:
                device_sets.left_out += [(node, device, obstacle) for device in node.layer_devices]
            if obstacle[0] is not Verdict.FILE_MISSING:
                continue
        if is_full and not is_plain and whole_obstacle(request.constraints, node):
            continue
        if is_plain and node.id not in loading and _age_s(node) <= FIGURES_UNUSABLE_S:
            found = _unrestricted_devices(node)
        else:
            found = _allowed_devices(node, request, view)
        _add(device_sets, node, found, has_file=obstacle is None)
    return device_sets


def _asks_for_nothing(request: PlacementRequest) -> bool:
    """Return True if the request leaves every usable device to the planner."""
    wanted = request.constraints
    is_open = not (wanted.nodes or wanted.devices or wanted.backend or wanted.require_gpu)
    is_open = is_open and wanted.main_gpu is None
    return is_open and wanted.num_gpu is None and wanted.max_shape is Shape.CPU


@cached_per_view
def _age_s(node: NodeView) -> float:
    """Return the age of the node's oldest figure."""
    return node.report_age_s + max((device.free_age_s for device in node.devices), default=0.0)


@cached_per_view
def _unrestricted_devices(node: NodeView) -> _NodeDevices:
    """Return the usable devices of a node if neither the request nor the moment rules any out."""
    return _node_devices(node, {})


def _allowed_devices(node: NodeView, request: PlacementRequest, view: ClusterView) -> _NodeDevices:
    """Return the usable devices of a node for this request at this moment."""
    whole = whole_obstacle(request.constraints, node)
    kept_off = {}
    for device in node.layer_devices:
        if obstacle := _passing_obstacle(request, view, node, device, whole):
            kept_off[device.id] = obstacle
    main = request.constraints.main_device(node)  # one GPU that was asked for
    return _node_devices(node, kept_off, main) if kept_off or main is not None else _unrestricted_devices(node)


def _node_devices(node: NodeView, kept_off: Mapping[str, Obstacle], main: DeviceView | None = None) -> _NodeDevices:
    """Return the devices that nothing rules out; `main` is the only one that may hold a model alone."""
    by_backend: dict[tuple[DeviceKind, str, str], list[OwnedDevice]] = {}
    left_out: list[tuple[NodeView, DeviceView, Obstacle]] = []
    host = None
    for device in node.layer_devices:
        obstacle = _standing_obstacle(device) or kept_off.get(device.id)
        if obstacle is not None:
            left_out.append((node, device, obstacle))
        elif device.kind is DeviceKind.CPU:
            host = device_set_of(node)
        else:
            by_backend.setdefault((device.kind, device.backend, device.id * device.alone), []).append((node, device))
    single: dict[DeviceKind, list[Site]] = {}
    joint: dict[DeviceKind, list[DeviceSet]] = {}
    for (kind, *_), devices in by_backend.items():
        joint.setdefault(kind, []).append(device_set_of(node, _roomiest(devices)))
        single.setdefault(kind, []).extend(
            (-min(one[1].free_bytes, one[1].total_bytes), node.id, one[1].id, one)
            for one in devices
            if main is None or one[1].id == main.id
        )
    return _NodeDevices(
        single=single,
        joint=joint,
        host=host,
        left_out=left_out,
        speeds_known=all(device.speed_bytes_s > 0 for devices in by_backend.values() for _, device in devices),
    )


def _roomiest(devices: Sequence[OwnedDevice]) -> Sequence[OwnedDevice]:
    """Return the roomiest devices, at most as many as a layout may name."""
    if len(devices) <= DEVICES_MAX:
        return devices
    return sorted(devices, key=lambda one: (-min(one[1].free_bytes, one[1].total_bytes), one[1].id))[:DEVICES_MAX]


def _add(device_sets: DeviceSets, node: NodeView, found: _NodeDevices, *, has_file: bool) -> None:
    if node.rpc_enabled and found.joint:
        every = [device_set for joint in found.joint.values() for device_set in joint]
        device_sets.lenders.append(max(every, key=lambda device_set: device_set.total_bytes))
    if not has_file:
        return
    device_sets.left_out += found.left_out
    device_sets.speeds_known = device_sets.speeds_known and found.speeds_known
    if found.host is not None:
        device_sets.hosts.append(found.host)
    for kind, sites in found.single.items():
        device_sets.single.setdefault(kind, []).extend(sites)
    for kind, whole in found.joint.items():
        device_sets.joint.setdefault(kind, []).extend(whole)


_SILENT = Verdict.NODE_SUSPECT, "the node is silent"
_DAMPED = Verdict.NODE_DAMPED, "the node comes and goes: nothing new is placed there while another can take it"


def node_obstacle(request: PlacementRequest, view: ClusterView, node: NodeView) -> Obstacle | None:
    """Return the obstacle to using a node. A missing file comes last: its devices may still be lent."""
    host = node.host_device
    if node.suspect or node.is_damped:
        return _SILENT if node.suspect else _DAMPED
    if node.id in view.drained:
        return Verdict.NODE_DRAINED, "the node is drained: nothing new is placed there"
    if host is not None and host.probing:
        return Verdict.NODE_PROBING, host.state_reason
    if host is None or not host.usable:
        return Verdict.DEVICE_EXCLUDED, host.state_reason if host is not None else "the node does not report its RAM"
    if node.id in request.failed_nodes:
        return Verdict.LOAD_FAILED, request.failed_nodes[node.id]
    if view.loads_per_node.get(node.id, 0) >= LOADS_PER_NODE_MAX:
        return Verdict.LOAD_IN_PROGRESS, "the node has as many loads as it may"
    if node.model(request.model_digest) is None:
        return Verdict.FILE_MISSING, "the node does not have the file"
    return None


def _standing_obstacle(device: DeviceView) -> Obstacle | None:
    """Return the obstacle to a device that holds for every request."""
    if not device.usable:
        return Verdict.DEVICE_EXCLUDED, device.state_reason or "the device is not usable"
    if device.trust is Trust.UNKNOWN:
        return Verdict.FIGURES_UNUSABLE, "free memory is unknown"
    return None


def _passing_obstacle(
    request: PlacementRequest, view: ClusterView, node: NodeView, device: DeviceView, whole: str
) -> Obstacle | None:
    """Return the obstacle to a device now, or for this request; `whole`: the constraint against all of its node."""
    age_s = device.free_age_s + node.report_age_s
    if age_s > FIGURES_UNUSABLE_S:
        return Verdict.FIGURES_UNUSABLE, f"free memory is {age_s:.1f} s old"
    if device.kind is DeviceKind.CPU and request.constraints.require_gpu:
        return Verdict.GPU_REQUIRED, "a GPU is required"
    if obstacle := device_obstacle(request.constraints, node, device, whole=whole):
        return Verdict.CONSTRAINED, f'the model is kept off by "{obstacle}"'
    # Free bytes move while a load runs, so a device takes one at a time. RAM may take two: what they will hold is
    # promised beforehand, and a stuck load must not block a machine that has nothing but its CPU.
    if device.kind is not DeviceKind.CPU and (node.id, device.pool_id) in view.loading_pools:
        return Verdict.LOAD_IN_PROGRESS, "another load runs on the device"
    return None
