"""What a placement decision is made of, and which devices it may consider at all."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from scheduler.core.constraints import NO_CONSTRAINTS, Constraints, device_obstacle
from scheduler.core.eviction import Evictable, PoolKey
from scheduler.core.faults import Fault
from scheduler.core.layouts import Layout
from scheduler.core.ledger import Available, Need, Promise
from scheduler.core.memory import MemoryReport
from scheduler.core.policy import Policy
from scheduler.core.view import DeviceKind, DeviceView, NodeView, Trust


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureKey:
    """What a memory report depends on. Equal keys have equal reports, on whatever node they were measured."""

    model_digest: str
    engine_build: str
    device_kinds: tuple[tuple[str, str, int], ...]  # backend, description, layers
    layout: Layout  # without its devices: ids are this node's


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """What is to be placed. `layout` says all but the devices."""

    model_digest: str
    layout: Layout
    slot_steps: tuple[int, ...]
    require_gpu: bool = False
    constraints: Constraints = NO_CONSTRAINTS
    backoff: Mapping[tuple[str, str], float] = field(default_factory=dict)  # (node, device) where allocations failed


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """An immutable snapshot: nodes, what is promised on them, what could be evicted, and where loads run."""

    nodes: tuple[NodeView, ...]
    promises: tuple[Promise, ...] = ()
    evictable: tuple[Evictable, ...] = ()
    loading_pools: frozenset[PoolKey] = frozenset()
    loads_per_node: Mapping[str, int] = field(default_factory=dict)


Reports = Mapping[MeasureKey, MemoryReport | Fault]


class Verdict(StrEnum):
    """Why a candidate was taken or not."""

    FITS = "fits"
    SHORT_BYTES = "short_bytes"
    DEVICE_EXCLUDED = "device_excluded"
    NODE_SUSPECT = "node_suspect"
    FILE_MISSING = "file_missing"
    FIGURES_UNUSABLE = "figures_unusable"
    MEASURE_FAILED = "measure_failed"
    LOAD_IN_PROGRESS = "load_in_progress"
    GPU_REQUIRED = "gpu_required"
    CONSTRAINED = "constrained"


class RefusalKind(StrEnum):
    """What a refusal means for the caller."""

    BUSY = "busy"  # there will be room when others are gone
    INSUFFICIENT_MEMORY = "insufficient_memory"
    NO_DEVICE = "no_device"  # nothing usable to place on
    MEASURE_FAILED = "measure_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One device that was considered, with the numbers as used."""

    node_id: str
    device_id: str
    verdict: Verdict
    slots: int
    needs: tuple[Need, ...] = ()
    available: tuple[Available, ...] = ()
    reason: str = ""

    @property
    def short_bytes(self) -> int:
        """How much the shortest device lacks."""
        pairs = zip(self.needs, self.available, strict=False)
        return max((need.total_bytes - have.available_bytes for need, have in pairs), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The decision: this layout on that node, after `victims` have gone."""

    node_id: str
    layout: Layout
    report: MemoryReport
    needs: tuple[Need, ...]
    victims: tuple[str, ...]
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureFirst:
    """This report is needed before the answer is known."""

    key: MeasureKey
    node_id: str
    layout: Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """No, and why."""

    kind: RefusalKind
    message: str
    candidates: tuple[Candidate, ...]
    fault: Fault | None = None  # of the measurement that failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One device that may be considered."""

    node: NodeView
    device: DeviceView

    @property
    def key(self) -> tuple[str, str]:
        """Node and device."""
        return self.node.id, self.device.id

    def age_s(self) -> float:
        """How old the free figure is."""
        return self.device.free_age_s + self.node.report_age_s


HOLDS_LAYERS = frozenset({DeviceKind.GPU, DeviceKind.INTEGRATED, DeviceKind.CPU})


def find_sites(request: PlacementRequest, view: ClusterView, policy: Policy) -> Iterator[tuple[Site, Verdict, str]]:
    """Every device that could hold layers, with FITS while nothing speaks against it, else the reason."""
    for node in view.nodes:
        has_discrete = any(device.kind is DeviceKind.GPU and device.usable for device in node.devices)
        of_node = _node_obstacle(request, view, policy, node)
        for device in node.devices:
            if device.kind not in HOLDS_LAYERS or (device.kind is DeviceKind.INTEGRATED and has_discrete):
                continue
            site = Site(node=node, device=device)
            verdict, reason = of_node or _device_obstacle(request, view, policy, site) or (Verdict.FITS, "")
            yield site, verdict, reason


def _node_obstacle(
    request: PlacementRequest, view: ClusterView, policy: Policy, node: NodeView
) -> tuple[Verdict, str] | None:
    host = node.host_device
    if node.suspect:
        return Verdict.NODE_SUSPECT, "the node is silent"
    if node.model(request.model_digest) is None:
        return Verdict.FILE_MISSING, "the node does not have the file"
    if host is None or not host.usable:
        return Verdict.DEVICE_EXCLUDED, host.state_reason if host is not None else "the node does not report its RAM"
    if view.loads_per_node.get(node.id, 0) >= policy.loads_per_node_max:
        return Verdict.LOAD_IN_PROGRESS, "the node has as many loads as it may"
    return None


def _device_obstacle(
    request: PlacementRequest, view: ClusterView, policy: Policy, site: Site
) -> tuple[Verdict, str] | None:
    node, device = site.node, site.device
    if not device.usable:
        return Verdict.DEVICE_EXCLUDED, device.state_reason or "the device is not usable"
    if device.trust is Trust.UNKNOWN or site.age_s() > policy.figures_unusable_s:
        return Verdict.FIGURES_UNUSABLE, f"free memory is unknown or {site.age_s():.1f} s old"
    if request.require_gpu and device.kind is DeviceKind.CPU:
        return Verdict.GPU_REQUIRED, "a GPU is required"
    if obstacle := device_obstacle(request.constraints, node, device):
        return Verdict.CONSTRAINED, f'the model is kept off by "{obstacle}"'
    # Free bytes move while a load runs, so a device takes one at a time. RAM may take two: what they will hold is
    # promised beforehand, and a stuck load must not block a machine that has nothing but its CPU.
    if device.kind is not DeviceKind.CPU and (node.id, device.pool_id) in view.loading_pools:
        return Verdict.LOAD_IN_PROGRESS, "another load runs on the device"
    return None
