"""What is promised, and what is therefore still to be had. Numbers in, numbers out.

    avail(d) = min(free(d) − not yet allocated by starting ones, total(d) − everything promised) − overhead(d)
    need(d)  = report(d) + reserve(d) + margin(d)

Both hold per device and, where devices share memory, for their pool as well.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from scheduler.core.layouts import Layout
from scheduler.core.memory import DeviceBytes, MemoryOrigin, MemoryReport
from scheduler.core.policy import Policy
from scheduler.core.view import DeviceKind, DeviceView, NodeView

METAL_BACKENDS = frozenset({"Metal", "MTL"})

NOBODY: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a placement takes on one device, in the classes that people are shown."""

    device_id: str
    weights_bytes: int
    cache_bytes: int
    graph_bytes: int
    reserve_bytes: int
    margin_bytes: int

    @property
    def total_bytes(self) -> int:
        """What must be available."""
        return self.weights_bytes + self.cache_bytes + self.graph_bytes + self.reserve_bytes + self.margin_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Bytes on the devices of one node that belong to a placement until its process is gone and they came back."""

    placement_id: str
    node_id: str
    device_bytes: Mapping[str, int]
    starting: bool  # still to be allocated: counts against what is free now
    freed_bytes: Mapping[str, int] = field(default_factory=dict)  # by which the free figures rise when it goes


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """What a new placement may take on a device, with the figures it was made from."""

    device_id: str
    available_bytes: int
    free_bytes: int
    promised_bytes: int
    overhead_bytes: int
    source: str
    age_s: float


def needs_of(node: NodeView, layout: Layout, report: MemoryReport, policy: Policy) -> tuple[Need, ...] | None:
    """What a layout takes per device of the node, host RAM last. None: the report does not belong to the layout."""
    if len(report.devices) != len(layout.devices):
        return None
    needs: list[Need] = []
    for layers, counted in zip(layout.devices, report.devices, strict=True):
        device = node.device(layers.device_id)
        if device is None:
            return None
        needs.append(_need(device, counted, report.origin, policy))
    host = node.host_device
    if host is None:
        return None
    return (*needs, _need(host, report.host, report.origin, policy))


def _need(device: DeviceView, counted: DeviceBytes, origin: MemoryOrigin, policy: Policy) -> Need:
    margin = policy.margin_bytes * (2 if origin is MemoryOrigin.ESTIMATED else 1)
    return Need(
        device_id=device.id,
        weights_bytes=counted.weights_bytes,
        cache_bytes=counted.cache_bytes,
        graph_bytes=counted.graph_bytes,
        reserve_bytes=reserve_bytes(device, policy),
        margin_bytes=margin,
    )


def reserve_bytes(device: DeviceView, policy: Policy) -> int:
    """What a process holds on a device beside the model."""
    if device.kind is DeviceKind.CPU:
        return policy.host_process_reserve_bytes
    if device.backend in METAL_BACKENDS:
        return policy.metal_reserve_bytes
    return policy.device_reserve_bytes


def overhead_bytes(device: DeviceView, policy: Policy) -> int:
    """What is never promised on a device, so that the machine itself can live."""
    if device.kind is DeviceKind.CPU:
        return max(policy.host_reserve_bytes_min, int(device.total_bytes * policy.host_reserve_fraction))
    return policy.device_overhead_bytes


def available(
    node: NodeView,
    device: DeviceView,
    promises: Iterable[Promise],
    policy: Policy,
    *,
    without: frozenset[str] = NOBODY,
    backoff: float = 0.0,
) -> Available:
    """What may be taken on a device if the placements `without` were gone.

    `backoff` is the part of the free bytes that is left alone because figures were stale or an allocation has failed.
    """
    here = [promise for promise in promises if promise.node_id == node.id]
    keeper = _pool_keeper(node, device)
    members = frozenset([other.id for other in node.devices if other.pool_id == keeper.pool_id]) if here else NOBODY
    figures = _figures(keeper, members, here, policy, without=without, backoff=backoff)
    if keeper.id != device.id:
        own = _figures(device, frozenset({device.id}), here, policy, without=without, backoff=backoff)
        figures = min(figures, own, key=lambda figure: figure.available_bytes)
    return figures


def _pool_keeper(node: NodeView, device: DeviceView) -> DeviceView:
    """Whose figures count for the pool: the CPU's where RAM is shared, else the device's own."""
    host = node.host_device
    return host if host is not None and host.pool_id == device.pool_id else device


def _figures(
    device: DeviceView,
    members: frozenset[str],
    promises: list[Promise],
    policy: Policy,
    *,
    without: frozenset[str],
    backoff: float,
) -> Available:
    promised = unallocated = returned = 0
    for promise in promises:
        on_members = sum(count for device_id, count in promise.device_bytes.items() if device_id in members)
        if promise.placement_id in without:
            freed = sum(count for device_id, count in promise.freed_bytes.items() if device_id in members)
            returned += 0 if promise.starting else freed
            continue
        promised += on_members
        unallocated += on_members if promise.starting else 0
    overhead = overhead_bytes(device, policy)
    free = device.free_bytes - int(device.free_bytes * backoff)
    by_free = free + returned - unallocated
    by_total = device.total_bytes - promised
    return Available(
        device_id=device.id,
        available_bytes=max(0, min(by_free, by_total) - overhead),
        free_bytes=device.free_bytes,
        promised_bytes=promised,
        overhead_bytes=overhead,
        source=device.free_source,
        age_s=device.free_age_s,
    )


def freed_by(layout: Layout, report: MemoryReport | None, host_device_id: str) -> dict[str, int]:
    """How much the free figures rise when a loaded replica goes.

    Weights in host RAM are mapped unless told otherwise, and mapped pages already count as available.
    """
    if report is None:
        return {}
    freed = {counted.device_id: counted.total_bytes for counted in report.devices}
    host = report.host.cache_bytes + report.host.graph_bytes
    if layout.use_mmap is False:
        host += report.host.weights_bytes
    freed[host_device_id] = freed.get(host_device_id, 0) + host
    return freed
