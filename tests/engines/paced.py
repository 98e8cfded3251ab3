"""The default engine with slow steps, so that a small model takes as long for a token as a large one."""

import threading
from collections.abc import Mapping, Sequence

from common.errors import PunaError
from common.spec.layout import Layout
from runner.core.model.model_files import ModelFiles
from runner.core.speculation.drafters import Drafter
from runner.engine.batched.engine import BatchedEngine
from runner.engine.batched.loop import BatchedOptions
from runner.engine.batched.sequence import Sequence as RunningSequence
from runner.engine.contract.engine import EngineListener, LoadedModel, LoadProgress, StepReport
from tests.gpu.endless_kernel import launch_endless_kernel
from tests.integration.runner.oracle import Oracle


class PacedEngine(BatchedEngine):
    """Every step takes `step_s` longer, before anyone hears of it."""

    def __init__(
        self,
        files: ModelFiles,
        layout: Layout,
        *,
        step_s: float,
        drafts: Mapping[int, Sequence[int]],
        endless_kernel_after_steps: int | None = None,
    ) -> None:
        def oracles(sequence: RunningSequence) -> list[Drafter]:
            answer = drafts.get(sequence.request.sampling.seed)
            return [Oracle(sequence, answer, 0.7)] if answer else []

        super().__init__(files, layout, BatchedOptions(drafters=oracles, drafted_tokens=3 if drafts else None))
        self._step_s = step_s
        self._kernel_after = endless_kernel_after_steps

    def start(self, listener: EngineListener) -> None:
        """Begin to load in the engine thread."""
        super().start(_PacedListener(listener, self._step_s, self._kernel_after))


class _PacedListener(EngineListener):
    def __init__(self, listener: EngineListener, step_s: float, kernel_after: int | None) -> None:
        self._listener = listener
        self._step_s = step_s
        self._steps_left = kernel_after
        self._never = threading.Event()

    def load_progressed(self, progress: LoadProgress) -> None:
        self._listener.load_progressed(progress)

    def loaded(self, model: LoadedModel) -> None:
        self._listener.loaded(model)

    def load_failed(self, error: PunaError) -> None:
        self._listener.load_failed(error)

    def stepped(self, report: StepReport) -> None:
        self._never.wait(self._step_s)
        if self._steps_left is not None:
            self._steps_left -= 1
            if not self._steps_left:
                launch_endless_kernel()
        self._listener.stepped(report)

    def died(self, error: BaseException) -> None:
        self._listener.died(error)
