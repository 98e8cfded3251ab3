"""Callers that wait for an answer of the core. Progress is newest-only, the outcome is never lost."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from common.errors import PunaError
from common.ids import random_id
from common.telemetry import tracing
from protos import scheduler_pb2
from scheduler import metrics
from scheduler.converters import LOADING, QUEUED, error_of
from scheduler.core.state.effects import (
    Answer,
    AnswerFailed,
    AnswerLoading,
    AnswerQueued,
)


@dataclass(slots=True, kw_only=True)
class Caller:
    """One waiting call. Exactly one outcome."""

    id: str
    progress: scheduler_pb2.EnsureModelEvent | None = None
    outcome: asyncio.Future[Any] = field(default_factory=asyncio.Future)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    span: tracing.Span = field(default_factory=tracing.current)  # of the call

    def tell(self, progress: scheduler_pb2.EnsureModelEvent) -> None:
        """Offer newer progress."""
        self.progress = progress
        self.changed.set()

    def answer(self, outcome: Any) -> None:
        """Finish with an answer."""
        assert not self.outcome.done(), f"caller {self.id} was answered twice"
        self.outcome.set_result(outcome)
        self.changed.set()

    def refuse(self, error: PunaError) -> None:
        """Finish with an error."""
        assert not self.outcome.done(), f"caller {self.id} was answered twice"
        self.outcome.set_exception(error)
        self.changed.set()

    async def news(self) -> AsyncIterator[scheduler_pb2.EnsureModelEvent]:
        """Yield progress until there is an outcome."""
        while not self.outcome.done():
            await self.changed.wait()
            self.changed.clear()
            if self.progress is not None:
                progress, self.progress = self.progress, None
                yield progress


class Callers:
    """The waiting room."""

    def __init__(self) -> None:
        self._waiting: dict[str, Caller] = {}

    @contextmanager
    def waiting(self) -> Iterator[Caller]:
        """Register a caller for the core's answers while the call lasts."""
        caller = Caller(id=random_id("call-", 16))
        self._waiting[caller.id] = caller
        try:
            yield caller
        finally:
            del self._waiting[caller.id]
            _settle(caller)

    @contextmanager
    def waiting_for_load(self) -> Iterator[Caller]:
        """Register as in `waiting`, and count the caller among those of loads."""
        with metrics.WAITERS.track_inprogress(), self.waiting() as caller:
            yield caller

    def span_of(self, caller_id: str) -> tracing.Span:
        """Return the caller's span for work done on its behalf; none if it has left."""
        caller = self._waiting.get(caller_id)
        return caller.span if caller is not None else tracing.NO_SPAN

    def tell(self, effect: AnswerQueued | AnswerLoading) -> None:
        """Pass progress on to the callers that are still there."""
        if isinstance(effect, AnswerQueued):
            event = scheduler_pb2.EnsureModelEvent(queued=QUEUED.to_proto(effect))
        else:
            event = scheduler_pb2.EnsureModelEvent(loading=LOADING.to_proto(effect))
        for caller_id in effect.callers:
            if (caller := self._waiting.get(caller_id)) is not None:
                caller.tell(event)

    def answer_ready(self, callers: tuple[str, ...], route: scheduler_pb2.ModelRoute) -> None:
        """Answer with the route of the running model."""
        for caller_id in callers:
            if (caller := self._waiting.get(caller_id)) is not None:
                caller.answer(route)

    def answer_failed(self, effect: AnswerFailed) -> None:
        """Answer with the fault. Each caller gets an exception of its own."""
        for caller_id in effect.callers:
            if (caller := self._waiting.get(caller_id)) is not None:
                caller.refuse(error_of(effect.fault))

    def answer_cleared(self, caller_id: str, outcome: scheduler_pb2.ClearDeviceResponse | PunaError) -> None:
        """Answer with the result of a host's test of a device, or with its failure."""
        if (caller := self._waiting.get(caller_id)) is None:
            return
        if isinstance(outcome, PunaError):
            caller.refuse(outcome)
        else:
            caller.answer(outcome)

    def answer_question(self, effect: Answer) -> None:
        """Answer a caller's question."""
        if (caller := self._waiting.get(effect.caller_id)) is not None:
            caller.answer(effect)


def _settle(caller: Caller) -> None:
    """Retrieve the outcome that a caller which left did not read; it is no forgotten error."""
    if caller.outcome.done():
        caller.outcome.exception()
    else:
        caller.outcome.cancel()
