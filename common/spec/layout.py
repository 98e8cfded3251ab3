"""Layout of a runner: place of every layer, and the sizes of everything else. Pure."""

from dataclasses import dataclass, field, replace
from enum import StrEnum

# Drafted tokens of one decode call, of all sequences together. Logits for them are reserved at load.
DRAFTED_TOKENS_MAX = 15


class FlashAttention(StrEnum):
    """Use of the fused attention kernel."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class SplitMode(StrEnum):
    """Distribution of the tensors of a layer over several devices."""

    LAYER = "layer"  # whole layers
    ROW = "row"  # rows of each matrix; only where the user asks for it


@dataclass(frozen=True, slots=True)
class DeviceLayers:
    """Number of layers on a device. Blocks count from the first, the output layer as one more."""

    device_id: str
    layer_count: int
    node_id: str = ""  # of the node that lends it; empty: the node that the runner runs on
    rpc_address: str = ""  # "host:port" of the server that lends it, set by the host; empty: a device of this machine
    rpc_device: int = 0  # index among the devices lent there


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A LoRA adapter that is applied to every request."""

    digest: str
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Place of every layer, and the sizes of everything else. 0, "" and None mean: chosen by the runner."""

    devices: tuple[DeviceLayers, ...] = ()  # in layer order; empty: everything in host RAM
    context_tokens: int = 0  # of one slot
    slots: int = 0
    batch_tokens: int = 0
    cache_type_k: str = ""
    cache_type_v: str = ""
    flash_attention: FlashAttention = FlashAttention.AUTO
    threads: int = 0
    use_mmap: bool | None = None
    engine: str = ""
    projector_digest: str = ""
    adapters: tuple[Adapter, ...] = ()
    pipeline: bool = False  # several devices work on one prompt at the same time; costs copies of the graph
    output_on_host: bool = False
    experts_on_host: int = 0  # of the first so many blocks
    split_mode: SplitMode = SplitMode.LAYER
    main_device: int = 0  # index into `devices`, for what a row split does not share out
    op_offload: bool | None = None  # large batches compute host weights on a device; None: on
    ubatch_tokens: int = 0  # tokens of one graph; 0: as `batch_tokens`
    draft_digest: str = ""  # of the model that guesses tokens for this one; empty: none
    rollback_tokens: int = 0  # that a recurrent state can go back; takes a copy of it each, for each slot
    # Not to be requested: see `runner.core.layout.cache_sizes`.
    separate_caches: bool = field(default=False, metadata={"local": True})

    @property
    def output_rows(self) -> int:
        """Return the rows of logits that a resolved layout reserves: one for each slot, and those of drafted tokens."""
        return min(self.slots + DRAFTED_TOKENS_MAX, max(self.batch_tokens, self.slots))

    @property
    def state_copies(self) -> int:
        """Return the recurrent states that are allocated in each recurrent layer."""
        return self.slots * (1 + self.rollback_tokens)

    @property
    def cache_types(self) -> tuple[str, str]:
        """Types of keys and values in the cache."""
        return self.cache_type_k, self.cache_type_v

    def with_cache_types(self, keys: str, values: str) -> "Layout":
        """Return the same with other types of keys and values in the cache."""
        return replace(self, cache_type_k=keys, cache_type_v=values)

    def without_devices(self) -> "Layout":
        """Return the same with everything in host RAM."""
        return replace(self, devices=())

    def on(self, device_id: str, layer_count: int) -> "Layout":
        """Return the same with all layers on one device."""
        return replace(self, devices=(DeviceLayers(device_id=device_id, layer_count=layer_count),))
