"""Constraints of an operator or a request on a model's place. Pure: names and numbers in, filters out.

Filters come before scores. A constraint that can match nothing is the caller's mistake, and is named; lack of room is
not, and waits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from common.errors import InvalidRequest
from common.spec.layout import FlashAttention
from common.spec.load_options import LoadOptions
from scheduler.core.values.view import DeviceKind, DeviceView, NodeView, cached_per_view

ANY_DEVICE = "*"


class Shape(StrEnum):
    """Shape of a model's layout, in the order in which placement tries them."""

    ONE_DEVICE = "one_device"
    ONE_NODE = "one_node"
    NODES = "nodes"
    EXPERTS_ON_HOST = "experts_on_host"
    PARTIAL = "partial"
    CPU = "cpu"


SHAPES_FASTEST_FIRST = tuple(Shape)
# What leaves some of the work to the host's cores.
SLOW_SHAPES = frozenset({Shape.EXPERTS_ON_HOST, Shape.PARTIAL, Shape.CPU})


class FillPolicy(StrEnum):
    """Policy for sharing layers when several devices could take them."""

    PACK = "pack"  # as few devices as will do
    SPREAD = "spread"  # all of them at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Constraints of one model: an operator's, refined by a request's. The defaults ask for nothing.

    `nodes` are node ids. `devices` are device ids or labels: an id, a name, or either of them behind "node/".
    """

    nodes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    backend: str = ""
    max_shape: Shape = Shape.CPU  # the slowest that is acceptable
    policy: FillPolicy | None = None  # None: packed
    tensor_split: tuple[float, ...] = ()  # shares, one for each of `devices`
    num_gpu: int | None = None  # layers on devices, the output counts as one; None: as many as fit
    main_gpu: int | None = None  # which of the node's GPUs takes a model that needs only one; see `numbered_gpus`
    require_gpu: bool = False  # an error rather than a slow shape
    max_bytes: tuple[tuple[str, int], ...] = ()  # most that the model may take, by device label; "*": on every one

    replicas_min: int = 0
    replicas_max: int = 1
    pinned: bool = False  # never evicted, never expired
    priority: int = 0  # each step makes eviction ten times dearer
    preload: bool = False  # loaded once, as soon as there is a node that has it
    keep_alive_ms: int | None = None  # negative: for ever; None: the scheduler's default

    # Sizes a runner is started with; 0, "" and None: automatic.
    slots: int = 0
    context_tokens: int = 0
    batch_tokens: int = 0
    threads: int = 0
    cache_type_k: str = ""
    cache_type_v: str = ""
    flash_attention: FlashAttention | None = None
    use_mmap: bool | None = None
    draft: str = ""  # name of the model that guesses its tokens
    rollback_tokens: int = 0  # that a recurrent state can go back behind wrong guesses

    def __post_init__(self) -> None:
        check_consistent(self)

    @property
    def cache_types(self) -> tuple[str, str]:
        """Types of keys and values in the cache."""
        return self.cache_type_k, self.cache_type_v

    def with_cache_types(self, keys: str, values: str) -> "Constraints":
        """Return the same with other types of keys and values in the cache."""
        return replace(self, cache_type_k=keys, cache_type_v=values)

    def allows_shape(self, shape: Shape) -> bool:
        """Return True if the model may have this shape."""
        if self.require_gpu and shape in SLOW_SHAPES:
            return False
        if self.num_gpu == 0 and shape is not Shape.CPU:
            return False
        return SHAPES_FASTEST_FIRST.index(shape) <= SHAPES_FASTEST_FIRST.index(self.max_shape)

    def max_bytes_on(self, node: NodeView, device: DeviceView) -> int | None:
        """Return the limit on a device; None: no limit. One that names the device counts before the one for all."""
        named = [limit for label, limit in self.max_bytes if label_means(label, node, device)]
        for_all = [limit for label, limit in self.max_bytes if label == ANY_DEVICE]
        if named:
            return min(named)
        return min(for_all) if for_all and device.kind is not DeviceKind.CPU else None

    @property
    def names_main_gpu(self) -> bool:
        """Return True if a GPU was requested by its position. Without layers on devices it means nothing."""
        return self.main_gpu is not None and self.num_gpu != 0

    def main_device(self, node: NodeView) -> DeviceView | None:
        """Return the GPU of a node that was requested by its position, if the other constraints allow it."""
        gpus = numbered_gpus(node)
        if not self.names_main_gpu or self.main_gpu is None or self.main_gpu >= len(gpus):
            return None
        found = gpus[self.main_gpu]
        return None if node_obstacle(self, node) or _own_obstacle(self, node, found) else found

    def with_request(self, request: LoadOptions) -> "Constraints":
        """Return a copy with a request's options; these win over constraints, but never lift require_gpu.

        Raises:
            InvalidRequest: the two contradict each other; the text names the option.
        """
        return replace(
            self,
            require_gpu=self.require_gpu or request.require_gpu,
            num_gpu=self.num_gpu if request.num_gpu is None else request.num_gpu,
            main_gpu=self.main_gpu if request.main_gpu is None else request.main_gpu,
            batch_tokens=request.batch_tokens or self.batch_tokens,
            threads=request.threads or self.threads,
            use_mmap=self.use_mmap if request.use_mmap is None else request.use_mmap,
        )

    def with_defaults(self, defaults: "Constraints") -> "Constraints":
        """Return a copy with the cluster's defaults beneath it: only fields that a setting can have.

        Named devices decide the backend, and a split by hand decides the shares of layers.
        """
        splits = bool(self.tensor_split) or self.names_main_gpu
        chose_devices = bool(self.devices) or self.num_gpu == 0
        return replace(
            self,
            backend=self.backend or ("" if chose_devices else defaults.backend),
            policy=self.policy or (None if splits else defaults.policy),
            cache_type_k=self.cache_type_k or defaults.cache_type_k,
            cache_type_v=self.cache_type_v or defaults.cache_type_v,
            flash_attention=self.flash_attention or defaults.flash_attention,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConstraints:
    """Constraints of one model, and their origin."""

    model_name: str
    constraints: Constraints
    from_file: bool  # commands cannot change it
    defaults: Constraints  # what holds beside them by the settings of the cluster


def label_means(label: str, node: NodeView, device: DeviceView) -> bool:
    """Return True if a label names this device: its id or name, alone or behind "node/"."""
    return _is_named((label,), node, device)


def _is_named(labels: tuple[str, ...], node: NodeView, device: DeviceView) -> bool:
    """Return True if one of these labels names this device."""
    wanted = _as_set(labels)
    if device.id in wanted or device.name in wanted:
        return True
    return f"{node.id}/{device.id}" in wanted or f"{node.id}/{device.name}" in wanted


@lru_cache(maxsize=256)
def _as_set(names: tuple[str, ...]) -> frozenset[str]:
    """Cache the set of a list: hundreds of names are looked up for each of thousands of devices."""
    return frozenset(names)


@cached_per_view
def numbered_gpus(node: NodeView) -> Sequence[DeviceView]:
    """Return the GPUs of a node in the order of their numbers: by PCI address, then by id.

    One that is lost keeps its number while its host remembers it, so that the others do not change theirs.
    """
    gpus = (device for device in node.devices if device.kind in (DeviceKind.GPU, DeviceKind.INTEGRATED))
    return sorted(gpus, key=lambda device: (device.pci_id == "", device.pci_id, device.id))


def node_obstacle(constraints: Constraints, node: NodeView) -> str:
    """Return the name of the constraint that rules the node out; empty: none does."""
    return "nodes" if constraints.nodes and node.id not in _as_set(constraints.nodes) else ""


def whole_obstacle(constraints: Constraints, node: NodeView) -> str:
    """Return the name of the constraint that keeps layers off every device of the node; empty: none does."""
    if obstacle := node_obstacle(constraints, node):
        return obstacle
    return "main_gpu" if constraints.names_main_gpu and constraints.main_device(node) is None else ""


def device_obstacle(constraints: Constraints, node: NodeView, device: DeviceView, *, whole: str | None = None) -> str:
    """Return the name of the constraint that keeps layers off the device; empty: none does.

    The CPU is never ruled out by `backend`, and by `devices` only where it would hold layers of its own accord:
    what is left over from a list of devices goes to host RAM, if the shape allows that.
    `whole`: the result of `whole_obstacle`, for requests of all devices of a node.
    """
    return (whole_obstacle(constraints, node) if whole is None else whole) or _own_obstacle(constraints, node, device)


def _own_obstacle(constraints: Constraints, node: NodeView, device: DeviceView) -> str:
    is_cpu = device.kind is DeviceKind.CPU
    if is_cpu and constraints.require_gpu:
        return "require_gpu"
    if is_cpu and constraints.max_shape is not Shape.CPU:
        return "max_shape"
    if is_cpu and constraints.num_gpu:
        return "num_gpu"
    if constraints.devices and not _is_named(constraints.devices, node, device):
        return "devices"
    if constraints.backend and device.backend.lower() != constraints.backend.lower():
        return "backend"
    return "num_gpu" if not is_cpu and constraints.num_gpu == 0 else ""


def unmatched(constraints: Constraints, nodes: Iterable[NodeView]) -> str:
    """Return the name of the constraint that nothing in the cluster can satisfy, whatever room there is; empty: none.

    Devices that are lost or excluded count: they may come back, an unknown name does not.
    """
    known = list(nodes)
    if constraints.names_main_gpu:
        others = unmatched(replace(constraints, main_gpu=None), known)
        return others or ("" if not known or any(constraints.main_device(node) for node in known) else "main_gpu")
    if constraints.nodes and not any(node.id in constraints.nodes for node in known):
        return "nodes"
    obstacles: set[str] = set()
    for node in known:
        for device in node.layer_devices:
            obstacle = device_obstacle(constraints, node, device)
            if not obstacle:
                return ""
            obstacles.add(obstacle)
    if not obstacles:
        return ""
    for name in ("require_gpu", "backend", "devices", "max_shape", "num_gpu"):
        if name in obstacles:
            return name
    return "nodes"


def check_consistent(constraints: Constraints) -> None:
    """Refuse what contradicts itself.

    Raises:
        InvalidRequest: its `param` is the constraint.
    """
    if constraints.replicas_max < max(1, constraints.replicas_min):
        raise InvalidRequest('"replicas_max" must be at least 1 and at least replicas_min', param="replicas_max")
    if constraints.require_gpu and constraints.num_gpu == 0:
        raise InvalidRequest('"require_gpu" cannot be met with num_gpu 0', param="require_gpu")
    if constraints.num_gpu == 0 and constraints.max_shape is not Shape.CPU:
        raise InvalidRequest('"num_gpu" 0 needs max_shape cpu', param="num_gpu")
    if constraints.tensor_split and len(constraints.tensor_split) != len(constraints.devices):
        raise InvalidRequest('"tensor_split" must have one share for each of "devices"', param="tensor_split")
    if constraints.tensor_split and sum(constraints.tensor_split) <= 0:
        raise InvalidRequest('"tensor_split" must have a share above 0', param="tensor_split")


NO_CONSTRAINTS = Constraints()
