"""View of the cluster: nodes, their devices, model files and runners. Values only."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import wraps
from typing import Any, TypeVar

from common.spec.layout import Layout
from common.spec.speculation import Speculation
from scheduler.core.values.asked import NOTHING_ASKED, Asked
from scheduler.core.values.facts import ModelFacts
from scheduler.core.values.faults import Fault
from scheduler.core.values.memory import MemoryReport

Derived = TypeVar("Derived")


class DeviceKind(StrEnum):
    """Kind of a device; the order of preference is in `placement`."""

    GPU = "gpu"
    INTEGRATED = "integrated"
    CPU = "cpu"
    ACCELERATOR = "accelerator"  # holds no layers of its own
    UNKNOWN = "unknown"


LAYER_KINDS = frozenset({DeviceKind.GPU, DeviceKind.INTEGRATED, DeviceKind.CPU})


class Trust(StrEnum):
    """Reliability of a figure of free memory."""

    MEASURED = "measured"
    PREDICTED = "predicted"
    STALE = "stale"
    UNKNOWN = "unknown"


class RunnerState(StrEnum):
    """Life of a runner as its host reports it."""

    UNKNOWN = "unknown"
    LAUNCHED = "launched"
    LOADING = "loading"
    READY = "ready"
    NO_SLOTS = "no_slots"
    NOT_RESPONDING = "not_responding"
    ERROR = "error"
    DRAINING = "draining"


SERVING_STATES = frozenset({RunnerState.READY, RunnerState.NO_SLOTS})
STARTING_STATES = frozenset({RunnerState.LAUNCHED, RunnerState.LOADING})


class SpeedSource(StrEnum):
    """Source of a device's speed, in the words of the API."""

    UNKNOWN = ""
    COPY = "probe copy"  # what its test timed
    LIKE_DEVICES = "like devices"  # what replicas showed on those
    REPLICAS = "replicas"  # their decode steps


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderView:
    """A placement whose process lies on a device."""

    placement_id: str
    listed: bool  # the device's driver says so; it does for a while after the end of the process
    held_bytes: int = 0  # 0: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """One device and its memory as last reported."""

    id: str
    name: str
    kind: DeviceKind
    backend: str
    description: str
    pool_id: str  # devices of a node with the same pool draw from the same memory
    total_bytes: int
    free_bytes: int
    free_source: str
    free_age_s: float  # when the inventory was received
    trust: Trust
    usable: bool
    lost: bool = False  # it was there and is gone, which also makes it unusable
    probing: bool = False  # what the node has is not known yet: likewise
    state_reason: str = ""
    speed_bytes_s: float = 0.0  # what ranks it; 0: not known
    speed_source: SpeedSource = SpeedSource.UNKNOWN
    copy_bytes_s: float = 0.0  # of a copy inside the device; 0: not known
    max_bytes: int | None = None  # most that may ever be promised here, set by the operator
    overhead_bytes: int | None = None  # never promised; None: the policy's own for such a device
    process_bytes: int | None = None  # of a process beside its model; None: the policy's own for such a device
    process_learned: bool = False  # from loads; else the operator's
    pci_id: str = ""  # empty: it has none
    backing_pool_id: str = ""  # another pool of the node that the memory comes out of, too
    holders: tuple[HolderView, ...] = ()
    alone: bool = False  # a process on it can use no other device of its backend

    def holder(self, placement_id: str) -> HolderView | None:
        """Return the process of a placement on this device; None: none lives here, and the driver lists none."""
        return next((one for one in self.holders if one.placement_id == placement_id), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A model file as a node has it. `error` says why it cannot be used; empty: it can."""

    name: str
    digest: str
    size_bytes: int
    modified_at_unix_s: int
    trained_context_tokens: int  # 0: not given
    layer_count: int
    error: str = ""
    facts: ModelFacts | None = None  # None: its header was not read
    projector_digest: str = ""  # of the vision projector beside it; empty: none
    projector_size_bytes: int = 0
    manifest_digest: str = ""  # of what is said of it besides; empty: a plain file
    blob_digests: tuple[str, ...] = ()  # of everything that a runner needs; empty: other nodes cannot fetch it
    total_size_bytes: int = 0  # of everything that the name holds; 0: the file and its projector

    @property
    def fetched_bytes(self) -> int:
        """Return the bytes that a fetch adds to a node's store."""
        return self.total_size_bytes or self.size_bytes + self.projector_size_bytes

    @property
    def sees(self) -> bool:
        """Return True if it is loaded with a vision projector."""
        return bool(self.projector_digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerView:
    """One runner as its host reports it."""

    placement_id: str
    generation: int
    incarnation: str
    model_name: str
    model_digest: str
    layout: Layout
    address: str
    state: RunnerState
    load_fraction: float = 0.0
    load_bytes_done: int = 0  # weights in memory; what is fetched first is none
    load_bytes_total: int = 0
    is_fetching: bool = False  # its host gets the files from another node first
    slots_total: int = 0
    slots_busy: int = 0
    queued: int = 0
    idle_ms: int = 0
    keep_alive_ms: int | None = None
    keep_alive_requests: int = 0  # requests that asked for one; 0: none, or a build that does not count them
    requests_total: int = 0
    held_prompt_s: float = 0.0  # what it took to evaluate the prompts that its slots hold
    memory: MemoryReport | None = None
    speculation: Speculation | None = None  # None: not loaded, or of an earlier build
    fault: Fault | None = None
    last_error_line: str = ""  # of its log, while it loads
    asked: Asked = NOTHING_ASKED  # as its Start said

    @property
    def is_busy(self) -> bool:
        """Return True if a sequence runs or waits."""
        return self.slots_busy > 0 or self.queued > 0


_MISSING: Any = object()


def cached_per_view(derive: Callable[["NodeView"], Derived]) -> Callable[["NodeView"], Derived]:
    """Decorate a function of one node: compute its result once per view. Views are replaced, never changed."""

    @wraps(derive)
    def cached(node: "NodeView") -> Derived:
        found: Derived = node.cache.get(derive, _MISSING)
        if found is _MISSING:
            found = node.cache[derive] = derive(node)
        return found

    return cached


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One machine with devices."""

    id: str
    address: str
    engine_build: str
    devices: tuple[DeviceView, ...]
    models: tuple[ModelFile, ...]
    runners: tuple[RunnerView, ...]
    suspect: bool = False
    # It comes and goes: what runs there stays, new replicas go to other nodes for a while.
    is_damped: bool = field(default=False, metadata={"local": True})
    report_age_s: float = 0.0  # when the inventory was received
    rpc_enabled: bool = False  # lends its devices to runners of other nodes, and borrows theirs
    tunnel_certificate: bytes = b""  # by which other nodes know it when it borrows
    models_free_bytes: int = 0  # what its store may still take; 0: nothing, or it is read-only

    # Of `cached_per_view`.
    cache: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False, metadata={"local": True})

    def device(self, device_id: str) -> DeviceView | None:
        """Return the device of this id, if the node has it."""
        for device in self.devices:
            if device.id == device_id:
                return device
        return None

    @property
    @cached_per_view
    def host_device(self) -> DeviceView | None:
        """Return the device that stands for the node's RAM."""
        return next((device for device in self.devices if device.kind is DeviceKind.CPU), None)

    @property
    @cached_per_view
    def layer_devices(self) -> Sequence[DeviceView]:
        """Return the devices that could hold layers. The host decides on an integrated GPU beside a discrete one."""
        return [device for device in self.devices if device.kind in LAYER_KINDS]

    @cached_per_view
    def _usable_files(self) -> Mapping[str, ModelFile]:
        return {model.digest: model for model in reversed(self.models) if not model.error}

    def model(self, digest: str) -> ModelFile | None:
        """Return the usable file of this digest, if the node has it; the first of several."""
        return self._usable_files().get(digest)

    @cached_per_view
    def projectors(self) -> Mapping[str, str]:
        """Return the digests of the usable models that have a projector beside them, each with its projector's."""
        return {digest: file.projector_digest for digest, file in self._usable_files().items() if file.projector_digest}
