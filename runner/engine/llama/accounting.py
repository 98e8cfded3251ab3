"""The memory report of a context: the engine's own counts, per layer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from common.errors import PunaError
from common.spec.layout import Layout, SplitMode
from common.telemetry.logs import get_logger
from runner.core.layout.cache_sizes import block_cache_bytes
from runner.core.layout.layout import COPIES_BYTES_MAX, COPIES_MAX
from runner.core.layout.load_log import parse_notes
from runner.core.layout.memory_layers import LayerFacts, Mismatch, split_layers
from runner.core.layout.memory_report import BufferUse, ClassBytes, MemoryUse, sum_by_device
from runner.core.layout.moved_layer import MovedLayer, choose_move, known_layer
from runner.engine.bindings.library import engine_log
from runner.engine.llama.launch import Launch
from runner.engine.llama.memory import BreakdownUnavailable, read_breakdown

log = get_logger()

_MAPPED = "Mapped"  # in the names of buffers that are the mapped file


def copies_bytes(use: MemoryUse) -> int:
    """Most host RAM for copies of prompts and states."""
    cached = use.host.cache_bytes + sum(count.cache_bytes for _, count in use.devices)
    return min(COPIES_BYTES_MAX, COPIES_MAX * cached)


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Counts of the engine: totals, and whether its host weights are the mapped file."""

    use: MemoryUse
    mapped: bool


# Counts once more, with one layer moved.
CountAgain = Callable[[MovedLayer], Count]


def count_memory(
    launch: Launch,
    context: int,
    *,
    projector_bytes: Mapping[int | None, int] | None = None,
    graphs: Mapping[int, int] | None = None,
) -> Count:
    """Return the bytes of a context and its model, by device of the layout.

    Args:
        launch: the model's.
        context: address of the llama_context.
        projector_bytes: to be added: by ggml device, None for host RAM.
        graphs: bytes of graphs by buffer type, where nothing is allocated (`reserve_graphs`).

    Raises:
        BreakdownUnavailable: the engine cannot tell on this machine.
    """
    device_ids = {pointer: device_id for device_id, pointer in launch.device_pointers.items()}
    # A lent device may have a second name of the engine's own.
    device_ids.update({launch.device_pointers[device.device_id]: device.device_id for device in launch.layout.devices})
    buffers = read_breakdown(context, device_ids, graphs=graphs)
    mapped = any(buffer.device_id is None and _MAPPED in buffer.buffer_type for buffer in buffers)
    for pointer, size in (projector_bytes or {}).items():
        device_id = None if pointer is None else device_ids.get(pointer, "")
        buffers.append(BufferUse(buffer_type="projector", device_id=device_id, bytes=ClassBytes(projector_bytes=size)))
    return Count(
        use=sum_by_device(buffers, device_ids=[device.device_id for device in launch.layout.devices]), mapped=mapped
    )


def report_layers(
    launch: Launch,
    layout: Layout,
    count: Count,
    *,
    cells: int,
    host_extra_bytes: int,
    count_again: CountAgain | None = None,
) -> MemoryUse:
    """Return the totals per layer, with adapters and what the runner itself keeps in host RAM.

    A formula that is off is logged, and what it says scaled to the count.

    Args:
        launch: the model's.
        layout: as the context was created with it.
        count: of the engine.
        cells: of the context's cache.
        host_extra_bytes: held beside it: output rows, copies of prompts and states.
        count_again: for a formula that is off, to learn what one layer really takes.
    """
    numbers = launch.header.numbers
    windowed = parse_notes(engine_log.notes).windowed
    guessed = numbers.windowed()
    facts = LayerFacts(
        places=launch.places,
        tensors=launch.header.tensors,
        adapter_tensors=launch.adapter_tensors,
        block_cache_bytes=block_cache_bytes(
            numbers,
            layout,
            windowed=[windowed.get(block, guess) for block, guess in enumerate(guessed)],
            cells=cells,
        ),
        host_extra_bytes=host_extra_bytes,
        mapped=count.mapped,
    )
    report, mismatches = split_layers(count.use, facts)
    if layout.split_mode is SplitMode.ROW:  # every device has rows of every layer: only the totals say something
        return replace(count.use, host=report.host)
    _log_mismatches(mismatches)
    moved = choose_move(launch.layout, launch.places, mismatches) if count_again is not None else None
    if count_again is None or moved is None:
        return report
    try:
        counted = count_again(moved)
    except (BreakdownUnavailable, PunaError, ValueError) as error:
        log.warning("memory.not_counted_again", block=moved.block, text=str(error))
        return report
    known = known_layer(moved, count.use, counted.use, mismatches)
    if known is None:
        log.warning("memory.not_counted_again", block=moved.block, text="it grew where the block was taken away")
        return report
    log.info(
        "memory.counted_again",
        block=known.block,
        weights_bytes=known.weights_bytes,
        cache_bytes=known.cache_bytes,
    )
    return split_layers(count.use, facts, known=known)[0]


def _log_mismatches(mismatches: tuple[Mismatch, ...]) -> None:
    for mismatch in mismatches:
        log.warning(
            "memory.formula_off",
            device=mismatch.device_id or "host",
            of=mismatch.what,
            counted_bytes=mismatch.counted_bytes,
            expected_bytes=mismatch.expected_bytes,
        )
