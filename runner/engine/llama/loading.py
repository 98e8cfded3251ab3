"""Common parts of loading with llama.cpp, for engines that generate and engines that pool."""

import gc
import threading

import llama_cpp.llama_cpp as llama

from runner.engine.bindings import ggml
from runner.engine.contract.engine import EngineListener, LoadedModel, LoadProgress, weights_progress
from runner.engine.devices.devices import engine_build
from runner.engine.llama.launch import Launch
from runner.engine.llama.model import Model, load_model


def load_weights(launch: Launch, listener: EngineListener, stop: threading.Event) -> Model:
    """Load the model of a launch and report progress to the listener; `stop` ends the load.

    Raises:
        PunaError: see `load_model`.
    """
    bytes_total = launch.header.weights_bytes

    def on_progress(fraction: float) -> bool:
        listener.load_progressed(weights_progress(fraction, bytes_total))
        return not stop.is_set()

    return load_model(
        launch.files.model,
        launch.layout,
        device_pointers=launch.device_pointers,
        on_progress=on_progress,
        rearranges=launch.rearranges,
        more=launch.files.more,
    )


def tell_loaded(listener: EngineListener, launch: Launch, model: LoadedModel) -> None:
    """Everything is there, and what is there now lives as long as the process: no collection need look at it."""
    gc.collect()
    gc.freeze()
    bytes_total = launch.header.weights_bytes
    listener.load_progressed(LoadProgress(1.0, bytes_total, bytes_total))
    listener.loaded(model)


def system_facts() -> dict[str, object]:
    """Engine, CPU and devices, for the one record that each start leaves in the log."""
    cpu, _, features = llama.llama_print_system_info().decode().partition(":")
    enabled = [name.strip() for name, _, value in (part.partition("=") for part in features.split("|")) if "1" in value]
    names = [ggml.device_name(ggml.device_get(index)).decode() for index in range(ggml.device_count())]
    return {
        "engine": engine_build(),
        "cpu": {"backend": cpu.strip(), "features": enabled},
        "devices": [{"index": index, "name": name} for index, name in enumerate(names)],
    }
