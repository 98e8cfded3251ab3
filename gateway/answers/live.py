"""Requests in progress: key, model and progress of each, never content."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

import structlog

from common.clock import MS_PER_S, Clock, SystemClock
from gateway.answers.choices import ChoiceEvent
from gateway.answers.record import RequestRecord
from gateway.core.request.answers import LoadUpdate, Queued
from gateway.core.ui.figures import PageCounters
from gateway.keys.visits import current_key

# First-token times of requests that ended since the last look; there may never be one.
_FIRST_TOKENS_KEPT = 512


@dataclass(slots=True, kw_only=True, eq=False)
class LiveRequest:
    """One request between its body and its end. `progress` is the last message while it waited."""

    number: int
    id: str
    key_id: str | None
    record: RequestRecord
    started_unix_ms: int
    progress: Queued | LoadUpdate | None = None
    ready_unix_ms: int | None = None  # when its model can serve, by the last message; None: unknown
    first_token_told: bool = False

    @property
    def state(self) -> str:
        """queued, loading, reading (its prompt) or answering."""
        if self.record.first_token_s is not None:
            return "answering"
        if self.record.replica is not None:
            return "reading"
        return "loading" if isinstance(self.progress, LoadUpdate) else "queued"


@dataclass(slots=True)
class LiveRequests:
    """Lives on the event loop. Costs a request two dictionary operations, also without a viewer."""

    clock: Clock = field(default_factory=SystemClock)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _requests: dict[int, LiveRequest] = field(default_factory=dict)
    _ended_count: int = 0
    _ended_tokens: dict[str, int] = field(default_factory=dict)  # by model, of requests that are over
    _ended_prompt_tokens: int = 0
    _first_token_s: deque[float] = field(default_factory=lambda: deque(maxlen=_FIRST_TOKENS_KEPT))

    @contextmanager
    def request(self, record: RequestRecord) -> Iterator[LiveRequest]:
        """Register a request for as long as it is worked on."""
        key = current_key()
        live = LiveRequest(
            number=next(self._numbers),
            id=str(structlog.contextvars.get_contextvars().get("request_id", "")),
            key_id=key.id if key is not None else None,
            record=record,
            started_unix_ms=round(self.clock.wall_unix_s() * 1000),
        )
        self._requests[live.number] = live
        try:
            yield live
        finally:
            del self._requests[live.number]
            self._count(live)

    def note(self, live: LiveRequest, event: object) -> None:
        """Record the position of a waiting request."""
        item = event.event if isinstance(event, ChoiceEvent) else event
        if isinstance(item, Queued | LoadUpdate):
            live.progress, live.ready_unix_ms = item, None
            if item.eta_s is not None:
                live.ready_unix_ms = round((self.clock.wall_unix_s() + item.eta_s) * MS_PER_S)

    def all(self) -> list[LiveRequest]:
        """Return every request in progress, oldest first."""
        return list(self._requests.values())

    def counters(self, now_s: float) -> PageCounters:
        """Return the counters, with running requests as far as they are."""
        tokens, prompt_tokens = dict(self._ended_tokens), self._ended_prompt_tokens
        for live in self._requests.values():
            prompt_tokens += live.record.prompt_tokens
            if live.record.model is not None:
                tokens[live.record.model] = tokens.get(live.record.model, 0) + live.record.answer_tokens
        return PageCounters(at_s=now_s, ended=self._ended_count, tokens=tokens, prompt_tokens=prompt_tokens)

    def new_first_tokens_s(self) -> list[float]:
        """Return the durations of first tokens since the last call."""
        found = list(self._first_token_s)
        self._first_token_s.clear()
        for live in self._requests.values():
            if not live.first_token_told and live.record.first_token_s is not None:
                live.first_token_told = True
                found.append(live.record.first_token_s)
        return found

    def _count(self, live: LiveRequest) -> None:
        record = live.record
        self._ended_count += 1
        self._ended_prompt_tokens += record.prompt_tokens
        if record.model is not None:  # a model that exists: the names are bounded by the models there are
            self._ended_tokens[record.model] = self._ended_tokens.get(record.model, 0) + record.answer_tokens
        if record.first_token_s is not None and not live.first_token_told:
            self._first_token_s.append(record.first_token_s)
