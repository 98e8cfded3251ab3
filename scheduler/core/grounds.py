"""Which devices may hold a model at all, and which of them together (spec: 4.2). Filters come before scores."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from scheduler.core.candidates import ClusterView, PlacementRequest, Verdict
from scheduler.core.constraints import Shape, device_obstacle
from scheduler.core.policy import Policy
from scheduler.core.speeds import OwnedDevice
from scheduler.core.splitting import DeviceKey
from scheduler.core.view import DeviceKind, DeviceView, NodeView, Trust

DEVICES_MAX = 15  # llama.cpp's limit less one, which BLAS may take

LAYER_KINDS = frozenset({DeviceKind.GPU, DeviceKind.INTEGRATED})
Obstacle = tuple[Verdict, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Devices that a model may lie on together. The runner runs on `node`; no devices: host RAM alone."""

    node: NodeView
    devices: tuple[OwnedDevice, ...] = ()

    @property
    def key(self) -> tuple[str, tuple[DeviceKey, ...]]:
        """Names it."""
        return self.node.id, tuple((node.id, device.id) for node, device in self.devices)

    @property
    def nodes(self) -> Mapping[str, NodeView]:
        """Every node that takes part, by id."""
        return {self.node.id: self.node} | {node.id: node for node, _ in self.devices}

    def device(self, node_id: str, device_id: str) -> OwnedDevice:
        """A device by its ids; an empty node id means the runner's node."""
        wanted = (node_id or self.node.id, device_id)
        return next(one for one in self.devices if (one[0].id, one[1].id) == wanted)


@dataclass(slots=True, kw_only=True)
class Grounds:
    """What a request may use of a snapshot."""

    single: dict[DeviceKind, list[Ground]] = field(default_factory=dict)  # one device each
    joint: dict[DeviceKind, list[Ground]] = field(default_factory=dict)  # all devices of a node and a backend
    hosts: list[Ground] = field(default_factory=list)
    lenders: list[Ground] = field(default_factory=list)  # as joint, of nodes that may take part with others
    left_out: list[tuple[NodeView, DeviceView, Obstacle]] = field(default_factory=list)

    def of_shape(self, shape: Shape, kind: DeviceKind) -> list[Ground]:
        """The grounds on which a shape may be tried."""
        match shape:
            case Shape.ONE_DEVICE:
                return self.single.get(kind, [])
            case Shape.CPU:
                return self.hosts
            case Shape.ONE_NODE:
                return [ground for ground in self.joint.get(kind, []) if len(ground.devices) > 1]
            case _:
                return self.joint.get(kind, [])


def find_grounds(request: PlacementRequest, view: ClusterView, policy: Policy) -> Grounds:
    """Sort the devices of a snapshot into what may be used and what may not, with the reason."""
    grounds = Grounds()
    for node in view.nodes:
        obstacle = node_obstacle(request, view, policy, node)
        if obstacle is not None:
            grounds.left_out += [(node, device, obstacle) for device in _layer_devices(node)]
            if obstacle[0] is not Verdict.FILE_MISSING:
                continue
        by_backend: dict[tuple[DeviceKind, str], list[OwnedDevice]] = {}
        for device in _layer_devices(node):
            found = device_verdict(request, view, policy, node, device)
            if found is not None:
                if obstacle is None:
                    grounds.left_out.append((node, device, found))
            elif device.kind is not DeviceKind.CPU:
                by_backend.setdefault((device.kind, device.backend), []).append((node, device))
            elif obstacle is None:
                grounds.hosts.append(Ground(node=node))
        _add(grounds, node, by_backend, has_file=obstacle is None)
    return grounds


def _add(
    grounds: Grounds, node: NodeView, by_backend: Mapping[tuple[DeviceKind, str], list[OwnedDevice]], *, has_file: bool
) -> None:
    joint = [
        (kind, Ground(node=node, devices=tuple(devices[:DEVICES_MAX]))) for (kind, _), devices in by_backend.items()
    ]
    if node.rpc_enabled and joint:
        grounds.lenders.append(max((ground for _, ground in joint), key=_total_bytes))
    if not has_file:
        return
    for kind, ground in joint:
        grounds.joint.setdefault(kind, []).append(ground)
        singles = grounds.single.setdefault(kind, [])
        singles += [Ground(node=node, devices=(one,)) for one in ground.devices]


def _total_bytes(ground: Ground) -> int:
    return sum(device.total_bytes for _, device in ground.devices)


def _layer_devices(node: NodeView) -> Iterator[DeviceView]:
    """What could hold layers. Integrated GPUs are left alone where there is a discrete one."""
    has_discrete = any(device.kind is DeviceKind.GPU and device.usable for device in node.devices)
    for device in node.devices:
        if device.kind in (DeviceKind.GPU, DeviceKind.CPU) or (
            device.kind is DeviceKind.INTEGRATED and not has_discrete
        ):
            yield device


def node_obstacle(request: PlacementRequest, view: ClusterView, policy: Policy, node: NodeView) -> Obstacle | None:
    """Why nothing of a node may be used. A missing file is named last: its devices may still be lent."""
    host = node.host_device
    if node.suspect:
        return Verdict.NODE_SUSPECT, "the node is silent"
    if host is None or not host.usable:
        return Verdict.DEVICE_EXCLUDED, host.state_reason if host is not None else "the node does not report its RAM"
    if node.id in request.failed_nodes:
        return Verdict.LOAD_FAILED, request.failed_nodes[node.id]
    if view.loads_per_node.get(node.id, 0) >= policy.loads_per_node_max:
        return Verdict.LOAD_IN_PROGRESS, "the node has as many loads as it may"
    if node.model(request.model_digest) is None:
        return Verdict.FILE_MISSING, "the node does not have the file"
    return None


def device_verdict(
    request: PlacementRequest, view: ClusterView, policy: Policy, node: NodeView, device: DeviceView
) -> Obstacle | None:
    """Why a device may not be used; None: it may."""
    if not device.usable:
        return Verdict.DEVICE_EXCLUDED, device.state_reason or "the device is not usable"
    age_s = device.free_age_s + node.report_age_s
    if device.trust is Trust.UNKNOWN or age_s > policy.figures_unusable_s:
        return Verdict.FIGURES_UNUSABLE, f"free memory is unknown or {age_s:.1f} s old"
    if device.kind is DeviceKind.CPU and (request.require_gpu or request.constraints.require_gpu):
        return Verdict.GPU_REQUIRED, "a GPU is required"
    if obstacle := device_obstacle(request.constraints, node, device):
        return Verdict.CONSTRAINED, f'the model is kept off by "{obstacle}"'
    # Free bytes move while a load runs, so a device takes one at a time. RAM may take two: what they will hold is
    # promised beforehand, and a stuck load must not block a machine that has nothing but its CPU.
    if device.kind is not DeviceKind.CPU and (node.id, device.pool_id) in view.loading_pools:
        return Verdict.LOAD_IN_PROGRESS, "another load runs on the device"
    return None
