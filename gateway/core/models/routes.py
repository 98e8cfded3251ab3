"""Models and their replicas as values, made from protos by `gateway.converters.routes`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.core.request.answers import Message
from gateway.core.request.option_table import OptionValue


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model of the cluster. `error` says why its file cannot be used; empty: it can."""

    name: str
    digest: str
    size_bytes: int = 0
    modified_at_unix_s: int = 0
    error: str = ""
    architecture: str = ""
    title: str = ""
    parameter_count: int = 0
    quantization: str = ""
    context_tokens: int = 0  # trained length; 0: not given
    embedding_length: int = 0
    layer_count: int = 0  # blocks, without the output layer
    vocabulary_size: int = 0  # 0: not given
    token_bytes_max: int = 0  # no token stands for more bytes; 0: not known
    capabilities: tuple[str, ...] = ()
    chat_template: str = ""
    bos_token: str = ""
    eos_token: str = ""
    special_tokens: tuple[str, ...] = ()
    sampling_defaults: Mapping[str, OptionValue] = field(default_factory=dict)  # from general.sampling.*, our names
    metadata_json: str = "{}"
    projector_digest: str = ""  # of the vision projector; empty: none
    # Fields of its manifest; all empty for a plain file.
    manifest_digest: str = ""
    total_size_bytes: int = 0
    system: str = ""
    template: str = ""
    parameters: Mapping[str, OptionValue] = field(default_factory=dict)  # those that can be used
    parameters_json: str = ""  # all, as they are
    messages: tuple[Message, ...] = ()
    licenses: tuple[str, ...] = ()
    parser: str = ""
    parent_model: str = ""

    @property
    def shown_digest(self) -> str:
        """The digest that lists show: of the manifest, where there is one."""
        return self.manifest_digest or self.digest

    @property
    def shown_size_bytes(self) -> int:
        """The size that lists show: of everything that belongs to the name."""
        return self.total_size_bytes or self.size_bytes

    @property
    def own_options(self) -> Mapping[str, OptionValue]:
        """Options that apply unless a request sets them: the manifest's values over the file's."""
        return {**self.sampling_defaults, **self.parameters}


class ReplicaState(StrEnum):
    """State of a replica; decides if it gets requests."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """Layers and bytes of one replica on one device, measured."""

    device_id: str
    name: str
    layer_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaInfo:
    """A replica as the scheduler published it."""

    placement_id: str
    generation: int
    incarnation: str
    node_id: str
    address: str
    state: ReplicaState
    context_tokens: int
    slots_total: int
    slots_busy: int = 0
    queued: int = 0
    load_fraction: float = 0.0
    reason: str = ""  # why it is broken
    devices: tuple[DeviceShare, ...] = ()
    host_bytes: int = 0
    keep_alive_ms: int | None = None
    expires_at_unix_ms: int | None = None  # None: it is busy, is not ready, or stays
    stays: bool = False  # does not go by itself

    @property
    def layers_on_devices(self) -> int:
        """Layers that the host does not compute; the output counts as one."""
        return sum(device.layer_count for device in self.devices)

    @property
    def key(self) -> str:
        """Names one life of one placement."""
        return f"{self.placement_id}/{self.generation}/{self.incarnation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteInfo:
    """A model and the replicas it has now, possibly none."""

    model: ModelInfo
    replicas: tuple[ReplicaInfo, ...] = ()
