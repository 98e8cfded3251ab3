"""A layout as llama.cpp's parameter structs: the one place where each launch setting becomes an engine parameter."""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import llama_cpp.llama_cpp as llama

from common.errors import InvalidRequest
from runner.core.layout import FlashAttention, LaunchLayout, cache_cells

_LOAD_MODE_AUTO, _LOAD_MODE_NONE, _LOAD_MODE_MMAP = -1, 0, 1
_SPLIT_MODE_NONE, _SPLIT_MODE_LAYER = 0, 1
_CACHE_TYPES = {"f16": 1, "q4_0": 2, "q8_0": 8}  # ggml_type
_FLASH_ATTENTION = {FlashAttention.AUTO: -1, FlashAttention.OFF: 0, FlashAttention.ON: 1}


@dataclass(frozen=True, slots=True)
class ModelParameters:
    """llama_model_params, and the arrays that it points into."""

    struct: Any
    owned: tuple[Any, ...]


def model_parameters(layout: LaunchLayout, device_pointers: Mapping[str, int]) -> ModelParameters:
    """Parameters to load a model's weights as the layout says.

    Args:
        layout: resolved layout.
        device_pointers: ggml device of each device id of the layout.

    Raises:
        InvalidRequest: the layout names a device that this process does not have.
    """
    pointers = []
    for device in layout.devices:
        if device.id not in device_pointers:
            raise InvalidRequest(f"the layout names device {device.id!r}, which this node does not have")
        pointers.append(device_pointers[device.id])
    devices = (ctypes.c_void_p * (len(pointers) + 1))(*pointers, None)  # only NULL: nothing but the CPU
    struct = llama.llama_model_default_params()
    struct.devices = ctypes.cast(devices, ctypes.c_void_p)
    struct.n_gpu_layers = sum(device.layers for device in layout.devices)
    struct.split_mode = _SPLIT_MODE_LAYER
    struct.load_mode = {None: _LOAD_MODE_AUTO, True: _LOAD_MODE_MMAP, False: _LOAD_MODE_NONE}[layout.use_mmap]
    split = (ctypes.c_float * llama.llama_max_devices())()
    for index, device in enumerate(layout.devices):
        split[index] = device.layers
    if len(layout.devices) > 1:
        struct.tensor_split = split
    return ModelParameters(struct, (devices, split))


def context_parameters(layout: LaunchLayout) -> Any:
    """llama_context_params for generation with the layout."""
    struct = llama.llama_context_default_params()
    struct.n_ctx = cache_cells(layout)
    struct.n_seq_max = layout.slots
    # One decode call is one graph, and no call of ours is larger: llama.cpp aborts above n_batch.
    struct.n_batch = struct.n_ubatch = max(layout.batch_tokens, layout.slots)
    # Logits are wanted for one input of each sequence at most; the default would reserve them for a whole batch.
    struct.n_outputs_max = layout.slots
    struct.n_threads = struct.n_threads_batch = layout.threads
    struct.type_k = _CACHE_TYPES[layout.cache_type_k]
    struct.type_v = _CACHE_TYPES[layout.cache_type_v]
    struct.flash_attn_type = _FLASH_ATTENTION[layout.flash_attention]
    struct.kv_unified = True
    struct.swa_full = False
    struct.offload_kqv = True
    struct.op_offload = True
    struct.no_perf = True
    return struct
