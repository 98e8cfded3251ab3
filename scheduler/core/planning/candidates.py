"""Inputs of a placement decision, and the devices that it may consider at all."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from common.spec.layout import Layout
from scheduler.core.sizes.eviction import Evictable, PoolKey
from scheduler.core.sizes.ledger import Available, Need, Promise
from scheduler.core.sizes.margins import NO_MARGINS, Margins
from scheduler.core.sizes.splitting import DeviceKey
from scheduler.core.values.constraints import NO_CONSTRAINTS, Constraints, Shape
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import MemoryOrigin, MemoryReport
from scheduler.core.values.view import NodeView


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureKey:
    """Inputs that a memory report depends on. Equal keys have equal reports on every node."""

    model_digest: str
    engine_build: str
    device_kinds: tuple[tuple[str, str, int], ...]  # backend, description, layers
    layout: Layout  # without its devices: ids are this node's


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """Model to be placed. `layout` has all but the devices; slots and automatic values come from the steps."""

    model_digest: str
    layout: Layout
    slot_steps: tuple[int, ...]
    automatic_context: bool = False  # the context follows from the node's devices
    automatic_cache_type: bool = False  # a smaller cache type may be taken
    constraints: Constraints = NO_CONSTRAINTS
    backoff: Mapping[tuple[str, str], float] = field(default_factory=dict)  # (node, device) where allocations failed
    failed_nodes: Mapping[str, str] = field(default_factory=dict)  # node → why it is not tried again
    # (node, device) of the replicas that stay: another one goes elsewhere if it can.
    replicas: frozenset[DeviceKey] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """An immutable snapshot: nodes, what is promised on them, what could be evicted, and where loads run."""

    nodes: tuple[NodeView, ...]
    promises: tuple[Promise, ...] = ()
    evictable: Iterable[Evictable] = ()
    loading_pools: frozenset[PoolKey] = frozenset()
    loads_per_node: Mapping[str, int] = field(default_factory=dict)
    pinned: frozenset[str] = frozenset()  # placements that never go for this load: waiting for them is of no use
    drained: frozenset[str] = frozenset()  # nodes that operators have taken out of use
    margins: Margins = NO_MARGINS
    decoding: Mapping[DeviceKey, float] = field(default_factory=dict)  # replicas that decode on a device, mean of 60 s


Reports = Mapping[MeasureKey, MemoryReport | Fault]


class Verdict(StrEnum):
    """Reason for accepting or rejecting a candidate."""

    FITS = "fits"
    SHORT_BYTES = "short_bytes"
    DEVICE_EXCLUDED = "device_excluded"
    NODE_SUSPECT = "node_suspect"
    NODE_DAMPED = "node_damped"  # it came and went too often
    NODE_DRAINED = "node_drained"
    NODE_PROBING = "node_probing"  # its host does not know its devices yet
    FILE_MISSING = "file_missing"
    FIGURES_UNUSABLE = "figures_unusable"
    MEASURE_FAILED = "measure_failed"
    LOAD_IN_PROGRESS = "load_in_progress"
    GPU_REQUIRED = "gpu_required"
    CONSTRAINED = "constrained"
    LAYOUT_NOT_FOUND = "layout_not_found"  # rounds of measuring and planning found no layout
    LOAD_FAILED = "load_failed"  # loads that read weights failed here


class RefusalKind(StrEnum):
    """Kind of a refusal, as the caller has to react to it."""

    BUSY = "busy"  # there will be room when others are gone
    INSUFFICIENT_MEMORY = "insufficient_memory"
    NO_DEVICE = "no_device"  # nothing usable to place on
    MEASURE_FAILED = "measure_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Devices that were considered together, with the numbers as used; host RAM alone has the CPU's id."""

    node_id: str
    device_ids: tuple[str, ...]
    verdict: Verdict
    slots: int
    needs: tuple[Need, ...] = ()
    available: tuple[Available, ...] = ()
    reason: str = ""
    shape: Shape | None = None  # None: the device was left out before any shape was tried
    context_tokens: int = 0
    layer_count: int = 0  # on devices, the output counts as one
    device_layers: tuple[int, ...] = ()  # likewise of each device, in the order of `needs`, which end with host RAM
    expected_s: float = 0.0  # seconds for a token; 0: not worked out
    rounds: int = 0  # layouts that were measured
    origin: MemoryOrigin = MemoryOrigin.UNKNOWN

    @property
    def device_id(self) -> str:
        """Return the id of the first device."""
        return self.device_ids[0]

    @property
    def short_bytes(self) -> int:
        """Return the bytes that the shortest device lacks."""
        if not self.needs or not self.available:
            return 0
        need, have = self.shortest
        return need.total_bytes - have.available_bytes

    @property
    def shortest(self) -> tuple[Need, Available]:
        """Return the need with the largest shortage, and the available bytes of its device. There are `needs`."""
        pairs = zip(self.needs, self.available, strict=False)
        return max(pairs, key=lambda pair: pair[0].total_bytes - pair[1].available_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The decision: this layout on that node, after `victims` have gone."""

    node_id: str
    layout: Layout
    report: MemoryReport
    needs: tuple[Need, ...]
    victims: tuple[str, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    shape: Shape | None = None  # None: taken over from a former leader
    key: MeasureKey | None = None  # of its report; likewise
    expected_s: float = 0.0
    rounds: int = 0
    note: str = ""  # what of the request it leaves out, for display


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureFirst:
    """This report is needed before the answer is known."""

    key: MeasureKey
    node_id: str
    layout: Layout
    holds: Mapping[DeviceKey, int] = field(default_factory=dict)  # bytes, while it runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """No, and why."""

    kind: RefusalKind
    message: str
    candidates: tuple[Candidate, ...]
    fault: Fault | None = None  # of the measurement that failed
    nearest: tuple[str, ...] = ()  # configurations that would fit, for people
