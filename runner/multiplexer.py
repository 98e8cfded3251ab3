"""Sequences of one runner over one call, from the caller's side: messages of a decode step are spread to readers."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextvars import Context
from functools import partial
from itertools import islice
from typing import Any

import structlog
from grpc import aio

from common.clock import MS_PER_S
from common.errors import ModelUnavailable, PunaError, RequestTimeout
from common.grpc.errors import UNREACHABLE, from_bytes, from_rpc_error
from common.telemetry import tracing
from common.trust.identity import IdentitySource
from protos import runner_pb2

# Tokens that a sequence may be ahead of its reader; half of them are given back at once.
CREDIT_TOKENS = 256
# A larger request gets a call of its own: commands of other sequences need not wait for its bytes.
REQUEST_BYTES_MAX = 256 * 1024
# Bytes that wait here unread. A runner joins the events of steps that a caller has no time for; with gRPC's own window
# it sends hundreds of small messages ahead instead, and an event loop reads one in each of its turns.
READ_AHEAD = (("grpc.http2.lookahead_bytes", 4096), ("grpc.http2.bdp_probe", 0))
# Passes of the event loop without a message, and time in all, after which the events that came are handed to their
# readers, the tokens of each sequence as one event. A pass takes a microsecond on an idle loop; on a busy one the way
# onwards to a client costs more than a token.
QUIET_PASSES = 3
JOIN_S_MAX = 0.004
# Readers that are woken in one pass: what they do holds up new requests.
WOKEN_MAX = 16

Call = aio.StreamStreamCall[runner_pb2.SequenceCommand, runner_pb2.StepEvents]
OpenCall = Callable[[AsyncIterator[runner_pb2.SequenceCommand]], Call]


class Multiplexer:
    """Opens a call with the first sequence, and another one once that broke or our certificate is renewed."""

    def __init__(self, open_call: OpenCall, identity: IdentitySource | None) -> None:
        """`open_call` calls `Multiplex`, with the newest certificate of `identity`."""
        self._open_call = open_call
        self._identity = identity
        self._current: _MultiplexedCall | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def generate(
        self, request: runner_pb2.GenerateRequest, timeout_s: float | None, on_sent: Callable[[], None]
    ) -> "SequenceEvents":
        """Return the events of one sequence, which begins when the first is waited for."""
        return SequenceEvents(self, request, timeout_s, on_sent)

    async def close(self) -> None:
        """End every call."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def call(self) -> "_MultiplexedCall":
        """Return the call for a new sequence."""
        material = self._identity.material() if self._identity is not None else None
        if self._current is None or self._current.is_over or self._current.material is not material:
            if self._current is not None:
                self._current.retire()
            self._current = _MultiplexedCall(self._open_call, material)
            self._spawn(self._current.read())
        return self._current

    def _spawn(self, reading: Coroutine[Any, Any, None]) -> None:
        # In a context of its own: the call belongs to no request.
        task = asyncio.create_task(reading, name="multiplexed call", context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _MultiplexedCall:
    """One call: commands go out one by one, messages are spread to their sequences."""

    def __init__(self, open_call: OpenCall, material: object) -> None:
        self.material = material  # that the connection was opened with
        self.is_over = False
        self._open_call = open_call
        self._loop = asyncio.get_running_loop()
        self._sequences: dict[int, SequenceEvents] = {}
        self._last_number = 0
        self._retired = False
        # At most a start, a cancellation and two credits for each sequence: tokens come for credit that was sent.
        self._commands: deque[runner_pb2.SequenceCommand] = deque()
        self._news = asyncio.Event()
        self._heard: dict[SequenceEvents, None] = {}  # have events that their readers have not been woken for
        self._heard_s = 0.0  # when the first of these events came
        self._quiet_passes = 0  # since the last message

    def add(self, sequence: "SequenceEvents") -> int:
        """Return the number of a new sequence."""
        self._last_number += 1
        self._sequences[self._last_number] = sequence
        return self._last_number

    def discard(self, number: int) -> None:
        """Give up a sequence; no event of it is wanted."""
        self._sequences.pop(number, None)
        self._news.set()

    def send(self, command: runner_pb2.SequenceCommand) -> None:
        """Queue a command."""
        self._commands.append(command)
        self._news.set()

    def retire(self) -> None:
        """End with the last sequence."""
        self._retired = True
        self._news.set()

    async def read(self) -> None:
        """Spread messages until the call is over; what is not finished then fails."""
        call = self._open_call(self._outgoing())
        error: aio.AioRpcError | None = None
        try:
            async for message in call:
                if not self._heard:
                    self._heard_s = self._loop.time()
                    self._loop.call_soon(self._wake)
                self._quiet_passes = 0
                for event in message.events:
                    if (sequence := self._sequences.get(event.sequence)) is not None:
                        sequence.add(event)
                        self._heard[sequence] = None
        except aio.AioRpcError as caught:
            error = caught
        finally:
            self.is_over = True
            self._news.set()
            call.cancel()
            sequences, self._sequences = self._sequences, {}
            broken = partial(ModelUnavailable, f"{UNREACHABLE}: the runner ended the call", retry_after_s=1.0)
            for sequence in sequences.values():
                sequence.fail(broken() if error is None else from_rpc_error(error))

    def _wake(self) -> None:
        """Wake the readers once no message has come for a moment, a few in each pass."""
        self._quiet_passes += 1
        if self._quiet_passes <= QUIET_PASSES and self._loop.time() < self._heard_s + JOIN_S_MAX:
            self._loop.call_soon(self._wake)
            return
        for sequence in [*islice(self._heard, WOKEN_MAX)]:
            del self._heard[sequence]
            sequence.wake()
        if self._heard:
            self._loop.call_soon(self._wake)

    async def _outgoing(self) -> AsyncIterator[runner_pb2.SequenceCommand]:
        while not self.is_over:
            while self._commands:
                yield (command := self._commands.popleft())
                if command.HasField("start") and (sequence := self._sequences.get(command.sequence)) is not None:
                    sequence.on_sent()
            if self._retired and not self._sequences:
                return
            self._news.clear()
            await self._news.wait()


class SequenceEvents(AsyncIterator[runner_pb2.GenerateEvent]):
    """The events of one sequence, for one reader. Closing it cancels the sequence."""

    __slots__ = (
        "_call",
        "_end",
        "_events",
        "_multiplexer",
        "_number",
        "_reader",
        "_request",
        "_taken",
        "_timeout_s",
        "_timer",
        "on_sent",
    )

    def __init__(
        self,
        multiplexer: Multiplexer,
        request: runner_pb2.GenerateRequest,
        timeout_s: float | None,
        on_sent: Callable[[], None],
    ) -> None:
        self._multiplexer = multiplexer
        self.on_sent = on_sent
        self._request: runner_pb2.GenerateRequest | None = request  # until it is sent
        self._timeout_s = timeout_s
        self._call: _MultiplexedCall | None = None  # while the runner works on it
        self._number = 0
        self._events: deque[runner_pb2.GenerateEvent] = deque()  # bounded by the credit
        self._end: PunaError | StopAsyncIteration | None = None
        self._reader: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._taken = 0  # tokens that no credit was given for since

    async def __anext__(self) -> runner_pb2.GenerateEvent:
        """Wait for the next event.

        Raises:
            PunaError: as the runner raised it; ModelUnavailable if it cannot be reached or died.
        """
        if self._request is not None:
            self._begin(self._request)
        while not self._events:
            if self._end is not None:
                raise self._end
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        event = self._events.popleft()
        while self._events and event.HasField("tokens") and self._events[0].HasField("tokens"):
            tokens = self._events.popleft().tokens
            text = event.tokens.text + tokens.text
            event.tokens.MergeFrom(tokens)
            event.tokens.text = text
        self._taken += max(1, len(event.tokens.tokens))
        if self._taken >= CREDIT_TOKENS // 2 and self._call is not None:
            self._call.send(runner_pb2.SequenceCommand(sequence=self._number, credit_tokens=self._taken))
            self._taken = 0
        return event

    async def aclose(self) -> None:
        """Cancel the sequence unless it is over."""
        self._request = None
        self._cancel()
        self._finish(StopAsyncIteration())

    def add(self, event: runner_pb2.SequenceEvent) -> None:
        """Take an event of the runner; the reader learns of it with `wake`."""
        if event.HasField("error"):
            self.fail(from_bytes(event.error))
            return
        self._events.append(event.event)
        if event.event.HasField("final"):
            self._finish(StopAsyncIteration())

    def fail(self, error: PunaError) -> None:
        """End with an error, after the events that are there."""
        self._finish(error)
        self.wake()

    def _begin(self, request: runner_pb2.GenerateRequest) -> None:
        self._request = None
        call = self._call = self._multiplexer.call()
        self._number = call.add(self)
        start = runner_pb2.StartSequence(
            request=request, credit_tokens=CREDIT_TOKENS, headers=dict(tracing.current().headers())
        )
        request_id = structlog.contextvars.get_contextvars().get("request_id")
        if isinstance(request_id, str):
            start.request_id = request_id
        if self._timeout_s is not None:
            start.timeout_ms = max(1, round(self._timeout_s * MS_PER_S))
            self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._expire)
        call.send(runner_pb2.SequenceCommand(sequence=self._number, start=start))

    def _expire(self) -> None:
        self._cancel()
        self.fail(RequestTimeout("request timed out"))

    def _cancel(self) -> None:
        if self._call is not None:
            self._call.send(runner_pb2.SequenceCommand(sequence=self._number, cancel=runner_pb2.CancelSequence()))

    def _finish(self, end: PunaError | StopAsyncIteration) -> None:
        """Let go of the call; the first end counts."""
        self._end = self._end or end
        if self._timer is not None:
            self._timer.cancel()
        if self._call is not None:
            self._call.discard(self._number)
            self._call = None

    def wake(self) -> None:
        """Have the reader look at what is there."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
