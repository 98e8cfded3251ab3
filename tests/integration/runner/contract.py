"""Any engine behind its interface, with everything that it reports."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import PunaError
from common.spec.sampling import Sampling
from runner.core.sequence.endings import Ending
from runner.core.sequence.requests import GenerationRequest, TokenizedPrompt
from runner.engine.contract.engine import (
    Ended,
    Engine,
    EngineListener,
    Failed,
    Freed,
    LoadedModel,
    LoadProgress,
    Outcome,
    Progressed,
    Sampled,
    SequenceTimes,
    StepReport,
)

GREEDY = Sampling(temperature=0.0)
DEADLINE_S = 60.0


@dataclass
class Answer:
    """Results of the engine for one sequence."""

    ids: list[int] = field(default_factory=list)
    rows: list[NDArray[np.float32]] = field(default_factory=list)
    progress: list[Progressed] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    errors: list[PunaError] = field(default_factory=list)
    freed: int = 0
    times: SequenceTimes | None = None

    def add(self, outcome: Outcome) -> None:
        assert not self.freed, "nothing may follow"
        match outcome:
            case Progressed():
                self.progress.append(outcome)
            case Sampled(_, token_id, logits, ending):
                assert not self.endings, "a token after the end"
                self.ids.append(token_id)
                if logits is not None:
                    self.rows.append(logits)
                if ending is not None:
                    self.endings.append(ending)
            case Ended(_, ending):
                self.endings.append(ending)
            case Failed(_, error):
                self.errors.append(error)
            case Freed(_, times):
                self.freed += 1
                self.times = times


class Listener(EngineListener):
    """Gathers what the engine thread says; others wait on it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.progress: list[LoadProgress] = []
        self.model: LoadedModel | None = None
        self.error: PunaError | None = None
        self.deaths: list[BaseException] = []
        self.answers: dict[int, Answer] = {}
        self.reports: list[StepReport] = []

    def load_progressed(self, progress: LoadProgress) -> None:
        with self.changed:
            assert self.model is None
            self.progress.append(progress)

    def loaded(self, model: LoadedModel) -> None:
        with self.changed:
            self.model = model
            self.changed.notify_all()

    def load_failed(self, error: PunaError) -> None:
        with self.changed:
            self.error = error
            self.changed.notify_all()

    def stepped(self, report: StepReport) -> None:
        with self.changed:
            self.reports.append(report)
            for outcome in report.outcomes:
                self.answers[outcome.sequence_id].add(outcome)
            self.changed.notify_all()

    def died(self, error: BaseException) -> None:
        with self.changed:
            self.deaths.append(error)
            self.changed.notify_all()

    @contextmanager
    def standing(self) -> Iterator[None]:
        """Within it the engine stands still, at the latest after its next step: what is told now comes together."""
        with self.changed:
            yield

    def until(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            reached = self.changed.wait_for(lambda: condition() or bool(self.deaths), DEADLINE_S)
            assert not self.deaths, self.deaths
            assert reached, "the engine did not get there"


class Driver:
    """A loaded engine."""

    def __init__(self, engine: Engine, listener: Listener) -> None:
        self.engine = engine
        self.listener = listener
        self._ids = 0

    @property
    def model(self) -> LoadedModel:
        assert self.listener.model is not None
        return self.listener.model

    def tokens(self, text: str) -> tuple[int, ...]:
        return tuple(self.engine.vocabulary.tokenize(text.encode(), parse_special=True))

    def submit(self, prompt: str | tuple[int, ...], **fields: Any) -> int:
        """Start a sequence, greedy and past end tokens unless told otherwise."""
        ids = self.tokens(prompt) if isinstance(prompt, str) else prompt
        request = GenerationRequest(prompt=TokenizedPrompt(ids), **{"sampling": GREEDY, "ignore_eos": True, **fields})
        self._ids += 1
        self.listener.answers[self._ids] = Answer()
        self.engine.submit(self._ids, request)
        return self._ids

    def read(self, sequence_id: int) -> Answer:
        answer = self.listener.answers[sequence_id]
        self.listener.until(lambda: answer.freed > 0)
        return answer

    def ask(self, prompt: str | tuple[int, ...], **fields: Any) -> Answer:
        return self.read(self.submit(prompt, **fields))

    def idle(self) -> None:
        """Wait until the engine has said that no slot is busy."""
        reports = self.listener.reports
        self.listener.until(lambda: bool(reports) and (reports[-1].slots_busy, reports[-1].waiting) == (0, 0))


@contextmanager
def driven(engine: Engine) -> Iterator[Driver]:
    """An engine, loaded; its thread has to end."""
    listener = Listener()
    engine.start(listener)
    try:
        listener.until(lambda: listener.model is not None or listener.error is not None)
        if listener.error is not None:
            raise listener.error
        yield Driver(engine, listener)
    finally:
        engine.stop()
        assert engine.join(DEADLINE_S)
        engine.close()
        assert listener.deaths == []
