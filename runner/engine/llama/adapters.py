"""LoRA adapters: loaded beside the weights that they change, and set on the context once, for every request.

The engine frees them with their model. They are fixed for the life of a runner, so that whatever a slot holds was
computed with them.
"""

import ctypes
from pathlib import Path

from common.errors import BadModelFile
from runner.core.layout.load_log import MemoryClass, find_refusal
from runner.core.model.model_files import AdapterFile
from runner.engine.bindings import ggml
from runner.engine.bindings.library import engine_log
from runner.engine.llama.launch import Launch
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
