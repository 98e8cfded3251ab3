"""Everybody who waits for an answer of the core. Progress is newest-only, the outcome is never lost."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from common.errors import PunaError
from common.ids import random_id
from common.telemetry import tracing
from protos import scheduler_pb2
from scheduler import metrics
from scheduler.converters import error_of
from scheduler.core.books.effects import (
    AnswerAlias,
    AnswerConstraints,
    AnswerDrain,
    AnswerExplained,
    AnswerFailed,
    AnswerLoading,
    AnswerQueued,
    AnswerUnloading,
)
from scheduler.core.planning.explanation import Explanation
from scheduler.core.values.constraints import ModelConstraints
from scheduler.core.values.model_alias import ModelAlias

Outcome = TypeVar("Outcome")


@dataclass(slots=True, kw_only=True)
class Caller(Generic[Outcome]):
    """One waiting call. Exactly one outcome."""

    id: str
    progress: scheduler_pb2.EnsureModelEvent | None = None
    outcome: asyncio.Future[Outcome] = field(default_factory=asyncio.Future)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    span: tracing.Span = field(default_factory=tracing.current)  # of the call

    def tell(self, progress: scheduler_pb2.EnsureModelEvent) -> None:
        """Something newer to say."""
        self.progress = progress
        self.changed.set()

    def answer(self, outcome: Outcome) -> None:
        """The end."""
        assert not self.outcome.done(), f"caller {self.id} was answered twice"
        self.outcome.set_result(outcome)
        self.changed.set()

    def refuse(self, error: PunaError) -> None:
        """The end, too."""
        assert not self.outcome.done(), f"caller {self.id} was answered twice"
        self.outcome.set_exception(error)
        self.changed.set()

    async def news(self) -> AsyncIterator[scheduler_pb2.EnsureModelEvent]:
        """Progress until there is an outcome."""
        while not self.outcome.done():
            await self.changed.wait()
            self.changed.clear()
            if self.progress is not None:
                progress, self.progress = self.progress, None
                yield progress


class Callers:
    """The waiting room."""

    def __init__(self) -> None:
        self._loads: dict[str, Caller[scheduler_pb2.ModelRoute]] = {}
        self._questions: dict[str, Caller[Any]] = {}  # whatever has one answer and no progress

    @contextmanager
    def waiting_for_load(self) -> Iterator[Caller[scheduler_pb2.ModelRoute]]:
        """Be there for the core's answers as long as the call lasts."""
        caller = Caller[scheduler_pb2.ModelRoute](id=random_id("call-", 16))
        self._loads[caller.id] = caller
        metrics.WAITERS.set(len(self._loads))
        try:
            yield caller
        finally:
            del self._loads[caller.id]
            metrics.WAITERS.set(len(self._loads))
            _settle(caller)

    def span_of(self, caller_id: str) -> tracing.Span:
        """What is done for a caller belongs to its call; for nobody, or one that has left, to no call."""
        caller = self._loads.get(caller_id)
        return caller.span if caller is not None else tracing.NO_SPAN

    @contextmanager
    def waiting_for_unload(self) -> Iterator[Caller[int]]:
        """As `waiting_for_load`."""
        yield from self._waiting(Caller[int](id=random_id("call-", 16)))

    @contextmanager
    def waiting_for_constraints(self) -> Iterator[Caller[tuple[tuple[ModelConstraints, ...], bool]]]:
        """As `waiting_for_load`; the answer is what is set now, and whether something was set before."""
        yield from self._waiting(Caller[tuple[tuple[ModelConstraints, ...], bool]](id=random_id("call-", 16)))

    @contextmanager
    def waiting_for_explanation(self) -> Iterator[Caller[Explanation]]:
        """As `waiting_for_load`."""
        yield from self._waiting(Caller[Explanation](id=random_id("call-", 16)))

    @contextmanager
    def waiting_for_device(self) -> Iterator[Caller[scheduler_pb2.ClearDeviceResponse]]:
        """As `waiting_for_load`."""
        yield from self._waiting(Caller[scheduler_pb2.ClearDeviceResponse](id=random_id("call-", 16)))

    @contextmanager
    def waiting_for_drain(self) -> Iterator[Caller[int]]:
        """As `waiting_for_load`; the answer is how many replicas are still there."""
        yield from self._waiting(Caller[int](id=random_id("call-", 16)))

    @contextmanager
    def waiting_for_alias(self) -> Iterator[Caller[tuple[ModelAlias | None, bool]]]:
        """As `waiting_for_load`; the answer is the alias as it is now, and whether there was one before."""
        yield from self._waiting(Caller[tuple[ModelAlias | None, bool]](id=random_id("call-", 16)))

    def _waiting(self, caller: Caller[Outcome]) -> Iterator[Caller[Outcome]]:
        self._questions[caller.id] = caller
        try:
            yield caller
        finally:
            del self._questions[caller.id]
            _settle(caller)

    def tell(self, effect: AnswerQueued | AnswerLoading) -> None:
        """Pass progress on to those who are still there."""
        if isinstance(effect, AnswerQueued):
            event = scheduler_pb2.EnsureModelEvent(
                queued=scheduler_pb2.Queued(position=effect.position, waits_for=effect.waits_for, eta_s=effect.eta_s)
            )
        else:
            event = scheduler_pb2.EnsureModelEvent(
                loading=scheduler_pb2.Loading(
                    fraction=effect.fraction,
                    bytes_done=effect.bytes_done,
                    bytes_total=effect.bytes_total,
                    waits_for=effect.waits_for,
                    eta_s=effect.eta_s,
                )
            )
        for caller_id in effect.callers:
            if (caller := self._loads.get(caller_id)) is not None:
                caller.tell(event)

    def answer_ready(self, callers: tuple[str, ...], route: scheduler_pb2.ModelRoute) -> None:
        """The model runs."""
        for caller_id in callers:
            if (caller := self._loads.get(caller_id)) is not None:
                caller.answer(route)

    def answer_failed(self, effect: AnswerFailed) -> None:
        """It does not. Each caller gets an exception of its own."""
        for caller_id in effect.callers:
            caller = self._loads.get(caller_id) or self._questions.get(caller_id)
            if caller is not None:
                caller.refuse(error_of(effect.fault))

    def answer_unloading(self, effect: AnswerUnloading) -> None:
        """The stops are ordered."""
        if (caller := self._questions.get(effect.caller_id)) is not None:
            caller.answer(effect.replicas)

    def answer_cleared(self, caller_id: str, outcome: scheduler_pb2.ClearDeviceResponse | PunaError) -> None:
        """A host has tested a device, or could not."""
        if (caller := self._questions.get(caller_id)) is None:
            return
        if isinstance(outcome, PunaError):
            caller.refuse(outcome)
        else:
            caller.answer(outcome)

    def answer_question(self, effect: AnswerConstraints | AnswerExplained | AnswerDrain | AnswerAlias) -> None:
        """What was asked."""
        if (caller := self._questions.get(effect.caller_id)) is None:
            return
        match effect:
            case AnswerConstraints():
                caller.answer((effect.models, effect.was_set))
            case AnswerExplained():
                caller.answer(effect.explanation)
            case AnswerDrain():
                caller.answer(effect.replicas)
            case AnswerAlias():
                caller.answer((effect.alias, effect.was_set))


def _settle(caller: Caller[Outcome]) -> None:
    """A caller that left did not read its outcome; that is no forgotten error."""
    if caller.outcome.done():
        caller.outcome.exception()
    else:
        caller.outcome.cancel()
