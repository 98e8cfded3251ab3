"""Sequences over one call with certificates: a renewed one is used at once, an expired one begins nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from grpc import aio

from common.closing import closing
from common.errors import PunaError, Unauthenticated
from common.grpc.client import open_channel
from common.grpc.errors import from_bytes
from common.grpc.server import bind_server
from common.trust.identity import Identity
from protos import runner_pb2, runner_pb2_grpc
from runner.client import RunnerClient
from runner.multiplexer import READ_AHEAD, Multiplexer
from runner.serve.multiplexed_call import MultiplexedCall
from runner.serve.streams import Stream, StreamTable
from tests.trust import Cluster, acting_as
from tests.waiting import until

DEADLINE_S = 30.0
READ_BYTES = 13  # of a message of `Hasty`, framed


@dataclass
class OneToken:
    """A stream with one event, which ends when the test says so."""

    ended: asyncio.Event
    on_news: Any = None
    taken: bool = False

    def take(self, _tokens_max: int) -> str | None:
        if not self.taken:
            self.taken = True
            return "token"
        return None


@dataclass
class Runner(runner_pb2_grpc.RunnerServicer):
    """Multiplexes streams of one event; counts the calls that are open."""

    calls: int = 0
    open: int = 0
    table: Any = field(default_factory=lambda: SimpleNamespace(slots=4, drained=lambda _stream: None))

    async def Multiplex(self, request: Any, context: Any) -> AsyncIterator[runner_pb2.StepEvents]:  # noqa: N802
        self.calls += 1
        self.open += 1
        call = MultiplexedCall(self._stream, self._write, cast(StreamTable, self.table))
        try:
            async with closing(call.run(request)) as messages:
                async for message in messages:
                    yield message
        finally:
            self.open -= 1

    @asynccontextmanager
    async def _stream(self, request: runner_pb2.GenerateRequest) -> AsyncIterator[Stream]:
        yield cast(Stream, OneToken(asyncio.Event()))

    def _write(self, _stream: object, _event: object, message: runner_pb2.GenerateEvent) -> None:
        message.prompt.done_tokens = 1


@asynccontextmanager
async def serving(runner: Runner, cluster: Cluster) -> AsyncIterator[str]:
    with acting_as(cluster.identity("node/a")):
        server = bind_server(
            "127.0.0.1:0",
            register=lambda one: runner_pb2_grpc.add_RunnerServicer_to_server(runner, one),
            services=[],
        )
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop(0)


async def begun(client: RunnerClient) -> Any:
    """A sequence that has its first event."""
    events = client.generate(runner_pb2.GenerateRequest())
    async with asyncio.timeout(DEADLINE_S):
        await anext(events)
    return events


async def test_a_renewed_certificate_gets_another_call_and_the_older_one_ends_with_its_last_sequence(
    tmp_path: Path,
) -> None:
    cluster, runner = Cluster(tmp_path), Runner()  # type: ignore[abstract]  # the other methods answer UNIMPLEMENTED
    identity = Identity(cluster.directory("gateway"))
    async with serving(runner, cluster) as address:
        with acting_as(identity):
            client = RunnerClient(address, "node/a")
        client.multiplexes = True
        async with client:
            first, second = await begun(client), await begun(client)
            assert (runner.calls, runner.open) == (1, 1)
            before = identity.material()
            cluster.directory("gateway")
            await until(lambda: identity.material() is not before, deadline_s=DEADLINE_S, what="the new certificate")
            third = await begun(client)
            assert (runner.calls, runner.open) == (2, 2)
            await first.aclose()
            await second.aclose()
            await until(lambda: runner.open == 1, deadline_s=DEADLINE_S, what="the end of the older call")
            await third.aclose()
            assert await begun(client)
            assert runner.calls == 2


async def test_a_caller_whose_certificate_expired_begins_no_sequence_on_an_open_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, runner = Cluster(tmp_path), Runner()  # type: ignore[abstract]  # as above
    async with serving(runner, cluster) as address:
        with acting_as(cluster.identity("gateway")):
            channel: aio.Channel = open_channel(address, "node/a")
        call = runner_pb2_grpc.RunnerStub(channel).Multiplex()
        try:
            async with asyncio.timeout(DEADLINE_S):
                await call.write(_start(1))
                (event,) = cast(Any, await call.read()).events
                assert event.HasField("event")
                monkeypatch.setattr("common.trust.callers.time", SimpleNamespace(time=lambda: 2.0**40))
                await call.write(_start(2))
                (event,) = cast(Any, await call.read()).events
            error: PunaError = from_bytes(event.error)
            assert (event.sequence, type(error)) == (2, Unauthenticated)
        finally:
            call.cancel()
            await channel.close()


@dataclass
class Hasty(runner_pb2_grpc.RunnerServicer):
    """Sends small messages as quickly as it may; counts them."""

    sent: int = 0

    async def Multiplex(self, request: Any, context: Any) -> AsyncIterator[runner_pb2.StepEvents]:  # noqa: N802
        event = runner_pb2.GenerateEvent(prompt=runner_pb2.PromptProgress(done_tokens=1))
        while True:
            yield runner_pb2.StepEvents(events=[runner_pb2.SequenceEvent(sequence=1, event=event)])
            self.sent += 1

    async def Tokenize(self, request: Any, context: Any) -> runner_pb2.TokenizeResponse:  # noqa: N802
        return runner_pb2.TokenizeResponse()


async def test_a_runner_sends_little_ahead_of_a_caller_that_does_not_read() -> None:
    runner = Hasty()  # type: ignore[abstract]  # as above
    server = bind_server(
        "127.0.0.1:0", register=lambda one: runner_pb2_grpc.add_RunnerServicer_to_server(runner, one), services=[]
    )
    await server.start()
    async with RunnerClient(server.address) as client:
        call = client._stub.Multiplex()
        await call.read()
        for _ in range(200):  # beside which the call moves what it may
            await client.tokenize(runner_pb2.TokenizeRequest())
        assert 0 < runner.sent * READ_BYTES < 3 * dict(READ_AHEAD)["grpc.http2.lookahead_bytes"]
        call.cancel()
    await server.stop(0)


class Given(AsyncIterator[runner_pb2.StepEvents]):
    """A call whose messages come in groups: those of a group at once, the next group when the test says so."""

    def __init__(self, *groups: list[runner_pb2.StepEvents]) -> None:
        self._groups = iter(groups)
        self._messages: list[runner_pb2.StepEvents] = []
        self.goes_on = asyncio.Event()

    async def __anext__(self) -> runner_pb2.StepEvents:
        if not self._messages:
            await self.goes_on.wait()
            self.goes_on.clear()
            self._messages = list(next(self._groups))
        return self._messages.pop(0)

    def cancel(self) -> None:
        pass


async def test_tokens_that_come_together_go_on_as_one_event_and_others_alone() -> None:
    def step(*events: tuple[int, str]) -> runner_pb2.StepEvents:
        return runner_pb2.StepEvents(
            events=[
                runner_pb2.SequenceEvent(
                    sequence=number,
                    event=runner_pb2.GenerateEvent(
                        tokens=runner_pb2.TokenChunk(text=text, tokens=[runner_pb2.Token(id=ord(text))])
                    ),
                )
                for number, text in events
            ]
        )

    end = runner_pb2.SequenceEvent(sequence=1, event=runner_pb2.GenerateEvent(final=runner_pb2.Final()))
    last = step((1, "e"))
    last.events.append(end)
    call = Given([step((1, "a"), (2, "x")), step((1, "b"))], [step((1, "c"))], [step((1, "d")), last])
    multiplexer = Multiplexer(cast(Any, lambda _commands: call), None)
    first, second = (multiplexer.generate(runner_pb2.GenerateRequest(), None, lambda: None) for _ in range(2))
    seen = []
    async with asyncio.timeout(DEADLINE_S):
        reading = asyncio.create_task(anext(second))
        async with closing(first) as events:
            call.goes_on.set()
            async for event in events:
                seen.append((event.tokens.text, [token.id for token in event.tokens.tokens]))
                call.goes_on.set()
        assert (await reading).tokens.text == "x"
    assert seen == [("ab", [97, 98]), ("c", [99]), ("de", [100, 101]), ("", [])]
    await multiplexer.close()


def _start(number: int) -> runner_pb2.SequenceCommand:
    return runner_pb2.SequenceCommand(sequence=number, start=runner_pb2.StartSequence(credit_tokens=8))
