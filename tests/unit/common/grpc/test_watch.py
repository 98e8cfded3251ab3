"""A watched stream is opened again after every end, by one loop, against a real gRPC server."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from common.errors import InternalError, ModelUnavailable, PlacementMismatch, PunaError
from common.grpc.client import open_channel
from common.grpc.errors import received
from common.grpc.server import GrpcServer, bind_server
from common.grpc.watch import Backoff, watch
from protos import cluster_pb2, runner_pb2, runner_pb2_grpc
from tests.waiting import until

DEADLINE_S = 60.0

Statuses = AsyncGenerator[cluster_pb2.RunnerStatus, None]


class Counting(runner_pb2_grpc.RunnerServicer):
    """Sends the next two numbers on each stream, and ends it with the next of `endings`; None: without an error."""

    def __init__(self, endings: Iterator[Exception | None]) -> None:
        self._endings = endings
        self._number = 0

    async def WatchLoad(self, request: Any, context: Any) -> Statuses:  # noqa: N802
        for _ in range(2):
            self._number += 1
            yield cluster_pb2.RunnerStatus(slots_busy=self._number)
        if error := next(self._endings):
            raise error


async def serve(directory: Path, *endings: Exception | None) -> GrpcServer:
    runner = Counting(iter(endings))  # type: ignore[abstract]  # the other methods answer UNIMPLEMENTED
    server = bind_server(
        f"unix:{directory}/runner.sock",
        register=lambda s: runner_pb2_grpc.add_RunnerServicer_to_server(runner, s),
        services=["puna.v1.Runner"],
    )
    await server.start()
    return server


class Watched:
    """Watch over one channel, with a record of connections and losses in their order."""

    def __init__(self, directory: Path, *, fatal: type[PunaError] | None = None) -> None:
        self.channel = open_channel(f"unix:{directory}/runner.sock")
        self.story: list[bool | tuple[str | None, int]] = []
        self._fatal = fatal

    def _stream(self) -> Statuses:
        return received(runner_pb2_grpc.RunnerStub(self.channel).WatchLoad(runner_pb2.WatchLoadRequest()))

    def _lose(self, error: PunaError | None, failures: int) -> None:
        self.story.append((None if error is None else type(error).__name__, failures))
        if self._fatal is not None and isinstance(error, self._fatal):
            raise error

    async def numbers(self, count: int) -> list[int]:
        """Return the first so many numbers of the watch, and close it."""
        found: list[int] = []
        backoff = Backoff(first_s=0.001, max_s=0.01)
        async with (
            asyncio.timeout(DEADLINE_S),
            aclosing(watch(self._stream, on_lost=self._lose, on_connection=self.story.append, backoff=backoff)) as all_,
        ):
            async for status in all_:
                found.append(status.slots_busy)
                if len(found) == count:
                    break
        return found


async def test_no_message_is_lost_or_doubled_over_streams_that_end_with_and_without_an_error(tmp_path: Path) -> None:
    server = await serve(tmp_path, InternalError("broken"), None, ModelUnavailable("not now"), None)
    watched = Watched(tmp_path)
    assert await watched.numbers(7) == [1, 2, 3, 4, 5, 6, 7]
    assert watched.story == [
        *(True, False, ("InternalError", 1)),
        *(True, False, (None, 0)),
        *(True, False, ("ModelUnavailable", 1)),
        *(True, False),  # closed by its caller: no loss
    ]
    await watched.channel.close()
    await server.stop(0)


async def test_an_outage_is_counted_until_the_server_is_back(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    reading = asyncio.create_task(watched.numbers(1))
    async with asyncio.timeout(DEADLINE_S):
        await until(lambda: len(watched.story) >= 3, what="three attempts")
        server = await serve(tmp_path, None)
        assert await reading == [1]
    errors, connections = watched.story[:-2], watched.story[-2:]
    assert errors == [("ModelUnavailable", number) for number in range(1, len(errors) + 1)]
    assert connections == [True, False]
    await watched.channel.close()
    await server.stop(0)


async def test_what_on_lost_raises_ends_the_watch(tmp_path: Path) -> None:
    server = await serve(tmp_path, PlacementMismatch("replaced"))
    watched = Watched(tmp_path, fatal=PlacementMismatch)
    with pytest.raises(PlacementMismatch, match="replaced"):
        await watched.numbers(3)
    assert watched.story == [True, False, ("PlacementMismatch", 1)]
    await watched.channel.close()
    await server.stop(0)


async def test_longest_pauses_double_and_start_again_after_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    streams = iter([False, False, False, True, False, False])

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def stream() -> AsyncGenerator[int, None]:
        if next(streams):
            yield 1
        raise ModelUnavailable("gone")

    def lose(error: PunaError | None, failures: int) -> None:
        if len(pauses) == 5:
            raise InternalError("enough")

    monkeypatch.setattr("common.grpc.watch.asyncio.sleep", sleep)
    monkeypatch.setattr("common.grpc.watch.random.uniform", lambda _, longest: longest)
    with pytest.raises(InternalError, match="enough"):
        async for _ in watch(stream, on_lost=lose, backoff=Backoff(first_s=1, max_s=3)):
            pass
    assert pauses == [1, 2, 3, 1, 2]


async def test_clients_of_a_restarted_server_come_back_spread_over_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    said: list[int] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def absent() -> AsyncGenerator[int, None]:
        for number in said:
            yield number
        raise ModelUnavailable("gone")

    def lose(_: PunaError | None, failures: int) -> None:
        if failures == 7:  # the sixth pause is as long as they get
            raise InternalError("enough")

    monkeypatch.setattr("common.grpc.watch.asyncio.sleep", sleep)
    last = []
    for _ in range(200):
        with pytest.raises(InternalError, match="enough"):
            async for _ in watch(absent, on_lost=lose):
                pass
        last.append(pauses[-1])
    assert 0 <= min(last) < max(last) <= 2.0
    in_each_quarter = [sum(begin <= pause < begin + 0.5 for pause in last) for begin in (0.0, 0.5, 1.0, 1.5)]
    assert min(in_each_quarter) >= 20, in_each_quarter
