"""Runner.Multiplex: what is shared by the sequences of one call, and what is not."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from common.errors import InvalidRequest, ModelUnavailable, PunaError, QueueFull, RequestTimeout
from common.grpc.errors import domain_errors, from_bytes
from protos import runner_pb2, runner_pb2_grpc
from runner.multiplexer import CREDIT_TOKENS
from runner.serve.streams import WAITING_MAX
from tests.integration.runner.conftest import Zoo
from tests.integration.runner.processes import DEADLINE_S, RunnerProcess, collect, greedy, started
from tests.waiting import until

CREDIT = 100_000


class RawCall:
    """One call of Multiplex, message by message."""

    def __init__(self, stub: "runner_pb2_grpc.RunnerAsyncStub") -> None:
        self.call = stub.Multiplex()
        self.messages: list[runner_pb2.StepEvents] = []
        self.events: dict[int, list[runner_pb2.SequenceEvent]] = {}

    async def start(self, number: int, request: runner_pb2.GenerateRequest, **fields: Any) -> None:
        start = runner_pb2.StartSequence(request=request, **{"credit_tokens": CREDIT, **fields})
        await self.call.write(runner_pb2.SequenceCommand(sequence=number, start=start))

    async def credit(self, number: int, tokens: int) -> None:
        await self.call.write(runner_pb2.SequenceCommand(sequence=number, credit_tokens=tokens))

    async def cancel(self, number: int) -> None:
        await self.call.write(runner_pb2.SequenceCommand(sequence=number, cancel=runner_pb2.CancelSequence()))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Read messages until the condition holds."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                with domain_errors():
                    message: Any = await self.call.read()
                assert message is not aio.EOF, "the call ended"
                self.messages.append(message)
                for event in message.events:
                    self.events.setdefault(event.sequence, []).append(event)

    def ids(self, number: int) -> list[int]:
        """Token ids of a sequence."""
        return [token.id for one in self.events.get(number, ()) for token in one.event.tokens.tokens]

    def is_over(self, number: int) -> bool:
        known = self.events.get(number, [])
        return bool(known) and (known[-1].HasField("error") or known[-1].event.HasField("final"))

    def failed(self) -> list[int]:
        return [number for number, known in self.events.items() if known[-1].HasField("error")]

    def error(self, number: int) -> PunaError:
        return from_bytes(self.events[number][-1].error)


@asynccontextmanager
async def raw_call(runner: RunnerProcess) -> AsyncIterator[RawCall]:
    async with aio.insecure_channel(runner.hello["address"]) as channel:
        raw = RawCall(runner_pb2_grpc.RunnerStub(channel))
        try:
            yield raw
        finally:
            raw.call.cancel()


@asynccontextmanager
async def fake(
    directory: Path, *, slots: int, context_tokens: int = 512, **options: Any
) -> AsyncIterator[RunnerProcess]:
    """A runner whose answers depend on no other sequence, not even by rounding."""
    layout = json.dumps({"engine": "fake", "slots": slots, "contextTokens": context_tokens})
    argument = ("--engine-options", json.dumps(options))
    async with started(directory / "none.gguf", directory, *argument, layout=layout) as runner:
        yield runner


async def test_sixty_four_sequences_share_the_messages_of_each_step(tmp_path: Path) -> None:
    async with fake(tmp_path, slots=64, step_s=0.02) as runner:
        assert (await runner.ready()).multiplexes
        requests = [greedy(f"Number {number}", max_tokens=50) for number in range(64)]
        async with raw_call(runner) as raw:
            for number, request in enumerate(requests):
                await raw.start(number, request)
            await raw.until(lambda: all(raw.is_over(number) for number in range(64)))
            assert sum(len(raw.ids(number)) for number in range(64)) == 64 * 50
            # A message for each step, and some while the prompts arrive: as many as a call each would need tokens of
            # a single sequence, not of all.
            assert len(raw.messages) < 4 * 50
            assert max(len({event.sequence for event in one.events}) for one in raw.messages) == 64
            runner.client.multiplexes = False
            alone = await asyncio.gather(*(collect(runner.client, request) for request in requests))
            assert [[token.id for token in one.tokens] for one in alone] == [raw.ids(number) for number in range(64)]


async def test_a_reader_without_credit_holds_up_no_other_and_loses_nothing(tmp_path: Path) -> None:
    async with fake(tmp_path, slots=2, context_tokens=2048) as runner:
        await runner.ready()
        async with raw_call(runner) as raw:
            await raw.start(1, greedy("Hello", max_tokens=1200), credit_tokens=8)
            await raw.start(2, greedy("Hello", max_tokens=900))
            await raw.until(lambda: raw.is_over(2))
            assert len(raw.ids(2)) == 900
            assert len(raw.ids(1)) == 8, "what it has credit for"
            assert (await runner.status_where(slots_busy=1)).slots_busy == 1
            await raw.credit(1, CREDIT)
            await raw.until(lambda: raw.is_over(1))
            assert len(raw.ids(1)) == 1200
            assert max(Counter(event.sequence for event in one.events)[1] for one in raw.messages) <= 2
        runner.client.multiplexes = False
        assert [token.id for token in (await collect(runner.client, greedy("Hello", max_tokens=1200))).tokens] == (
            raw.ids(1)
        )


async def test_a_slow_reader_of_the_client_gets_every_token(tmp_path: Path) -> None:
    tokens = 6 * CREDIT_TOKENS
    async with fake(tmp_path, slots=2, context_tokens=4096) as runner:
        await runner.ready()
        runner.client.multiplexes = True
        slow = runner.client.generate(greedy("Hello", max_tokens=tokens))
        seen = [token.id for token in (await anext(slow)).tokens.tokens]
        other = await collect(runner.client, greedy("Hello", max_tokens=tokens))
        assert await runner.metric("puna_runner_slots_busy") == 1, "it waits for its reader"
        async for event in slow:
            seen += [token.id for token in event.tokens.tokens]
        assert seen == [token.id for token in other.tokens]


def reasons(runner: RunnerProcess) -> Counter[str]:
    return Counter(event["reason"] for event in runner.events() if event["event"] == "request.done")


@pytest.mark.parametrize("phase", ["waiting", "prompt", "answer"])
async def test_cancelling_one_sequence_frees_its_place_and_leaves_the_others(
    zoo: Zoo, tmp_path: Path, phase: str
) -> None:
    layout = '{"slots": 2, "contextTokens": 8192, "batchTokens": 64, "threads": 1}'
    async with started(zoo("dense"), tmp_path, layout=layout) as runner:
        await runner.ready()
        async with raw_call(runner) as raw:
            await raw.start(1, greedy("Hello", max_tokens=3000))
            await raw.until(lambda: bool(raw.ids(1)))
            match phase:
                case "waiting":
                    await raw.start(2, greedy("Hello", max_tokens=7000))
                    await raw.until(lambda: bool(raw.ids(2)))
                    await raw.start(3, greedy("Hello"))
                    await runner.status_where(queued=1)
                    await raw.cancel(3)
                    await runner.status_where(queued=0, slots_busy=2)
                    await raw.cancel(2)
                case "prompt":
                    await raw.start(2, greedy("x " * 7000))
                    await raw.until(lambda: 2 in raw.events)
                    assert raw.events[2][0].event.HasField("prompt")
                    await raw.cancel(2)
                case _:
                    await raw.start(2, greedy("Hello", max_tokens=7000))
                    await raw.until(lambda: len(raw.ids(2)) > 5)
                    await raw.cancel(2)
            await runner.status_where(slots_busy=1, queued=0)
            await raw.until(lambda: raw.is_over(1))
            assert len(raw.ids(1)) == 3000
            assert not raw.is_over(2)
            assert len(raw.ids(2)) < 7000
        ended = Counter(["length", *["cancelled"] * (2 if phase == "waiting" else 1)])
        await until(lambda: reasons(runner) == ended, what="every end is logged once")


async def test_errors_end_their_sequence_alone(zoo: Zoo, tmp_path: Path) -> None:
    layout = '{"slots": 1, "contextTokens": 4096, "threads": 1}'
    async with started(zoo("dense"), tmp_path, layout=layout) as runner:
        await runner.ready()
        async with raw_call(runner) as raw:
            await raw.start(1, greedy("Hello", max_tokens=3000))
            await raw.until(lambda: bool(raw.ids(1)))
            await raw.start(2, greedy("x", top_logprobs=21))
            await raw.start(3, greedy("Hello"), timeout_ms=200)
            await raw.start(4, greedy("x", max_tokens=2**32 - 1))
            await raw.until(lambda: raw.is_over(2) and raw.is_over(3) and raw.is_over(4))
            assert isinstance(raw.error(2), InvalidRequest)
            assert raw.error(2).message == "top_logprobs must be between 0 and 20"
            assert isinstance(raw.error(3), RequestTimeout)
            assert raw.error(4).param == "max_tokens"
            for number in range(10, 10 + 4 * WAITING_MAX):
                await raw.start(number, greedy("Hello"))
            await raw.until(lambda: raw.is_over(1))
            assert len(raw.ids(1)) == 3000
            # One that waited may have its slot and its whole answer by then: it is over without an error.
            failed = [raw.error(number) for number in raw.failed() if number >= 10]
            assert {type(error) for error in failed} == {QueueFull}
            assert all(error.retry_after_s for error in failed)


async def test_a_number_that_is_used_twice_ends_the_call_and_frees_its_slots(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("dense"), tmp_path) as runner:
        await runner.ready()
        async with raw_call(runner) as raw:
            await raw.start(1, greedy("Hello", max_tokens=5000))
            await raw.until(lambda: bool(raw.ids(1)))
            await raw.start(1, greedy("Hello"))
            with pytest.raises(InvalidRequest):
                await raw.until(lambda: False)
        await runner.status_where(slots_busy=0, queued=0)


async def test_the_last_command_lets_sequences_finish_and_the_end_of_the_call_cancels_them(
    zoo: Zoo, tmp_path: Path
) -> None:
    async with started(zoo("dense"), tmp_path) as runner:
        await runner.ready()
        async with raw_call(runner) as raw:
            await raw.start(1, greedy("Hello", max_tokens=300))
            await raw.call.done_writing()
            await raw.until(lambda: raw.is_over(1))
            assert len(raw.ids(1)) == 300
            assert await raw.call.read() is aio.EOF
        async with raw_call(runner) as raw:
            await raw.start(1, greedy("Hello", max_tokens=5000))
            await raw.until(lambda: bool(raw.ids(1)))
        await runner.status_where(slots_busy=0, queued=0)


async def test_a_runner_that_dies_fails_every_sequence_of_the_call_by_itself(tmp_path: Path) -> None:
    async with fake(tmp_path, slots=8, die_after_tokens=100, step_s=0.05) as runner:
        await runner.ready()
        runner.client.multiplexes = True
        seen: list[list[int]] = [[] for _ in range(8)]

        async def read(number: int) -> None:
            async for event in runner.client.generate(greedy(f"Number {number}", max_tokens=50)):
                seen[number] += [token.id for token in event.tokens.tokens]

        ended = await asyncio.gather(*map(read, range(8)), return_exceptions=True)
        assert {type(error) for error in ended} == {ModelUnavailable}
        assert len({id(error) for error in ended}) == 8, "each has its own traceback"
        assert all(0 < len(ids) < 50 for ids in seen)
        with pytest.raises(ModelUnavailable):
            await collect(runner.client, greedy("Hello"))
        await runner.exit_status()


async def test_a_sequence_keeps_the_id_of_its_request_in_the_logs(zoo: Zoo, tmp_path: Path) -> None:
    async with started(zoo("dense"), tmp_path) as runner:
        await runner.ready()
        async with raw_call(runner) as raw:
            for number in (1, 2):
                await raw.start(number, greedy("Hello"), request_id=f"request-{number}")
            await raw.until(lambda: raw.is_over(1) and raw.is_over(2))
        await until(lambda: len(ids_of_done(runner)) == 2, deadline_s=DEADLINE_S, what="both lines of the log")
    assert sorted(ids_of_done(runner)) == ["request-1", "request-2"]


def ids_of_done(runner: RunnerProcess) -> list[str]:
    """Ids of the requests that left their line in the log."""
    return [event["request_id"] for event in runner.events() if event["event"] == "request.done"]
