"""Load a model's weights, with progress."""

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import llama_cpp.llama_cpp as llama

from common.errors import BadModelFile, DeviceMemoryExhausted, InsufficientMemory, InvalidRequest, PunaError
from common.spec.layout import Layout
from runner.core.layout.load_log import BufferRefusal, MemoryClass, find_refusal
from runner.engine.bindings import ggml
from runner.engine.bindings.gguf_header import check_model_file
from runner.engine.bindings.library import engine_log
from runner.engine.llama.launch import Launch
from runner.engine.llama.parameters import ModelParameters, model_parameters
from runner.engine.llama.vocabulary import Vocabulary

# What llama.cpp logs when it cannot compute in the way that a layout asks for.
_LAYOUT_WORDS = ("requires Flash Attention", "does not support split buffers", "requires flash_attn")


class Model:
    """Loaded weights. Freed by `close`, after every context."""

    def __init__(self, pointer: int) -> None:
        """`pointer` is an owned llama_model."""
        self.pointer = pointer
        self.vocabulary = Vocabulary(llama.llama_model_get_vocab(pointer))
        self.trained_context_tokens: int = llama.llama_model_n_ctx_train(pointer)
        self.window_tokens: int = max(0, llama.llama_model_n_swa(pointer))
        self.recurrent: bool = llama.llama_model_is_recurrent(pointer) or llama.llama_model_is_hybrid(pointer)
        self.size_bytes: int = llama.llama_model_size(pointer)

    def close(self) -> None:
        """Free the weights."""
        llama.llama_model_free(self.pointer)


def load_launched(launch: Launch, on_progress: Callable[[float], bool]) -> Model:
    """Load the model of a launch; `on_progress` and errors are those of `load_model`."""
    return load_model(
        launch.files.model,
        launch.layout,
        device_pointers=launch.device_pointers,
        on_progress=on_progress,
        rearranges=launch.rearranges,
        more=launch.files.more,
    )


def load_model(
    path: Path,
    layout: Layout,
    *,
    device_pointers: Mapping[str, int],
    on_progress: Callable[[float], bool],
    rearranges: bool = True,
    more: Sequence[Path] = (),
) -> Model:
    """Read a model into memory as the layout says.

    Args:
        path: GGUF file.
        layout: resolved layout.
        device_pointers: ggml device of each device id of the layout.
        on_progress: called with 0..1, never falling; False stops the load.
        rearranges: as in `model_parameters`.
        more: the other files of a model that is split, in their order.

    Raises:
        BadModelFile: missing, unreadable, truncated, or nothing the engine can load.
        InsufficientMemory, DeviceMemoryExhausted: a buffer was refused, in host RAM or on a device.
        InvalidRequest: the engine cannot split the model in this way.
    """
    for part in (path, *more):
        if not part.is_file():
            raise load_failure(part)
    parameters = model_parameters(layout, device_pointers, rearranges=rearranges)
    progress = _Progress(on_progress)
    parameters.struct.progress_callback = progress.callback
    engine_log.clear()
    engine_log.notes.clear()
    pointer = read_weights((path, *more), parameters)
    if not pointer:
        raise load_failure(path, more=more, device_pointers=device_pointers)
    if llama.llama_model_has_encoder(pointer) and llama.llama_model_has_decoder(pointer):
        llama.llama_model_free(pointer)
        raise BadModelFile(f"{path.name}: models with an encoder and a decoder are not supported")
    if llama.llama_model_is_diffusion(pointer):
        llama.llama_model_free(pointer)
        raise BadModelFile(f"{path.name}: diffusion models are not supported")
    return Model(pointer)


def read_weights(paths: Sequence[Path], parameters: ModelParameters) -> int | None:
    """Return the engine's model of these files, which it owns; None where it refuses."""
    if len(paths) == 1:
        pointer: int | None = llama.llama_model_load_from_file(os.fsencode(paths[0]), parameters.struct)
        return pointer
    names = (ctypes.c_char_p * len(paths))(*(os.fsencode(path) for path in paths))
    split: int | None = llama.llama_model_load_from_splits(names, len(paths), parameters.struct)
    return split


def load_failure(
    path: Path,
    *,
    more: Sequence[Path] = (),
    phase: MemoryClass = MemoryClass.WEIGHTS,
    device_pointers: Mapping[str, int] | None = None,
) -> PunaError:
    """Return the error of a failed load: the fault of the file, else the engine's last log lines.

    Args:
        path: the model.
        more: its other files.
        phase: what was being allocated.
        device_pointers: ggml devices by id, to name the one that refused.
    """
    try:
        for part in (path, *more):
            check_model_file(part)
    except BadModelFile as error:
        return error
    text = "; ".join(line for line in engine_log.errors if line)[-600:] or "the engine gave no reason"
    refusal = find_refusal(engine_log.errors, phase=phase)
    if refusal is not None:
        return _refused(path, refusal, device_pointers or {}, text)
    if any(word in text for word in _LAYOUT_WORDS):
        return InvalidRequest(f"{path.name}: {text}", param="layout")
    return BadModelFile(f"{path.name}: {text}")


def launch_failure(launch: Launch, phase: MemoryClass) -> PunaError:
    """Return the error of a launch whose last allocation was refused."""
    return load_failure(launch.files.model, phase=phase, device_pointers=launch.device_pointers)


def _refused(path: Path, refusal: BufferRefusal, device_pointers: Mapping[str, int], text: str) -> PunaError:
    for device_id, pointer in device_pointers.items():
        if (ggml.buffer_type_name(ggml.device_buffer_type(pointer)) or b"").decode() == refusal.buffer:
            return DeviceMemoryExhausted(
                f"{path.name}: device {device_id} refused {refusal.size_bytes} bytes for {refusal.what}"
            )
    return InsufficientMemory(f"{path.name}: no memory for {refusal.what}: {text}")


class _Progress:
    """The callback that llama.cpp calls on the loading thread; no exception may cross into C."""

    def __init__(self, on_progress: Callable[[float], bool]) -> None:
        self._on_progress = on_progress
        self._highest = 0.0
        self.callback = llama.llama_progress_callback(self._call)

    def _call(self, fraction: float, _: ctypes.c_void_p | None) -> bool:
        try:
            self._highest = max(self._highest, min(fraction, 1.0))
            return self._on_progress(self._highest)
        except BaseException:  # noqa: BLE001  # an undefined return value would go on loading
            return False
