"""The life of an engine on llama.cpp: load in a thread of its own, serve there, end."""

import gc
import threading
from abc import ABC, abstractmethod
from math import inf
from typing import Generic, TypeVar

import llama_cpp.llama_cpp as llama

from common.errors import PunaError
from common.spec.layout import Layout
from runner.core.model.model_files import ModelFiles
from runner.core.threads.step_times import EngineStep
from runner.engine.bindings import ggml
from runner.engine.bindings.library import start_engine
from runner.engine.contract.engine import EngineListener, LoadedModel, LoadProgress, weights_progress
from runner.engine.devices.devices import engine_build
from runner.engine.llama.context import Context
from runner.engine.llama.launch import Launch, ModelHeader, prepare_launch
from runner.engine.llama.model import Model, load_launched
from runner.engine.llama.vocabulary import Vocabulary
from runner.engine.threads.engine_loop import EngineLoop
from runner.engine.threads.engine_thread import EngineThread, mark_engine_thread
from runner.engine.threads.spinning import ComputeThreads

LoopT = TypeVar("LoopT", bound=EngineLoop)


class LlamaEngine(ABC, Generic[LoopT]):
    """Loads one model in a thread of its own and serves it there; see `runner.engine.contract.engine.Engine`."""

    def __init__(self, files: ModelFiles, layout: Layout, header: ModelHeader | None = None) -> None:
        """`header` is that of the files, if it has been read already."""
        self._files = files
        self._header = header
        self._layout = layout
        self._thread = EngineThread()
        self._stop_load = threading.Event()
        self._model: Model | None = None
        self._loop: LoopT | None = None
        self._threads: ComputeThreads | None = None

    @abstractmethod
    def _open(self, launch: Launch, model: Model, listener: EngineListener) -> tuple[Context, LoadedModel]:
        """Have everything ready to serve behind the weights; the loop is made last.

        Raises:
            PunaError: the model cannot be served.
        """

    @property
    def vocabulary(self) -> Vocabulary:
        """Only once loaded."""
        assert self._model is not None, "still loading"
        return self._model.vocabulary

    @property
    def _serving(self) -> LoopT:
        assert self._loop is not None, "still loading"
        return self._loop

    @property
    def step(self) -> EngineStep:
        """Return the current step of the engine thread; none runs before the model is loaded."""
        return EngineStep(0, inf) if self._loop is None else self._loop.step

    def start(self, listener: EngineListener) -> None:
        """Begin to load in the engine thread."""
        self._thread.start(self._run, listener)

    def cancel(self, sequence_id: int) -> None:
        """Drop a request before the next decode call."""
        self._serving.cancel(sequence_id)

    def use_threads(self, count: int) -> None:
        """Let so many threads compute from the next decode call on."""
        self._serving.use_threads(count)

    def stop(self) -> None:
        """Abort the load, or drop every request and end the thread."""
        self._stop_load.set()
        if self._loop is not None:
            self._loop.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait for the engine thread to end."""
        return self._thread.join(timeout_s)

    def close(self) -> None:
        """Free the model. Streams are written for a while when the thread has ended, and still read its vocabulary."""
        if self._model is not None:
            self._model.close()
            self._model = None

    def _run(self, listener: EngineListener) -> None:
        """Run the engine thread. Whatever escapes from serving is fatal: its state is unknown."""
        try:
            context = self._load(listener)
        except PunaError as error:
            self.close()
            if not self._stop_load.is_set():  # the reason is of no interest any more
                listener.load_failed(error)
            return
        except BaseException as error:  # noqa: BLE001  # the process must not live on half loaded
            listener.died(error)
            return
        try:
            if not self._stop_load.is_set():
                self._serving.run()
            self._close(context)
        except BaseException as error:  # noqa: BLE001  # as above
            listener.died(error)

    def _load(self, listener: EngineListener) -> Context:
        mark_engine_thread()
        start_engine()
        launch = prepare_launch(self._files, self._layout, header=self._header)
        model = self._model = _load_weights(launch, listener, self._stop_load)
        context, loaded = self._open(launch, model, listener)
        _tell_loaded(listener, launch, loaded)
        return context

    def _close(self, context: Context) -> None:
        """Free what computes."""
        assert self._threads is not None
        self._threads.close()
        context.close()


def _load_weights(launch: Launch, listener: EngineListener, stop: threading.Event) -> Model:
    """Load the model of a launch and report progress to the listener; `stop` ends the load.

    Raises:
        PunaError: see `load_model`.
    """
    bytes_total = launch.header.weights_bytes

    def on_progress(fraction: float) -> bool:
        listener.load_progressed(weights_progress(fraction, bytes_total))
        return not stop.is_set()

    return load_launched(launch, on_progress)


def _tell_loaded(listener: EngineListener, launch: Launch, model: LoadedModel) -> None:
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
