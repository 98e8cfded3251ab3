"""What a runner is started with, and how a request's wishes become it."""

from dataclasses import dataclass, replace
from enum import StrEnum

CONTEXT_TOKENS_MIN = 4
CONTEXT_TOKENS_MIN_SEEING = 2048  # one image may take most of it
CONTEXT_TOKENS_AUTO = 4096
SLOTS_AUTO = (8, 4, 2, 1)


class FlashAttention(StrEnum):
    """Whether attention runs fused."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class SplitMode(StrEnum):
    """How the tensors of a layer are shared out over several devices."""

    LAYER = "layer"
    ROW = "row"  # only where the user asks for it


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLayers:
    """How many layers (the output counts as one) lie on a device."""

    device_id: str
    layer_count: int
    node_id: str = ""  # of the node that lends it; empty: the node that the runner runs on


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A LoRA adapter that is applied to every request."""

    digest: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Which layers lie where, and the sizes of everything else. No devices: everything lies in host RAM."""

    devices: tuple[DeviceLayers, ...] = ()
    context_tokens: int  # of one slot
    slots: int
    batch_tokens: int
    cache_type_k: str = ""
    cache_type_v: str = ""
    flash_attention: FlashAttention = FlashAttention.AUTO
    threads: int = 0
    use_mmap: bool | None = None
    engine: str = ""
    projector_digest: str = ""
    adapters: tuple[Adapter, ...] = ()
    pipeline: bool = False  # several devices work on one prompt at a time; costs copies of the graph
    output_on_host: bool = False
    experts_on_host: int = 0  # of the first so many blocks
    split_mode: SplitMode = SplitMode.LAYER
    main_device: int = 0  # index into `devices`; row split only
    op_offload: bool | None = None  # None: on
    ubatch_tokens: int = 0  # 0: as `batch_tokens`

    def without_devices(self) -> "Layout":
        """The same with everything in host RAM."""
        return replace(self, devices=())

    def on(self, device_id: str, layer_count: int) -> "Layout":
        """The same with all layers on one device."""
        return replace(self, devices=(DeviceLayers(device_id=device_id, layer_count=layer_count),))


def wanted_context_tokens(asked: int | None, *, trained: int, sees: bool = False) -> int | None:
    """The context a request needs of a replica: at least the minimum, at most what was trained; None: any will do."""
    if asked is None:
        return None
    wanted = max(asked, CONTEXT_TOKENS_MIN_SEEING if sees else CONTEXT_TOKENS_MIN)
    return min(wanted, trained) if trained else wanted


def chosen_context_tokens(wanted: int | None, *, configured: int, trained: int, sees: bool = False) -> int:
    """The context of a new replica: what was asked, else what is configured, else a modest automatic value."""
    if wanted is not None:
        return wanted
    tokens = max(configured or CONTEXT_TOKENS_AUTO, CONTEXT_TOKENS_MIN_SEEING if sees else 0)
    return min(tokens, trained) if trained else tokens


def slot_steps(num_parallel: int) -> tuple[int, ...]:
    """Numbers of slots to try, best first. An explicit number is never changed."""
    return (num_parallel,) if num_parallel else SLOTS_AUTO
