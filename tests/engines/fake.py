"""An engine that computes nothing: for tests of scale, time and faults. It needs no model file."""

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from common.errors import BadModelFile, InsufficientMemory, PunaError
from common.spec.layout import Layout
from common.telemetry.logs import get_logger
from runner.core.layout.layout import resolve_layout
from runner.core.layout.memory_report import ClassBytes, MemoryUse
from runner.core.model.model_files import ModelFiles
from runner.engine.contract.choice import EngineName
from runner.engine.contract.engine import Engine, EngineListener, LoadedModel, LoadProgress, weights_progress
from tests.engines.engine import Opened, PlainEngine
from tests.engines.fake_model import FakeVocabulary, fake_choice, fake_logits, prompt_key
from tests.engines.fake_options import FakeOptions, parse_fake_options
from tests.engines.plain_loop import Inputs
from tests.engines.plain_sequence import PlainSequence

log = get_logger()

LOAD_STEPS = 50
_LEVEL_ERROR = 4  # ggml_log_level
_LOAD_ERRORS: dict[str, type[PunaError]] = {kind.reason: kind for kind in (BadModelFile, InsufficientMemory)}


class FakeEngine(PlainEngine):
    """See `runner.engine.contract.engine.Engine`, and `FakeOptions` for what it plays."""

    def __init__(self, files: ModelFiles, layout: Layout, options: FakeOptions | None = None) -> None:
        super().__init__()
        self._path = files.model
        self._layout = layout
        self._options = options or FakeOptions()

    def start(self, listener: EngineListener) -> None:
        """Begin to load in the engine thread."""
        if self._options.ignore_sigterm:
            # Here and not in the engine thread: only the main thread may.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        super().start(listener)

    def _open(self, on_progress: Callable[[LoadProgress], None]) -> Opened:
        options = self._options
        file_bytes = self._path.stat().st_size if self._path.is_file() else 0
        weights_bytes = options.weights_bytes or file_bytes
        for step in range(LOAD_STEPS):
            on_progress(weights_progress(step / LOAD_STEPS, weights_bytes))
            self._stopping.wait(options.load_s / LOAD_STEPS)
        on_progress(weights_progress(1.0, weights_bytes))
        if options.load_error:
            raise _LOAD_ERRORS[options.load_error](f"{self._path.name}: the fake engine is set to fail")
        layout = replace(self._layout, engine=EngineName.FAKE)
        resolved = resolve_layout(layout, trained_context_tokens=options.trained_context_tokens, cpu_threads=1)
        return Opened(
            backend=FakeBackend(options, resolved.layout, self._stopping),
            vocabulary=FakeVocabulary(),
            suppressed=frozenset(),
            model=LoadedModel(
                layout=resolved.layout,
                warnings=resolved.warnings,
                slot_context_tokens=resolved.layout.context_tokens,
                weights_bytes=weights_bytes,
                memory=MemoryUse(devices=(), host=ClassBytes(weights_bytes=options.held_bytes)),
            ),
        )


class FakeBackend:
    """Plays the time that steps take, and the faults."""

    keeps_prefixes = True
    can_move = True

    def __init__(self, options: FakeOptions, layout: Layout, stopping: threading.Event) -> None:
        self.slots = layout.slots
        self.batch_tokens = max(options.batch_tokens or layout.batch_tokens, layout.slots)
        self._options = options
        self._stopping = stopping
        self._held = np.ones(options.held_bytes, np.uint8)  # written, so that the pages are really taken
        self._keys: dict[int, int] = {}  # by slot: of the prompt that the slot's sequence has
        self._key_owners: dict[int, int] = {}
        self._generated = 0

    def evaluate(self, step: Sequence[Inputs]) -> list[NDArray[np.float32] | None]:
        """Take the step's time, then give every sequence that wants a token its row."""
        self._break(step)
        prompt_tokens = sum(len(inputs.tokens) for inputs in step if not inputs.sequence.generating)
        generating = sum(inputs.sequence.generating for inputs in step)
        duration_s = self._options.step_s
        if self._options.prompt_tokens_per_s:
            duration_s += prompt_tokens / self._options.prompt_tokens_per_s
        if self._options.tokens_per_s:
            duration_s += generating / self._options.tokens_per_s
        self._take(duration_s)
        self._generated += sum(inputs.wants_token for inputs in step)
        return [self._row(inputs.sequence) if inputs.wants_token else None for inputs in step]

    def choose(self, sequence: PlainSequence, weighed: NDArray[np.float32]) -> int:
        """The sequence's next token."""
        return fake_choice(weighed, sequence.request.sampling, sequence.rules.generated)

    def close(self) -> None:
        """Give the held memory back."""
        self._held = np.ones(0, np.uint8)

    def _row(self, sequence: PlainSequence) -> NDArray[np.float32]:
        if self._key_owners.get(sequence.slot_id) != sequence.id:
            self._key_owners[sequence.slot_id] = sequence.id
            self._keys[sequence.slot_id] = prompt_key(self._options.seed, sequence.request.prompt.inputs)
        key = self._keys[sequence.slot_id]
        return fake_logits(key, sequence.rules.generated, answer_tokens=self._options.answer_tokens)

    def _take(self, duration_s: float) -> None:
        """Wait so long from now, apart from a stop."""
        if duration_s > 0.0:
            self._stopping.wait(duration_s)

    def _break(self, step: Sequence[Inputs]) -> None:
        """Play the fault whose time has come."""
        options = self._options
        seeds = {inputs.sequence.request.sampling.seed for inputs in step}
        if options.abort_on_seed in seeds - {None}:
            die_in_engine(options.last_words)
        if options.stall_on_seed in seeds - {None}:
            threading.Event().wait()
        if options.die_after_tokens is not None and self._generated >= options.die_after_tokens:
            die(options.exit_status)
        if options.stall_after_tokens is not None and self._generated >= options.stall_after_tokens:
            log.warning("fake.stalled", generated_tokens=self._generated)
            self._stopping.wait()


def die(exit_status: int | None) -> None:
    """End the process at once, with a status or by a signal, as an engine does that crashes."""
    if exit_status is None:
        os.abort()
    os._exit(exit_status)


def die_in_engine(last_words: Sequence[str]) -> None:
    """Abort; with last words through ggml's own log and abort, as its CUDA backend does after a failed call."""
    if last_words:
        # Here, because all else works without llama.cpp.
        from runner.engine.bindings.ggml import bind
        from runner.engine.bindings.library import start_engine

        start_engine()
        write = bind("ggml_log_internal", None, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)
        for line in last_words:
            write(_LEVEL_ERROR, b"%s\n", line.encode())
        bind("ggml_abort", None, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p)(b"ggml-cuda.cu", 103, b"CUDA error")
    die(None)


def open_engine(files: ModelFiles, layout: Layout, options: str) -> Engine:
    """Open the engine, as `runner.engine.opening` does."""
    parsed = parse_fake_options(options)
    if parsed.real:
        from tests.engines.paced import PacedEngine  # only this one needs llama.cpp

        return PacedEngine(
            files,
            replace(layout, engine=""),
            step_s=parsed.step_s,
            drafts=parsed.drafts,
            endless_kernel_after_steps=parsed.endless_kernel_after_steps,
        )
    return FakeEngine(files, layout, parsed)
