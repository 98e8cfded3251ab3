"""Callers that wait for an answer of the core. Progress is newest-only, the outcome is never lost."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from common.errors import PunaError
from common.ids import random_id
from common.telemetry import tracing
from protos import scheduler_pb2
from scheduler import metrics
from scheduler.converters import LOADING, QUEUED
from scheduler.core.state.effects import AnswerLoading, AnswerQueued


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
        """Finish with an answer, or with an error."""
        assert not self.outcome.done(), f"caller {self.id} was answered twice"
        if isinstance(outcome, PunaError):
            self.outcome.set_exception(outcome)
        else:
            self.outcome.set_result(outcome)
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
        for caller in self._present(effect.callers):
            caller.tell(event)

    def answer(self, callers: Sequence[str], outcome: Callable[[], Any]) -> None:
        """Answer the callers that are still there; each gets an outcome of its own, which may be an error."""
        for caller in self._present(callers):
            caller.answer(outcome())

    def _present(self, callers: Sequence[str]) -> list[Caller]:
        return [self._waiting[caller_id] for caller_id in callers if caller_id in self._waiting]


def _settle(caller: Caller) -> None:
    """Retrieve the outcome that a caller which left did not read; it is no forgotten error."""
    if caller.outcome.done():
        caller.outcome.exception()
    else:
        caller.outcome.cancel()
