"""Runner.Multiplex as a test double serves it: every sequence runs through the scripted Generate."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from common.grpc.errors import to_bytes
from common.grpc.server import domain_error
from protos import runner_pb2

Generate = Callable[[runner_pb2.GenerateRequest, Any], AsyncIterator[runner_pb2.GenerateEvent]]


@dataclass(frozen=True, slots=True)
class SequenceContext:
    """The part of a call's context that scripts read."""

    start: runner_pb2.StartSequence

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [("x-request-id", self.start.request_id), *self.start.headers.items()]


@dataclass(slots=True)
class ScriptedCall:
    """Sends what its sequences have, and counts what they may send."""

    generate: Generate
    outgoing: asyncio.Queue[runner_pb2.SequenceEvent] = field(default_factory=asyncio.Queue)
    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    credit: dict[int, int] = field(default_factory=dict)
    given: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(self, commands: AsyncIterator[runner_pb2.SequenceCommand]) -> AsyncIterator[runner_pb2.StepEvents]:
        reader = asyncio.create_task(self._read(commands))
        try:
            while True:
                events = [await self.outgoing.get()]
                while not self.outgoing.empty():
                    events.append(self.outgoing.get_nowait())
                yield runner_pb2.StepEvents(events=events)
                for _ in events:
                    self.outgoing.task_done()
        finally:
            running = [reader, *self.tasks.values()]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _read(self, commands: AsyncIterator[runner_pb2.SequenceCommand]) -> None:
        async for command in commands:
            match command.WhichOneof("command"):
                case "start":
                    self.credit[command.sequence] = command.start.credit_tokens
                    self.tasks[command.sequence] = asyncio.create_task(self._serve(command.sequence, command.start))
                case "credit_tokens":
                    async with self.given:
                        self.credit[command.sequence] += command.credit_tokens
                        self.given.notify_all()
                case "cancel":
                    self.tasks[command.sequence].cancel()

    async def _serve(self, number: int, start: runner_pb2.StartSequence) -> None:
        try:
            async for event in self.generate(start.request, SequenceContext(start)):
                async with self.given:
                    await self.given.wait_for(lambda: self.credit[number] > 0)
                self.credit[number] -= max(1, len(event.tokens.tokens))
                self.outgoing.put_nowait(runner_pb2.SequenceEvent(sequence=number, event=event))
                await self.outgoing.join()  # written: a runner that dies after a piece has sent it
        except Exception as error:  # noqa: BLE001  # the edge of one sequence
            failure = to_bytes(domain_error(error, "Multiplex"))
            self.outgoing.put_nowait(runner_pb2.SequenceEvent(sequence=number, error=failure))
