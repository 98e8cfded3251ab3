"""From the engine thread to the event loop."""

import asyncio
import threading
from collections.abc import Callable

from common.errors import PunaError
from runner.engine.contract.engine import EngineListener, LoadedModel, LoadProgress, StepReport


class Bridge(EngineListener):
    """Carries the engine's reports to the event loop: one wake-up per step."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        overlap: bool,
        on_step: Callable[[StepReport], None],
        on_progress: Callable[[LoadProgress], None],
        on_loaded: Callable[[LoadedModel], None],
        on_load_failed: Callable[[PunaError], None],
        on_death: Callable[[BaseException], None],
    ) -> None:
        """Call back on the event loop, apart from `on_death`, which runs on the engine thread."""
        self._loop = loop
        self._overlap = overlap
        self._on_step = on_step
        self._on_progress = on_progress
        self._on_loaded = on_loaded
        self._on_load_failed = on_load_failed
        self._on_death = on_death
        self._last_fraction = -1.0

    def load_progressed(self, progress: LoadProgress) -> None:
        """Pass on whole hundredths; a large model calls thousands of times."""
        if progress.fraction - self._last_fraction >= 0.01 or progress.fraction >= 1.0:
            self._last_fraction = progress.fraction
            self._loop.call_soon_threadsafe(self._on_progress, progress)

    def loaded(self, model: LoadedModel) -> None:
        """Pass on."""
        self._loop.call_soon_threadsafe(self._on_loaded, model)

    def load_failed(self, error: PunaError) -> None:
        """Pass on."""
        self._loop.call_soon_threadsafe(self._on_load_failed, error)

    def stepped(self, report: StepReport) -> None:
        """Pass on; without overlap, wait until the text work is done."""
        if self._overlap:
            self._loop.call_soon_threadsafe(self._on_step, report)
            return
        done = threading.Event()

        def step() -> None:
            try:
                self._on_step(report)
            finally:
                done.set()

        self._loop.call_soon_threadsafe(step)
        done.wait()

    def died(self, error: BaseException) -> None:
        """At once, on this thread: the event loop may be what is stuck."""
        self._on_death(error)
