"""Layout that a runner is started with, and the sizes that follow from it. Pure."""

from dataclasses import dataclass, replace

from common.errors import InvalidRequest
from common.spec.layout import FlashAttention, Layout, SplitMode
from runner.core.layout.cache_sizes import CELL_STEP, padded

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
_CELLS_MAX = 2**31 - 1  # positions and cells are numbered by 32-bit integers


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedLayout:
    """A layout without automatic values, and why some differ from what was asked."""

    layout: Layout
    warnings: tuple[str, ...]


def automatic_threads(*, physical_cores: int, weights_bytes: int) -> int:
    """Return the number of compute threads for a model whose layout leaves it open.

    A decode step has hundreds of operations with a barrier after each. Where an operation takes microseconds, further
    threads gain nothing, and as soon as a core is shared with other work every barrier waits for the scheduler: a model
    of 3 MB made 3,500 tokens/s with one thread and between 36 and 3,100 with two (2 cores, other work on them).
    """
    return min(physical_cores, 1 + weights_bytes // WEIGHTS_BYTES_PER_THREAD)


def resolve_layout(
    layout: Layout, *, trained_context_tokens: int, cpu_threads: int, block_count: int = 0
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
    if context_tokens * slots > _CELLS_MAX - CELL_STEP:
        raise InvalidRequest(
            f"{slots} slots of {context_tokens} tokens are more cells than the engine can number",
            param="context_tokens",
        )
    cache_types: list[str] = []
    for given in layout.cache_types:
        name = given or "f16"
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
        threads=layout.threads or cpu_threads,
        engine=layout.engine or "batched",
        pipeline=pipeline,
        use_mmap=_use_mmap(layout, block_count=block_count),
        op_offload=layout.op_offload is not False,
    ).with_cache_types(*cache_types)
    return ResolvedLayout(layout=resolved, warnings=tuple(warnings))


def _use_mmap(layout: Layout, *, block_count: int) -> bool | None:
    """Host weights are best mapped; what only passes through to devices would leave a second copy in the page cache."""
    if layout.use_mmap is None and block_count and lies_on_devices(layout, block_count=block_count):
        return False
    return layout.use_mmap


def can_pipeline(layout: Layout, *, block_count: int) -> bool:
    """Return True if several devices can work on one prompt: whole layers, all of them on devices."""
    several = len(layout.devices) > 1 and layout.split_mode is SplitMode.LAYER
    return several and lies_on_devices(layout, block_count=block_count)


def lies_on_devices(layout: Layout, *, block_count: int) -> bool:
    """Return True if every layer is on a device, and no part of one in host RAM."""
    sent = layout.output_on_host or layout.experts_on_host > 0
    return not sent and sum(device.layer_count for device in layout.devices) > block_count


def _check_devices(layout: Layout) -> None:
    ids = [device.device_id for device in layout.devices]
    if len(set(ids)) != len(ids):
        raise InvalidRequest("the layout names a device twice", param="devices")
    if len(ids) > DEVICES_MAX:
        raise InvalidRequest(f"a runner computes on at most {DEVICES_MAX} devices", param="devices")
    if layout.main_device >= max(1, len(ids)):
        raise InvalidRequest(f"main_device {layout.main_device} is none of {len(ids)} devices", param="main_device")
    if layout.split_mode is SplitMode.ROW and layout.pipeline:
        raise InvalidRequest("a row split has no pipeline", param="pipeline")


def batch_sizes(layout: Layout) -> tuple[int, int]:
    """Tokens of one decode call and of one graph, for a resolved layout.

    Every call of ours is at most as large: llama.cpp aborts above. A call of a pipeline has a piece for each slot, so
    that a device need not wait for the ones behind it.
    """
    call_tokens = max(layout.batch_tokens, layout.slots)
    graph_tokens = min(layout.ubatch_tokens or call_tokens, call_tokens)
    return (call_tokens * layout.slots if layout.pipeline else call_tokens), graph_tokens


def cache_cells(layout: Layout) -> int:
    """Cells of the unified cache: one context for each slot, padded as llama.cpp pads it."""
    return padded(layout.context_tokens * layout.slots)


def slot_context_tokens(cells: int, slots: int) -> int:
    """Return the context of one slot when `cells` are shared out.

    Raises:
        InvalidRequest: less than one cell for each slot.
    """
    if cells < slots:
        raise InvalidRequest(
            f"must have at least one kv cache entry per parallel sequence (kv: {cells} parallel: {slots})"
        )
    return cells // slots
