"""One call of a caller with many sequences: their events leave in one message for each decode step."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import structlog

from common.clock import MS_PER_S
from common.errors import InternalError, InvalidRequest, PunaError, QueueFull, RequestTimeout
from common.grpc.errors import to_bytes
from common.grpc.server import check_caller_again, check_numbers, domain_error
from common.ids import new_request_id
from common.telemetry import tracing
from protos import runner_pb2
from runner.core.sequence.text_stream import Release
from runner.serve.streams import WAITING_MAX, Finished, Stream, StreamEvent, StreamTable

OpenSequence = Callable[[runner_pb2.GenerateRequest], AbstractAsyncContextManager[Stream]]
WriteEvent = Callable[[Stream, StreamEvent, runner_pb2.GenerateEvent], None]

METHOD = "/puna.v1.Runner/Multiplex"
# A message with more tokens is continued by another one: with 20 log-probabilities each these are about 2 MiB.
MESSAGE_TOKENS_MAX = 4096


@dataclass(eq=False, slots=True)
class _Sequence:
    number: int
    credit_tokens: int
    task: asyncio.Task[None] | None = None
    stream: Stream | None = None
    error: PunaError | None = None
    over: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class MultiplexedCall:
    """The sequences of one call. Lives on the event loop."""

    def __init__(self, open_sequence: OpenSequence, write_event: WriteEvent, streams: StreamTable) -> None:
        """Sequences are opened and written as for calls of their own."""
        self._open = open_sequence
        self._write = write_event
        self._streams = streams
        self._sequences: dict[int, _Sequence] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # of cancelled sequences as well, until they have let go
        self._ready: dict[_Sequence, None] = {}  # with events, in the order in which they came
        self._news = asyncio.Event()

    async def run(self, commands: AsyncIterator[runner_pb2.SequenceCommand]) -> AsyncIterator[runner_pb2.StepEvents]:
        """Yield a message whenever there are events, until the caller has sent its last command and every one is over.

        Raises:
            InvalidRequest: a number is used twice.
        """
        reader = asyncio.create_task(self._read(commands), name="commands")
        reader.add_done_callback(lambda _: self._news.set())
        try:
            while not reader.done() or (self._sequences and reader.exception() is None):
                await self._news.wait()
                self._news.clear()
                message = self._collect()
                if message.events:
                    yield message
            await reader
        finally:
            tasks = [reader, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, commands: AsyncIterator[runner_pb2.SequenceCommand]) -> None:
        async for command in commands:
            match command.WhichOneof("command"):
                case "start":
                    self._start(command)
                case "credit_tokens":
                    if (sequence := self._sequences.get(command.sequence)) is not None:
                        sequence.credit_tokens += command.credit_tokens
                        self._note(sequence)
                case "cancel":
                    sequence = self._sequences.pop(command.sequence, None)
                    if sequence is not None and sequence.task is not None:
                        sequence.task.cancel()

    def _start(self, command: runner_pb2.SequenceCommand) -> None:
        if command.sequence in self._sequences:
            raise InvalidRequest(f"sequence {command.sequence} has begun already", param="sequence")
        sequence = _Sequence(command.sequence, command.start.credit_tokens)
        self._sequences[command.sequence] = sequence
        sequence.task = asyncio.create_task(self._serve(sequence, command), name="sequence")
        self._tasks.add(sequence.task)
        sequence.task.add_done_callback(self._tasks.discard)

    async def _serve(self, sequence: _Sequence, command: runner_pb2.SequenceCommand) -> None:
        """Open the sequence, and keep it until its last event is in a message."""
        start = command.start
        with structlog.contextvars.bound_contextvars(request_id=start.request_id or new_request_id()):
            tracing.use_caller(start.headers.items())
            limit = asyncio.timeout(start.timeout_ms / MS_PER_S if start.timeout_ms else None)
            try:
                async with limit:
                    check_caller_again()
                    check_numbers(command)
                    if len(self._tasks) > self._streams.slots + 2 * WAITING_MAX:  # some may be about to end
                        raise QueueFull("this call has more sequences than the replica takes", retry_after_s=1.0)
                    async with self._open(start.request) as stream:
                        sequence.stream = stream
                        stream.on_news = lambda: self._note(sequence)
                        self._note(sequence)
                        await sequence.over
            except asyncio.CancelledError:
                if sequence.number in self._sequences and not self._is_cancelled():
                    self._fail(sequence, InternalError("internal error"))
                else:
                    raise
            except Exception as error:  # noqa: BLE001  # the edge of one sequence
                is_late = isinstance(error, TimeoutError) and limit.expired()
                self._fail(sequence, RequestTimeout("request timed out") if is_late else domain_error(error, METHOD))

    def _is_cancelled(self) -> bool:
        """Return True if the running task was asked to end, False if something below it cancelled itself."""
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    def _note(self, sequence: _Sequence) -> None:
        self._ready[sequence] = None
        self._news.set()

    def _fail(self, sequence: _Sequence, error: PunaError) -> None:
        sequence.error, sequence.stream = error, None
        self._note(sequence)

    def _collect(self) -> runner_pb2.StepEvents:
        """Take the events of every sequence with credit."""
        message = runner_pb2.StepEvents()
        tokens = 0
        while self._ready and tokens < MESSAGE_TOKENS_MAX:
            sequence = next(iter(self._ready))
            del self._ready[sequence]
            if self._sequences.get(sequence.number) is not sequence:
                continue  # cancelled
            if sequence.error is not None:
                message.events.add(sequence=sequence.number, error=to_bytes(sequence.error))
                del self._sequences[sequence.number]
            elif (stream := sequence.stream) is not None and not sequence.over.done():
                tokens += self._take(sequence, stream, message)
        if self._ready:
            self._news.set()
        return message

    def _take(self, sequence: _Sequence, stream: Stream, message: runner_pb2.StepEvents) -> int:
        """Move what a sequence has, and may send, into the message; return the number of its tokens."""
        before = sequence.credit_tokens
        try:
            while sequence.credit_tokens > 0 and (event := stream.take(sequence.credit_tokens)) is not None:
                self._write(stream, event, message.events.add(sequence=sequence.number).event)
                if isinstance(event, Finished):
                    del self._sequences[sequence.number]
                    sequence.over.set_result(None)
                    break
                sequence.credit_tokens -= max(1, len(event.tokens)) if isinstance(event, Release) else 1
        except PunaError as error:  # the sequence's task sends it
            sequence.stream = None
            sequence.over.set_exception(error)
        else:
            self._streams.drained(stream)
        return before - sequence.credit_tokens
