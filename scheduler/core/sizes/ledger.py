"""Promised bytes, and therefore available ones. Numbers in, numbers out.

    avail(d) = min(free(d) − not yet allocated by starting ones, total(d) − everything promised) − overhead(d)
    need(d)  = report(d) + reserve(d) + margin(d)

Both hold for a device and for every pool that its memory comes out of: RAM is one pool for the CPU, for integrated
GPUs, and for devices that lend a part of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from common.spec.layout import Layout
from scheduler.core.sizes.margins import FULL_SIZE_BYTES, NO_MARGINS, MarginKey, Margins
from scheduler.core.values.memory import MIB, DeviceBytes, MemoryOrigin, MemoryReport
from scheduler.core.values.policy import Policy
from scheduler.core.values.view import DeviceKind, DeviceView, NodeView, SpeedSource

METAL_BACKENDS = frozenset({"Metal", "MTL"})
METAL_RESERVE_BYTES = 512 * MIB
LENT_BACKENDS = frozenset({"RPC"})  # the lending process holds the context

NO_PLACEMENTS: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Need of a placement on one device, in the classes that people see."""

    node_id: str
    device_id: str
    weights_bytes: int
    cache_bytes: int
    graph_bytes: int
    reserve_bytes: int
    margin_bytes: int
    projector_bytes: int = 0
    reserve_source: str = ""

    @property
    def total_bytes(self) -> int:
        """Return the bytes that must be available."""
        return self.report_bytes + self.reserve_bytes + self.margin_bytes

    @property
    def report_bytes(self) -> int:
        """Return the bytes of the report, without margins."""
        return self.weights_bytes + self.cache_bytes + self.graph_bytes + self.projector_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LentTo:
    """A placement of another node that devices are lent to."""

    placement_id: str
    model_name: str
    node_id: str  # that runs it


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Bytes on the devices of one node that belong to a placement until its process is gone and they came back."""

    placement_id: str
    node_id: str
    device_bytes: Mapping[str, int]
    starting: bool  # still to be allocated: counts against what is free now
    freed_bytes: Mapping[str, int] = field(default_factory=dict)  # by which the free figures rise when it goes
    is_measurement: bool = False  # no replica: a process that counts, and ends
    lent_to: LentTo | None = None  # None: the node of the devices runs it


class Limit(StrEnum):
    """Limit on the available bytes of a device."""

    FREE = "free"  # what is free, less what starting ones will still take
    PROMISED = "promised"  # more is free, and promised to others out of its total
    MAX_BYTES = "max_bytes"  # likewise, out of what the operator allows there altogether
    MODEL_MAX_BYTES = "model_max_bytes"  # what the model may take there at most
    SERVER_IN_USE = "server_in_use"  # the RPC server that lends it has a client, and serves only one


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """Available bytes of a device for a new placement, with the figures that they were made from."""

    device_id: str
    available_bytes: int
    free_bytes: int
    promised_bytes: int
    overhead_bytes: int
    source: str
    age_s: float
    node_id: str = ""  # of the node that has the device
    total_bytes: int = 0
    backoff_bytes: int = 0  # of what is free: left alone, because the figure is stale or an allocation failed
    limit: Limit = Limit.FREE
    max_bytes: int | None = None  # the operator's, for everything on the device; None: no such limit
    pool_id: str = ""  # the figures are those of this pool, which others draw from, too; empty: the device's own
    lent_to: tuple[LentTo, ...] = ()
    speed_bytes_s: float = 0.0  # that ranks the device; 0: not known
    speed_source: SpeedSource = SpeedSource.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Margin of a need: memory of processes beside the model, and the error of earlier measurements."""

    policy: Policy
    margins: Margins = NO_MARGINS
    model_digest: str = ""
    architecture: str = ""

    def margin_bytes(
        self, node: NodeView, device: DeviceView, origin: MemoryOrigin, *, need_bytes: int, is_split: bool
    ) -> int:
        """Return the margin for one device; twice as much if nothing was measured."""
        learned = self.margins.of(
            margin_key(node, device, self.architecture, is_split=is_split),
            self.model_digest,
            unlearned_bytes=self.policy.margin_bytes,
            need_bytes=need_bytes,
            # Of RAM only a part is ours to fill, whatever there is of it.
            total_bytes=FULL_SIZE_BYTES if device.kind is DeviceKind.CPU else device.total_bytes,
        )
        return learned * (2 if origin is MemoryOrigin.ESTIMATED else 1)


def margin_key(node: NodeView, device: DeviceView, architecture: str, *, is_split: bool) -> MarginKey:
    """Return the key of the loads that teach the margin on a device."""
    return MarginKey(
        build=node.engine_build, architecture=architecture, device_kind=device_kind(device), is_split=is_split
    )


def device_kind(device: DeviceView) -> str:
    """Return the kind of a device: equal kinds take the same bytes for the same layout."""
    return f"{device.backend} {device.description}"


def needs_of(
    node: NodeView, layout: Layout, report: MemoryReport, kept: Kept, others: Mapping[str, NodeView] | None = None
) -> tuple[Need, ...] | None:
    """Return the needs of a layout per device, then in host RAM: the node's own, and that of every lender.

    None: the report does not belong to the layout.
    """
    if len(report.devices) != len(layout.devices):
        return None
    needs: list[Need] = []
    is_split = len(layout.devices) > 1
    lenders: dict[str, NodeView] = {}
    for layers, counted in zip(layout.devices, report.devices, strict=True):
        owner = node if layers.node_id in ("", node.id) else (others or {}).get(layers.node_id)
        device = owner.device(layers.device_id) if owner is not None else None
        if owner is None or device is None:
            return None
        if owner is not node:
            lenders[owner.id] = owner
        needs.append(_need(owner, device, counted, report.origin, kept, is_split=is_split))
    for owner, counted in [(node, report.host), *((lender, DeviceBytes()) for lender in lenders.values())]:
        host = owner.host_device
        if host is None:
            return None
        needs.append(_need(owner, host, counted, report.origin, kept, is_split=is_split))
    return tuple(needs)


def _need(
    node: NodeView, device: DeviceView, counted: DeviceBytes, origin: MemoryOrigin, kept: Kept, *, is_split: bool
) -> Need:
    return Need(
        device_id=device.id,
        node_id=node.id,
        weights_bytes=counted.weights_bytes,
        cache_bytes=counted.cache_bytes,
        graph_bytes=counted.graph_bytes,
        projector_bytes=counted.projector_bytes,
        reserve_bytes=reserve_bytes(device, kept.policy),
        reserve_source=reserve_source(device),
        margin_bytes=kept.margin_bytes(node, device, origin, need_bytes=counted.total_bytes, is_split=is_split),
    )


def reserve_bytes(device: DeviceView, policy: Policy) -> int:
    """Return the bytes that a process holds on a device beside the model."""
    if device.process_bytes is not None:
        return device.process_bytes
    if device.kind is DeviceKind.CPU or device.backend in LENT_BACKENDS:
        return policy.host_process_reserve_bytes
    if device.backend in METAL_BACKENDS:
        return METAL_RESERVE_BYTES
    return policy.device_reserve_bytes


def reserve_source(device: DeviceView) -> str:
    """Return the origin of `reserve_bytes`, as it is shown."""
    if device.process_bytes is None:
        return "default"
    return "learned" if device.process_learned else "setting"


def overhead_bytes(device: DeviceView, policy: Policy) -> int:
    """Return the bytes of a device that are never promised, so that the machine itself keeps some."""
    if device.overhead_bytes is not None:
        return device.overhead_bytes
    if device.kind is DeviceKind.CPU:
        return max(policy.host_reserve_bytes_min, int(device.total_bytes * policy.host_reserve_fraction))
    return 0


def pools_of(device: DeviceView) -> tuple[str, ...]:
    """Return the pools that the memory of a device comes out of."""
    if device.backing_pool_id and device.backing_pool_id != device.pool_id:
        return (device.pool_id, device.backing_pool_id)
    return (device.pool_id,)


def available(
    node: NodeView,
    device: DeviceView,
    promises: Iterable[Promise],
    policy: Policy,
    *,
    without: frozenset[str] = NO_PLACEMENTS,
    backoff: float = 0.0,
) -> Available:
    """Return the available bytes of a device as if `without` were gone: the least of its own and its pools'.

    `backoff` is the part of the free bytes that is left alone because figures were stale or an allocation has failed.
    """
    here = [promise for promise in promises if promise.node_id == node.id]
    own = _figures(node, device, frozenset({device.id}), here, policy, without=without, backoff=backoff)
    lent_to = tuple(one.lent_to for one in here if one.lent_to is not None and device.id in one.device_bytes)
    if lent_to:
        own = replace(own, lent_to=lent_to)
    if device.backend in LENT_BACKENDS and _serves_somebody(device, here, without):
        return replace(own, available_bytes=0, limit=Limit.SERVER_IN_USE)
    if not device.backing_pool_id and not any(
        device.pool_id in (other.pool_id, other.backing_pool_id) for other in node.devices if other is not device
    ):
        return own
    for pool_id in pools_of(device):
        pool = pool_available(node, pool_id, here, policy, without=without, backoff=backoff)
        if pool is not None and pool.available_bytes < own.available_bytes:
            shared = pool_id if pool.device_id != device.id else ""
            own = replace(
                pool,
                device_id=device.id,
                pool_id=shared,
                lent_to=lent_to,
                speed_bytes_s=own.speed_bytes_s,
                speed_source=own.speed_source,
            )
    return own


def _serves_somebody(device: DeviceView, here: Iterable[Promise], without: frozenset[str]) -> bool:
    """Return True if the RPC server of a device has a client: a second one would wait for it, however much is free."""
    server = device.id.rpartition("/")[0]
    return any(
        count and device_id.rpartition("/")[0] == server
        for promise in here
        if promise.placement_id not in without
        for device_id, count in promise.device_bytes.items()
    )


def pool_available(
    node: NodeView,
    pool_id: str,
    promises: Iterable[Promise],
    policy: Policy,
    *,
    without: frozenset[str] = NO_PLACEMENTS,
    backoff: float = 0.0,
) -> Available | None:
    """Return the available bytes of all devices of a pool together. None: no device stands for it."""
    keeper = _pool_keeper(node, pool_id)
    if keeper is None:
        return None
    here = [promise for promise in promises if promise.node_id == node.id]
    members = frozenset([other.id for other in node.devices if pool_id in pools_of(other)])
    return _figures(node, keeper, members, here, policy, without=without, backoff=backoff)


def _pool_keeper(node: NodeView, pool_id: str) -> DeviceView | None:
    """Return the device whose figures count for the pool: the CPU where RAM is shared, else its only device."""
    host = node.host_device
    if host is not None and host.pool_id == pool_id:
        return host
    return next((device for device in node.devices if device.pool_id == pool_id), None)


def _figures(
    node: NodeView,
    device: DeviceView,
    members: frozenset[str],
    promises: Iterable[Promise],
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
    left_alone = int(device.free_bytes * backoff)
    is_capped = device.max_bytes is not None and device.max_bytes < device.total_bytes
    total = device.max_bytes if device.max_bytes is not None and is_capped else device.total_bytes
    by_free = device.free_bytes - left_alone + returned - unallocated
    by_total = total - promised
    limit = Limit.FREE
    if by_total < by_free:
        limit = Limit.MAX_BYTES if is_capped else Limit.PROMISED
    return Available(
        device_id=device.id,
        available_bytes=max(0, min(by_free, by_total) - overhead),
        free_bytes=device.free_bytes,
        promised_bytes=promised,
        overhead_bytes=overhead,
        source=device.free_source,
        age_s=device.free_age_s + node.report_age_s,
        node_id=node.id,
        total_bytes=device.total_bytes,
        backoff_bytes=left_alone,
        limit=limit,
        max_bytes=device.max_bytes,
        speed_bytes_s=device.speed_bytes_s,
        speed_source=device.speed_source,
    )


def freed_by(layout: Layout, report: MemoryReport | None, host_device_id: str) -> dict[str, int]:
    """Return the rise of the free figures if a loaded replica is stopped.

    Weights in host RAM are mapped by default, and mapped pages already count as available.
    """
    if report is None:
        return {}
    freed = {counted.device_id: counted.total_bytes for counted in report.devices}
    host = report.host.cache_bytes + report.host.graph_bytes
    if layout.use_mmap is False:
        host += report.host.weights_bytes
    freed[host_device_id] = freed.get(host_device_id, 0) + host
    return freed
