"""The life of an engine on the plain loop: load in a thread of its own, serve there, end."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from common.errors import PunaError, ShuttingDown
from runner.core.sequence.endings import REPEATED_TOKENS_MAX
from runner.core.sequence.media import PreparedImage
from runner.core.sequence.requests import GenerationRequest, check_request, prepare_prompt
from runner.core.threads.step_times import EngineStep
from runner.engine.contract.engine import EngineListener, LoadedModel, LoadProgress, TokenTable, refuse_image
from runner.engine.threads.engine_thread import EngineThread
from tests.engines.plain_loop import PlainBackend, PlainLoop
from tests.engines.plain_sequence import new_sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A loaded model and what computes it."""

    backend: PlainBackend
    vocabulary: TokenTable
    suppressed: frozenset[int]  # tokens that must never come up
    model: LoadedModel


class PlainEngine(ABC):
    """See `runner.engine.contract.engine.Engine`. What loads and computes is the subclass's."""

    def __init__(self, *, repeats_max: int = REPEATED_TOKENS_MAX) -> None:
        self._repeats_max = repeats_max
        self._thread = EngineThread()
        self._stopping = threading.Event()
        self._opened: Opened | None = None
        self._loop: PlainLoop | None = None

    @abstractmethod
    def _open(self, on_progress: Callable[[LoadProgress], None]) -> Opened:
        """Load the model, in the engine thread. `on_progress` raises to end a load.

        Raises:
            PunaError: the model cannot be loaded.
        """

    @property
    def vocabulary(self) -> TokenTable:
        """Only once loaded."""
        assert self._opened is not None, "still loading"
        return self._opened.vocabulary

    @property
    def step(self) -> EngineStep:
        """Current step of the engine thread."""
        return EngineStep(0, inf) if self._loop is None else self._loop.step

    def start(self, listener: EngineListener) -> None:
        """Begin to load in the engine thread."""
        self._thread.start(self._run, listener)

    def submit(self, sequence_id: int, request: GenerationRequest) -> None:
        """Check and run a request.

        Raises:
            InvalidRequest: no runner of this model could do it.
            PromptTooLong: it may not be cut, and is longer than the context.
        """
        loop, opened = self._loop, self._opened
        assert loop is not None, "still loading"
        assert opened is not None, "still loading"
        check_request(request, vocabulary_size=opened.vocabulary.size)
        sequence = new_sequence(
            sequence_id,
            request,
            prepare_prompt(
                request,
                slot_context_tokens=opened.model.slot_context_tokens,
                adds_bos=opened.vocabulary.adds_bos,
            ),
            end_tokens=opened.vocabulary.end_tokens,
            suppressed=opened.suppressed,
            repeats_max=self._repeats_max,
        )
        loop.submit(sequence)

    def read_image(self, data: bytes) -> PreparedImage:
        """Refuse it.

        Raises:
            UnsupportedCapability: this engine sees no images.
        """
        return refuse_image(data)

    def cancel(self, sequence_id: int) -> None:
        """Free the slot of a sequence before the next step."""
        assert self._loop is not None, "still loading"
        self._loop.cancel(sequence_id)

    def cut(self, sequence_id: int, generated_tokens: int) -> None:
        """End a sequence and keep only so many of its generated tokens in the cache."""
        assert self._loop is not None, "still loading"
        self._loop.cut(sequence_id, generated_tokens)

    def pause(self, sequence_id: int, paused: bool) -> None:
        """Leave a sequence out of the steps while its reader is behind."""
        assert self._loop is not None, "still loading"
        self._loop.pause(sequence_id, paused)

    def use_threads(self, count: int) -> None:  # as `Engine` has it
        """Its number of threads stays: `LoadedModel.threads_max` is 0."""
        assert self._loop is not None, "still loading"

    def stop(self) -> None:
        """Abort the load, or drop every sequence and end the thread."""
        self._stopping.set()
        if self._loop is not None:
            self._loop.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait for the engine thread to end."""
        return self._thread.join(timeout_s)

    def close(self) -> None:
        """Free what has computed, and with it the vocabulary."""
        if self._opened is not None:
            self._opened.backend.close()

    def _run(self, listener: EngineListener) -> None:
        """The engine thread. Whatever escapes from serving is fatal: its state is unknown."""

        def on_progress(progress: LoadProgress) -> None:
            if self._stopping.is_set():
                raise ShuttingDown("the load was stopped")
            listener.load_progressed(progress)

        try:
            opened = self._opened = self._open(on_progress)
            loop = self._loop = PlainLoop(opened.backend, listener)
        except PunaError as error:
            listener.load_failed(error)
            return
        except BaseException as error:  # noqa: BLE001  # the process must not live on half loaded
            listener.died(error)
            return
        try:
            bytes_total = opened.model.weights_bytes
            listener.load_progressed(LoadProgress(1.0, bytes_total, bytes_total))
            listener.loaded(opened.model)
            # A stop that came before the loop was there has set only the event.
            if not self._stopping.is_set():
                loop.run()
        except BaseException as error:  # noqa: BLE001  # as above
            listener.died(error)
