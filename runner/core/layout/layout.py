"""What a runner is started with, and the sizes that follow from it. Pure."""

from dataclasses import dataclass, replace
from enum import StrEnum

from common.errors import InvalidRequest

DEFAULT_CONTEXT_TOKENS = 4096
DEFAULT_SLOTS = 8
DEFAULT_BATCH_TOKENS = 512
# Below this a further thread costs more at the barriers than it computes.
WEIGHTS_BYTES_PER_THREAD = 32 * 1024 * 1024
SLOTS_MAX = 256  # LLAMA_MAX_SEQ
CACHE_TYPES = ("f16", "q8_0", "q4_0")
DEVICES_MAX = 15  # the engine's scheduler takes 16 backends, and one is the CPU
# Host RAM for copies of prompts and states: at most so much, and at most so many copies of all caches. A state that
# cannot go back is kept eight times for each slot (`checkpoints.py`), and a copy has a few bytes of its own.
COPIES_BYTES_MAX = 256 * 1024 * 1024
COPIES_MAX = 10
_CELL_STEP = 256  # llama.cpp pads contexts to this
_CELLS_MAX = 2**31 - 1  # positions and cells are numbered by 32-bit integers


class FlashAttention(StrEnum):
    """Whether attention runs in the fused kernel."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class SplitMode(StrEnum):
    """How the tensors of a layer are shared out between several devices."""

    LAYER = "layer"  # whole layers
    ROW = "row"  # rows of each matrix


@dataclass(frozen=True, slots=True)
class LayoutDevice:
    """The layers that lie on one device. Blocks count from the first, the output layer as one more."""

    id: str
    layers: int
    rpc_address: str = ""  # "host:port" of the server that lends it; empty: a device of this machine
    rpc_device: int = 0  # which of the devices lent there


@dataclass(frozen=True, slots=True)
class LayoutAdapter:
    """A LoRA adapter by what identifies it; its file is in `ModelFiles`."""

    digest: str
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchLayout:
    """Which layers lie where, and the sizes of everything else. 0 and "" mean: chosen by `resolve_layout`."""

    devices: tuple[LayoutDevice, ...] = ()  # in layer order; empty: everything in host RAM
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
    adapters: tuple[LayoutAdapter, ...] = ()
    pipeline: bool = False  # several devices work on one prompt at the same time
    output_on_host: bool = False
    experts_on_host: int = 0  # of the first so many blocks
    split_mode: SplitMode = SplitMode.LAYER
    main_device: int = 0  # index into `devices`, for what a row split does not share out
    op_offload: bool | None = None  # large batches compute host weights on a device
    ubatch_tokens: int = 0  # tokens of one graph
    separate_caches: bool = False  # not to be asked for: see `runner.core.layout.separate_caches`


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedLayout:
    """A layout without automatic values, and why some differ from what was asked."""

    layout: LaunchLayout
    warnings: tuple[str, ...]


def automatic_threads(*, physical_cores: int, weights_bytes: int) -> int:
    """How many threads compute a model whose layout leaves it open.

    A decode step has hundreds of operations with a barrier after each. Where an operation takes microseconds, further
    threads gain nothing, and as soon as a core is shared with anybody every barrier waits for the scheduler: a model of
    3 MB made 3,500 tokens/s with one thread and between 36 and 3,100 with two (2 cores, other work on them).
    """
    return min(physical_cores, 1 + weights_bytes // WEIGHTS_BYTES_PER_THREAD)


def resolve_layout(
    layout: LaunchLayout, *, trained_context_tokens: int, cpu_threads: int, block_count: int = 0
) -> ResolvedLayout:
    """Fill in what the layout leaves open. A `block_count` of 0 is not known.

    Raises:
        InvalidRequest: a size that no engine can have; the caller corrects the layout.
    """
    warnings: list[str] = []
    slots = layout.slots or DEFAULT_SLOTS
    if slots > SLOTS_MAX:
        raise InvalidRequest(f"a runner has at most {SLOTS_MAX} slots", param="slots")
    context_tokens = layout.context_tokens
    if context_tokens == 0:
        context_tokens = min(DEFAULT_CONTEXT_TOKENS, trained_context_tokens or DEFAULT_CONTEXT_TOKENS)
    if context_tokens * slots > _CELLS_MAX - _CELL_STEP:
        raise InvalidRequest(
            f"{slots} slots of {context_tokens} tokens are more cells than the engine can number",
            param="context_tokens",
        )
    cache_types: list[str] = []
    for name in (layout.cache_type_k or "f16", layout.cache_type_v or "f16"):
        if name not in CACHE_TYPES:
            raise InvalidRequest(f"cache type {name!r} is none of {', '.join(CACHE_TYPES)}", param="cache_type")
        if name != "f16" and layout.flash_attention is FlashAttention.OFF:
            warnings.append(f"cache type {name} needs flash attention; f16 is used")
            cache_types.append("f16")
        else:
            cache_types.append(name)
    _check_devices(layout)
    pipeline = layout.pipeline and (not block_count or can_pipeline(layout, block_count=block_count))
    if layout.pipeline and not pipeline:
        warnings.append("a pipeline needs several devices that hold every layer; it is off")
    resolved = replace(
        layout,
        context_tokens=context_tokens,
        slots=slots,
        batch_tokens=layout.batch_tokens or DEFAULT_BATCH_TOKENS,
        cache_type_k=cache_types[0],
        cache_type_v=cache_types[1],
        threads=layout.threads or cpu_threads,
        engine=layout.engine or "batched",
        pipeline=pipeline,
        use_mmap=_use_mmap(layout, block_count=block_count),
        op_offload=layout.op_offload is not False,
    )
    return ResolvedLayout(layout=resolved, warnings=tuple(warnings))


def _use_mmap(layout: LaunchLayout, *, block_count: int) -> bool | None:
    """Host weights are best mapped; what only passes through to devices would leave a second copy in the page cache."""
    if layout.use_mmap is None and block_count and lies_on_devices(layout, block_count=block_count):
        return False
    return layout.use_mmap


def can_pipeline(layout: LaunchLayout, *, block_count: int) -> bool:
    """Whether the engine lets several devices work on one prompt: it wants whole layers, and all of them there."""
    several = len(layout.devices) > 1 and layout.split_mode is SplitMode.LAYER
    return several and lies_on_devices(layout, block_count=block_count)


def lies_on_devices(layout: LaunchLayout, *, block_count: int) -> bool:
    """Whether every layer lies on a device, and nothing of it is sent to host RAM."""
    sent = layout.output_on_host or layout.experts_on_host > 0
    return not sent and sum(device.layers for device in layout.devices) > block_count


def _check_devices(layout: LaunchLayout) -> None:
    ids = [device.id for device in layout.devices]
    if len(set(ids)) != len(ids):
        raise InvalidRequest("the layout names a device twice", param="devices")
    if len(ids) > DEVICES_MAX:
        raise InvalidRequest(f"a runner computes on at most {DEVICES_MAX} devices", param="devices")
    if layout.main_device >= max(1, len(ids)):
        raise InvalidRequest(f"main_device {layout.main_device} is none of {len(ids)} devices", param="main_device")
    if layout.split_mode is SplitMode.ROW and layout.pipeline:
        raise InvalidRequest("a row split has no pipeline", param="pipeline")


def batch_sizes(layout: LaunchLayout) -> tuple[int, int]:
    """Tokens of one decode call and of one graph, for a resolved layout.

    Every call of ours is at most as large: llama.cpp aborts above. A call of a pipeline has a piece for each slot, so
    that a device need not wait for the ones behind it.
    """
    call_tokens = max(layout.batch_tokens, layout.slots)
    graph_tokens = min(layout.ubatch_tokens or call_tokens, call_tokens)
    return (call_tokens * layout.slots if layout.pipeline else call_tokens), graph_tokens


def cache_cells(layout: LaunchLayout) -> int:
    """Cells of the unified cache: one context for each slot, padded as llama.cpp pads it."""
    wanted = layout.context_tokens * layout.slots
    return -(-wanted // _CELL_STEP) * _CELL_STEP


def slot_context_tokens(cells: int, slots: int) -> int:
    """The context of one slot when `cells` are shared out.

    Raises:
        InvalidRequest: less than one cell for each slot.
    """
    if cells < slots:
        raise InvalidRequest(
            f"must have at least one kv cache entry per parallel sequence (kv: {cells} parallel: {slots})"
        )
    return cells // slots
