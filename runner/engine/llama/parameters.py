"""A layout as llama.cpp's parameter structs: the one place where each launch setting becomes an engine parameter."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import llama_cpp.llama_cpp as llama

from common.errors import InvalidRequest
from common.spec.layout import FlashAttention, Layout, SplitMode
from runner.core.layout.layer_places import EXPERTS_PATTERN, OUTPUT_PATTERN, offloaded_layers
from runner.core.layout.layout import batch_sizes, cache_cells
from runner.engine.bindings import ggml

_LOAD_MODE_AUTO, _LOAD_MODE_NONE, _LOAD_MODE_MMAP = -1, 0, 1
_SPLIT_MODES = {SplitMode.LAYER: 1, SplitMode.ROW: 2}  # llama_split_mode
_CACHE_TYPES = {"f16": 1, "q4_0": 2, "q8_0": 8}  # ggml_type
# The engine pipelines by itself where it can, unless a tensor is sent elsewhere: this one does not exist.
_NO_TENSOR_PATTERN = "^no tensor has this name$"
_FLASH_ATTENTION = {FlashAttention.AUTO: -1, FlashAttention.OFF: 0, FlashAttention.ON: 1}


@dataclass(frozen=True, slots=True)
class ModelParameters:
    """llama_model_params, and the arrays that it points into."""

    struct: Any
    owned: tuple[Any, ...]


def model_parameters(layout: Layout, device_pointers: Mapping[str, int], *, rearranges: bool = True) -> ModelParameters:
    """Parameters to load a model's weights as the layout says.

    Args:
        layout: resolved layout.
        device_pointers: ggml device of each device id of the layout.
        rearranges: the CPU may keep weights in an order of its own, which its faster kernels want.

    Raises:
        InvalidRequest: the layout names a device that this process does not have.
    """
    pointers = []
    for device in layout.devices:
        if device.device_id not in device_pointers:
            raise InvalidRequest(f"the layout names device {device.device_id!r}, which this node does not have")
        pointers.append(device_pointers[device.device_id])
    devices = (ctypes.c_void_p * (len(pointers) + 1))(*pointers, None)  # only NULL: nothing but the CPU
    layers = offloaded_layers(layout)
    struct = llama.llama_model_default_params()
    struct.devices = ctypes.cast(devices, ctypes.c_void_p)
    struct.n_gpu_layers = sum(layers)
    struct.split_mode = _SPLIT_MODES[layout.split_mode]
    struct.main_gpu = layout.main_device
    struct.use_extra_bufts = rearranges
    struct.load_mode = {None: _LOAD_MODE_AUTO, True: _LOAD_MODE_MMAP, False: _LOAD_MODE_NONE}[layout.use_mmap]
    # Of one device, too: without shares llama.cpp divides by the sum of free bytes, and fails where it is 0.
    split = (ctypes.c_float * llama.llama_max_devices())(*layers)
    struct.tensor_split = split
    overrides = _host_overrides(layout)
    struct.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
    return ModelParameters(struct, (devices, split, overrides))


def host_patterns(layout: Layout) -> list[str]:
    """Names of tensors that stay in host RAM although their layer lies on a device; llama.cpp takes the first match."""
    patterns = [OUTPUT_PATTERN] if layout.output_on_host else []
    if layout.experts_on_host:
        patterns.append(EXPERTS_PATTERN.format(blocks="|".join(map(str, range(layout.experts_on_host)))))
    if not patterns and len(layout.devices) > 1 and not layout.pipeline:
        patterns.append(_NO_TENSOR_PATTERN)
    return patterns


def _host_overrides(layout: Layout) -> Any:
    """Return the array that llama.cpp reads: a pattern and a buffer type each, ended by an empty one."""
    patterns = host_patterns(layout)
    array = (ggml.TensorOverride * (len(patterns) + 1))()
    for entry, pattern in zip(array, patterns, strict=False):
        entry.pattern, entry.buffer_type = pattern.encode(), ggml.cpu_buffer_type()
    return array


def context_parameters(layout: Layout) -> Any:
    """llama_context_params for generation with the layout."""
    struct = llama.llama_context_default_params()
    struct.n_ctx = cache_cells(layout)
    struct.n_seq_max = layout.slots
    struct.n_batch, struct.n_ubatch = batch_sizes(layout)
    # llama.cpp aborts if the last tokens of a prompt, of which it keeps a state each, fill a graph.
    struct.n_rs_seq = max(0, min(layout.rollback_tokens, struct.n_ubatch - 2))
    # The default would reserve logits for a whole batch.
    struct.n_outputs_max = layout.output_rows
    struct.n_threads = struct.n_threads_batch = layout.threads
    struct.type_k, struct.type_v = (_CACHE_TYPES[name] for name in layout.cache_types)
    struct.flash_attn_type = _FLASH_ATTENTION[layout.flash_attention]
    struct.kv_unified = not layout.separate_caches
    struct.swa_full = False
    struct.offload_kqv = True
    struct.op_offload = layout.op_offload is not False
    struct.no_perf = True
    return struct
