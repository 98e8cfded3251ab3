"""The requests of a runner as its event loop sees them: from the engine's outcomes to text that may be sent."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import assert_never

from common.errors import PunaError, QueueFull, RequestCanceled
from protos import runner_pb2
from runner import metrics
from runner.core.sequence.batching import UNKNOWN_COST
from runner.core.sequence.endings import Ending, EndReason
from runner.core.sequence.logprobs import token_logprobs
from runner.core.sequence.requests import GenerationRequest
from runner.core.sequence.text_stream import Release, TextStream, TextToken
from runner.engine.contract.engine import (
    Ended,
    Engine,
    Failed,
    Freed,
    Paused,
    Progressed,
    Sampled,
    SequenceTimes,
    StepReport,
)
from runner.serve.held_prefixes import HeldPrefixes

# Requests that wait inside the runner for a slot; the gateway queues before that.
WAITING_MAX = 16
# Callers that hold the place or wait for it: each gateway makes one such call at a time.
PROBATION_CALLERS_MAX = 64
# A reader that is this many tokens behind is not waited for: its sequence leaves the batches until it has caught up.
BACKLOG_TOKENS_MAX = 256


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a stream."""

    ending: Ending
    generated_tokens: int
    times: SequenceTimes | None


StreamEvent = Progressed | Paused | Release | Finished


@dataclass(eq=False)
class Stream:
    """One request: takes outcomes in, gives events out. Lives on the event loop."""

    id: int
    request: GenerationRequest
    text: TextStream
    visible: frozenset[int]
    error: PunaError | None = None
    ending: Ending | None = None
    freed: bool = False
    times: SequenceTimes | None = None
    paused: bool = False
    backlog_tokens: int = 0
    finished: Finished | None = None  # once the reader has it
    prompt: Progressed | None = None  # the whole one, for the first tokens
    on_news: Callable[[], object] = field(init=False)
    _events: deque[Progressed | Paused | Release] = field(default_factory=deque)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.on_news = self._changed.set

    def add(self, event: Progressed | Paused | Release) -> None:
        """Queue an event for the reader; the newest progress or pause replaces an older one."""
        if isinstance(event, Release):
            self.backlog_tokens += len(event.tokens)
        elif self._events and isinstance(self._events[-1], Progressed | Paused):
            self._events.pop()
        self._events.append(event)
        self.on_news()

    def take(self, tokens_max: int = BACKLOG_TOKENS_MAX) -> StreamEvent | None:
        """Return the next event, or None until `on_news` is called: progress and text, then exactly one `Finished`.

        Releases that gathered while the reader was away are joined into one of at most `tokens_max` tokens.

        Raises:
            PunaError: the sequence cannot go on.
        """
        if self._events:
            return self._joined(tokens_max)
        if self.error is not None:
            raise self.error
        if not self.freed:
            return None
        if self.ending is None:
            raise RequestCanceled("request canceled")
        self.finished = Finished(self.ending, self.text.counted, self.times)
        return self.finished

    async def events(self) -> AsyncIterator[StreamEvent]:
        """Yield every event as `take` returns it, to a reader of this stream alone."""
        while self.finished is None:
            if (event := self.take()) is not None:
                yield event
            else:
                self._changed.clear()
                await self._changed.wait()

    def _joined(self, tokens_max: int) -> Progressed | Paused | Release:
        event = self._events.popleft()
        if isinstance(event, Release):
            while self._events and isinstance(following := self._events[0], Release):
                if len(event.tokens) + len(following.tokens) > tokens_max:
                    break
                self._events.popleft()
                event = Release(event.text + following.text, event.tokens + following.tokens, following.ending)
            self.backlog_tokens -= len(event.tokens)
        return event


class RequestTable(ABC):
    """Requests inside the runner, as status and shutdown need them. Owned by the event loop."""

    def __init__(self) -> None:
        """Empty."""
        # Called when busy slots, waiting requests or the prompts that are held changed.
        self.on_change: Callable[[], None] = lambda: None
        self._next_id = 0
        self.slots = 0
        self.slots_busy = 0
        self.waiting = 0
        self.open_slots: tuple[int, ...] = ()
        self.held_inputs = 0  # that the slots hold; 0: the model keeps nothing
        self.cost = UNKNOWN_COST  # of a decode call
        self.accepted = 0
        self.idle = asyncio.Event()  # set while no request is inside
        self.idle.set()

    @property
    @abstractmethod
    def inside(self) -> int:
        """Requests that have a slot or wait for one."""

    @property
    def places(self) -> int:
        """Return the number of further requests that are let in: with a slot, to wait for one, or paused."""
        return max(0, self.slots + WAITING_MAX - self.inside)

    @abstractmethod
    def apply(self, report: StepReport) -> None:
        """Take in what the engine did."""

    def _accept(self) -> None:
        self.idle.clear()
        self.accepted += 1

    def _count(self, report: StepReport, *, is_news: bool = False) -> None:
        """Move the metrics, and report a change of busy slots, of the queue, or the end of the last request."""
        count_step(report)
        now = (report.slots_busy, report.waiting, report.open_slots)
        if is_news or now != (self.slots_busy, self.waiting, self.open_slots) or not self.inside:
            self.slots_busy, self.waiting, self.open_slots = now
            metrics.SLOTS_BUSY.set(report.slots_busy)
            metrics.QUEUE_DEPTH.set(report.waiting)
            self.on_change()


def check_place(requests: RequestTable) -> None:
    """Refuse before work is done for a request that has no place.

    Raises:
        QueueFull: every slot and every waiting place is taken.
    """
    if not requests.places:
        raise QueueFull("every slot and every waiting place of this replica is taken", retry_after_s=1.0)


class StreamTable(RequestTable):
    """Every request of a model that generates."""

    def __init__(self, engine: Engine) -> None:
        """`engine` generates."""
        super().__init__()
        self._engine = engine
        self._streams: dict[int, Stream] = {}
        self.held = HeldPrefixes()

    @property
    def inside(self) -> int:
        """Requests that have a slot or wait for one."""
        return len(self._streams)

    def open(self, request: GenerationRequest, *, stops: tuple[bytes, ...], visible: frozenset[int]) -> Stream:
        """Hand a request to the engine.

        Raises:
            QueueFull: every slot and every waiting place is taken.
            PunaError: the request can never succeed.
        """
        check_place(self)
        self._next_id += 1
        text = TextStream(stops, resumed=len(request.resumed))
        stream = Stream(self._next_id, request, text, visible)
        self._engine.submit(stream.id, request)  # refuses resumed ids that the vocabulary does not have
        for count, token_id in enumerate(request.resumed, start=1):
            self._name(stream, self._shown(token_id, visible), answered=count)
        self._streams[stream.id] = stream
        self._accept()
        return stream

    def close(self, stream: Stream) -> None:
        """Cancel what the engine still does for a stream without a reader."""
        if not stream.freed:
            self._engine.cancel(stream.id)

    def drained(self, stream: Stream) -> None:
        """Resume a paused stream whose reader took what was there."""
        if stream.paused and not stream.backlog_tokens and not stream.freed:
            stream.paused = False
            self._engine.pause(stream.id, False)

    def apply(self, report: StepReport) -> None:
        """Do the text work of one step."""
        has_ended = False
        for outcome in report.outcomes:
            stream = self._streams.get(outcome.sequence_id)
            assert stream is not None, "an outcome after the sequence was freed"
            match outcome:
                case Sampled():
                    self._sampled(stream, outcome)
                case Progressed():
                    if outcome.done_tokens < outcome.total_tokens:
                        stream.add(outcome)
                    else:
                        stream.prompt = outcome
                case Paused():
                    metrics.PAUSES.inc()
                    stream.add(outcome)
                case Ended():
                    self._release(stream, stream.text.finish(outcome.ending))
                case Failed():
                    stream.error = outcome.error
                case Freed():
                    has_ended |= stream.request.names is not None and stream.text.counted > 0
                    self._freed(stream, outcome)
                case _:
                    assert_never(outcome)
        self.held_inputs = report.held_inputs
        metrics.KV_CELLS_USED.set(report.held_inputs)
        if report.cost.token_s:
            self.cost = report.cost
        is_news = self.held.see(report.holders, report.parked, inside=self._streams, has_ended=has_ended)
        self._count(report, is_news=is_news)

    def _freed(self, stream: Stream, freed: Freed) -> None:
        stream.freed = True
        stream.times = freed.times
        del self._streams[stream.id]
        stream.on_news()
        if not self._streams:
            self.idle.set()

    def _sampled(self, stream: Stream, sampled: Sampled) -> None:
        if stream.text.ended:
            return  # computed before the engine heard of the stop string
        token_id = sampled.token_id
        piece = self._shown(token_id, stream.visible)
        self._name(stream, piece, answered=stream.text.counted + 1)
        logprobs = None
        if sampled.logits is not None:
            logprobs = token_logprobs(sampled.logits, token_id, stream.request.top_logprobs or 0)
        token = TextToken(token_id, piece, logprobs)
        self._release(stream, stream.text.push(token, sampled.ending))

    def _shown(self, token_id: int, visible: frozenset[int]) -> bytes:
        vocabulary = self._engine.vocabulary
        return vocabulary.pieces[token_id] if token_id not in vocabulary.control or token_id in visible else b""

    def _name(self, stream: Stream, piece: bytes, *, answered: int) -> None:
        """Name what is held of the answer: it is a part of the next prompt."""
        if (names := stream.request.names) is not None:
            names.add(piece, inputs=len(stream.request.prompt.inputs) + answered)

    def _release(self, stream: Stream, release: Release) -> None:
        if release.ending is not None:
            stream.ending = release.ending
            if release.ending.reason is EndReason.STOP_STRING:
                self._engine.cut(stream.id, stream.text.delivered)
        if release.tokens or release.text:
            stream.add(release)
            if stream.backlog_tokens > BACKLOG_TOKENS_MAX and not stream.paused:
                stream.paused = True
                self._engine.pause(stream.id, True)


class ProbationPlace:
    """The place of the only request on probation, whichever gateway it comes from. Lives on the event loop."""

    def __init__(self) -> None:
        self._place = asyncio.Lock()
        self._callers = 0

    async def hold(self) -> AsyncIterator[runner_pb2.ProbationGranted]:
        """Wait for the place, in the order of the calls, and hold it until the call is cancelled.

        Raises:
            QueueFull: too many callers wait.
        """
        if self._callers >= PROBATION_CALLERS_MAX:
            raise QueueFull("too many requests wait for their probation", retry_after_s=1.0)
        self._callers += 1
        try:
            async with self._place:
                yield runner_pb2.ProbationGranted()
                await asyncio.Event().wait()
        finally:
            self._callers -= 1


def count_step(report: StepReport) -> None:
    """Move the metrics of decode calls."""
    if report.decode_calls:
        metrics.DECODE_CALLS.inc(report.decode_calls)
        metrics.DECODE_SECONDS.inc(report.decode_s)
        for _ in range(report.decode_calls):
            metrics.DECODE_STEP_S.observe(report.decode_s / report.decode_calls)
            metrics.BATCH_SEQUENCES.observe(report.batch_sequences)
        metrics.DECODE_GAP_SECONDS.inc(report.gap_s)
        metrics.PROMPT_TOKENS.inc(report.prompt_tokens)
        metrics.GENERATED_TOKENS.inc(report.generated_tokens)
    if report.returned:
        metrics.PAUSES_ENDED.inc(report.returned)
        metrics.PAUSED_SECONDS.inc(report.paused_s)
    if report.drafted_tokens:
        by_model = report.drafted_by_model, report.accepted_by_model
        by_text = report.drafted_tokens - by_model[0], report.accepted_tokens - by_model[1]
        for drafter, (drafted, accepted) in (("model", by_model), ("text", by_text)):
            metrics.DRAFTED_TOKENS.labels("accepted", drafter).inc(accepted)
            metrics.DRAFTED_TOKENS.labels("rolled_back", drafter).inc(drafted - accepted)
    if report.drafters_off:
        metrics.DRAFTERS_OFF.inc(report.drafters_off)
    if report.images_encoded:
        metrics.IMAGES.inc(report.images_encoded)
        metrics.IMAGE_SECONDS.inc(report.encode_s)
