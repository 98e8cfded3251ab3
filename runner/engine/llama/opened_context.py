"""A context: created with its adapters; for generation, described as it came out, counted.

LoRA adapters are loaded beside the weights that they change, and set on the context once, for every request. The engine
frees them with their model. They are fixed for the life of a runner, so that whatever a slot holds was computed with
them.
"""

import ctypes
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from common.errors import BadModelFile
from common.spec.layout import FlashAttention, Layout
from common.telemetry.logs import get_logger
from runner.core.layout.layout import cache_cells
from runner.core.layout.load_log import MemoryClass, find_refusal, parse_notes
from runner.core.layout.memory_report import MemoryUse
from runner.core.model.model_files import AdapterFile
from runner.engine.bindings import ggml
from runner.engine.bindings.library import engine_log
from runner.engine.llama.accounting import (
    Count,
    CountAgain,
    copies_bytes,
    count_memory,
    report_layers,
)
from runner.engine.llama.context import Context
from runner.engine.llama.launch import Launch
from runner.engine.llama.memory import BreakdownUnavailable
from runner.engine.llama.model import Model, launch_failure

_LINES_SHOWN = 3
_adapter_init = ggml.bind("llama_adapter_lora_init", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
_adapter_start_tokens = ggml.bind("llama_adapter_get_alora_n_invocation_tokens", ctypes.c_uint64, ctypes.c_void_p)
_adapters_set = ggml.bind(
    "llama_set_adapters_lora", ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
)


def load_adapters(launch: Launch, model: Model) -> list[int]:
    """Return the engine's adapter for each file of a launch, in order.

    Raises:
        BadModelFile: one of another model, or one that is not for every token.
        InsufficientMemory, DeviceMemoryExhausted: no memory for one.
    """
    return [_load(launch, model.pointer, adapter.path) for adapter in launch.files.adapters]


def set_adapters(context_pointer: int, pointers: list[int], adapters: tuple[AdapterFile, ...]) -> None:
    """Let a context compute with them from its next call on."""
    count = len(pointers)
    array = (ctypes.c_void_p * count)(*pointers)
    scales = (ctypes.c_float * count)(*(adapter.scale for adapter in adapters))
    failed = _adapters_set(context_pointer, array, count, scales)
    assert failed == 0, "adapters of this model"


def _load(launch: Launch, model_pointer: int, path: Path) -> int:
    engine_log.clear()
    pointer: int | None = _adapter_init(model_pointer, str(path).encode())
    if not pointer:
        if find_refusal(engine_log.errors, phase=MemoryClass.ADAPTERS) is not None:
            raise launch_failure(launch, MemoryClass.ADAPTERS)
        raise BadModelFile(f"{path.name}: " + "; ".join(list(engine_log.errors)[-_LINES_SHOWN:]))
    if _adapter_start_tokens(pointer):
        raise BadModelFile(f"{path.name}: adapters that begin at certain tokens are not supported")
    return pointer


log = get_logger()

ContextT = TypeVar("ContextT", bound=Context)

_ROW_VALUE_BYTES = 4
PIPELINE_DROPPED = "the devices have no memory for a pipeline; it is off"


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedMemory:
    """A memory report, and how much of it is for copies of prompts and states in host RAM."""

    use: MemoryUse
    copies_bytes: int


def open_context(launch: Launch, model: Model, parameters: Any, kind: type[ContextT]) -> ContextT:
    """Create a context with the adapters of the launch.

    Raises:
        InsufficientMemory, DeviceMemoryExhausted: something was refused. The model is as before.
        InvalidRequest: the engine cannot compute in the way that the layout asks for.
        BadModelFile: an adapter is not for this model.
    """
    adapters = load_adapters(launch, model)
    engine_log.clear()
    try:
        context = kind(model.pointer, parameters, vocabulary_size=model.vocabulary.size)
    except MemoryError:
        raise launch_failure(launch, MemoryClass.GRAPH) from None
    if adapters:
        set_adapters(context.pointer, adapters, launch.files.adapters)
    return context


def as_opened(layout: Layout, warnings: list[str]) -> Layout:
    """Return the layout as the engine took it; where it silently did something else, a warning is added."""
    notes = parse_notes(engine_log.notes)
    pipeline = layout.pipeline and notes.graph_copies != 1
    if layout.pipeline and not pipeline:
        warnings.append(PIPELINE_DROPPED)
    attention = layout.flash_attention
    if attention is FlashAttention.AUTO and notes.flash_attention is not None:
        attention = FlashAttention.ON if notes.flash_attention else FlashAttention.OFF
    return replace(layout, pipeline=pipeline, flash_attention=attention)


def generation_memory(
    launch: Launch, layout: Layout, model: Model, context: Context, projector_bytes: dict[int | None, int]
) -> CountedMemory | None:
    """Return the memory report of a context; None where the engine cannot tell."""
    try:
        count = count_memory(launch, context.pointer, projector_bytes=projector_bytes)
    except BreakdownUnavailable as error:
        log.info("engine.memory_unknown", text=str(error))
        return None
    return with_layers(launch, layout, count, vocabulary_size=model.vocabulary.size)


def with_layers(
    launch: Launch,
    layout: Layout,
    count: Count,
    *,
    vocabulary_size: int,
    count_again: CountAgain | None = None,
) -> CountedMemory:
    """Count per layer, with what lies in host RAM beside the engine's caches. `count_again`: see `report_layers`."""
    copies = copies_bytes(count.use)
    # The buffer of logits rows in host RAM, which the engine's own counts leave out.
    extra = copies + layout.output_rows * vocabulary_size * _ROW_VALUE_BYTES
    use = report_layers(
        launch, layout, count, cells=cache_cells(layout), host_extra_bytes=extra, count_again=count_again
    )
    return CountedMemory(use=use, copies_bytes=copies)
