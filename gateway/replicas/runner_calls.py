"""Streaming calls to a replica: watched for silence, and ended from outside when their replica is lost."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

from common.errors import PunaError, RunnerLost
from gateway.core.dispatch.resume import average_after, stall_after_s

Event = TypeVar("Event")


@dataclass(slots=True, eq=False)
class OpenCalls:
    """The calls of one replica that stream now, and how long its events take on average."""

    calls: "dict[RunnerCall[Any], None]" = field(default_factory=dict)  # oldest first
    average_gap_s: float | None = None

    def end_all(self, error: PunaError) -> None:
        """End all calls: the replica is lost, whatever its connection says."""
        for call in list(self.calls):
            call.end_with(error)

    def end_stalled(self, now_s: float) -> int:
        """End the calls that have been silent for too long; how many."""
        stalled = [
            call for call in self.calls if call.silent_s(now_s) > stall_after_s(self.average_gap_s, begun=call.begun)
        ]
        for call in stalled:
            call.end_with(RunnerStalled("the model runner does not answer any more"))
        return len(stalled)


class RunnerStalled(RunnerLost):
    """No event for too long; the runner may live."""


class RunnerSilent(RunnerLost):
    """It did not say that it lives when it was asked. It may be starved, and nothing it computes need be to blame."""


class RunnerCall(Generic[Event]):
    """One streaming call. Use as a context, from one task; leaving it cancels the call."""

    __slots__ = ("_error", "_events", "_loop", "_open", "_task", "_waiting_since_s", "begun", "is_paused")

    def __init__(self, events: AsyncIterator[Event], open_calls: OpenCalls) -> None:
        self._events = events
        self._open = open_calls
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None
        self._waiting_since_s: float | None = None  # on the loop's clock; None: its reader is busy elsewhere
        self._error: PunaError | None = None
        self.begun = False
        self.is_paused = False  # the newest event says so: silence is no stall

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        self._open.calls[self] = None
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open.calls.pop(self, None)
        if (close := getattr(self._events, "aclose", None)) is not None:
            await close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event.

        Raises:
            PunaError: as the call raised it, or what `end_with` was given.
        """
        if (given := self._given_error()) is not None:
            raise given
        since_s = self._waiting_since_s = self._loop.time()
        try:
            event = await self._events.__anext__()
        except asyncio.CancelledError:
            # As asyncio.timeout does it: our own cancellation is taken back, any other is passed on.
            error = self._given_error()
            if error is None or self._task is None or self._task.uncancel() > 0:
                raise
            raise error from None
        finally:
            self._waiting_since_s = None
        if self.begun and not self.is_paused:
            self._open.average_gap_s = average_after(self._open.average_gap_s, self._loop.time() - since_s)
        self.begun = True
        return event

    def _given_error(self) -> PunaError | None:
        return self._error

    def silent_s(self, now_s: float) -> float:
        """Return the time since the reader began to wait for an event."""
        return 0.0 if self._waiting_since_s is None or self.is_paused else now_s - self._waiting_since_s

    def end_with(self, error: PunaError) -> None:
        """End the call with an error, which the reader gets now or with its next look."""
        if self._error is None:
            self._error = error
            if self._waiting_since_s is not None and self._task is not None:
                self._task.cancel()
