"""What a decode step of one token reads of a loaded model."""

from runner.core.layout.layout import SplitMode
from runner.core.layout.memory_report import MemoryUse
from runner.core.sequence.decode_windows import StepReads, weights_read
from runner.engine.llama.launch import Launch


def step_reads(launch: Launch, use: MemoryUse | None, *, cells: int) -> StepReads | None:
    """None where it cannot be told: without a count, with adapters, and where devices work on one layer together."""
    layout = launch.layout
    together = layout.split_mode is not SplitMode.LAYER and len(layout.devices) > 1
    if use is None or together or launch.adapter_tensors or not cells:
        return None
    numbers = launch.header.numbers
    weights = weights_read(
        launch.header.tensors,
        launch.places,
        experts=numbers.one("expert_count"),
        experts_used=numbers.one("expert_used_count"),
    )
    # The output layer has no cells; host RAM has copies of prompts there.
    cache = sum(sum(held.layer_cache_bytes[:-1]) for held in (use.host, *(held for _, held in use.devices)))
    return StepReads(weights=weights, cell_bytes=cache / cells)
