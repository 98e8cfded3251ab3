"""Domain errors survive a real gRPC call; bugs do not leak."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from google.rpc import status_pb2
from grpc import StatusCode, aio

from common.errors import InternalError, ModelUnavailable, PunaError, QueueFull, StartupError
from common.grpc.client import open_channel
from common.grpc.errors import domain_errors, from_bytes, received, to_bytes
from common.grpc.server import bind_server
from protos import runner_pb2, runner_pb2_grpc

DEADLINE_S = 60.0


class FailingRunner(runner_pb2_grpc.RunnerServicer):
    """Raises what the test puts in."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def Tokenize(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
        raise self.error

    async def Generate(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
        yield runner_pb2.GenerateEvent()
        raise self.error


@asynccontextmanager
async def stub_of_failing_runner(error: Exception, directory: Path) -> "AsyncIterator[runner_pb2_grpc.RunnerAsyncStub]":
    runner = FailingRunner(error)  # type: ignore[abstract]  # the other methods answer UNIMPLEMENTED
    server = bind_server(
        f"unix:{directory}/runner.sock",
        register=lambda s: runner_pb2_grpc.add_RunnerServicer_to_server(runner, s),
        services=["puna.v1.Runner"],
    )
    await server.start()
    channel: aio.Channel = open_channel(server.address)
    try:
        yield runner_pb2_grpc.RunnerStub(channel)
    finally:
        await channel.close()
        await server.stop(0)


async def raised_by_unary(error: Exception, directory: Path) -> PunaError:
    async with stub_of_failing_runner(error, directory) as stub:
        with pytest.raises(PunaError) as caught, domain_errors():
            await stub.Tokenize(runner_pb2.TokenizeRequest(), timeout=DEADLINE_S)
    return caught.value


async def test_a_domain_error_arrives_as_the_same_type_with_its_details(tmp_path: Path) -> None:
    arrived = await raised_by_unary(QueueFull("server busy", param="model", retry_after_s=2.5), tmp_path)
    assert isinstance(arrived, QueueFull)
    assert (arrived.message, arrived.param, arrived.retry_after_s) == ("server busy", "model", 2.5)


async def test_a_bug_arrives_without_its_text(tmp_path: Path) -> None:
    arrived = await raised_by_unary(KeyError("secret"), tmp_path)
    assert isinstance(arrived, InternalError)
    assert "secret" not in arrived.message


async def test_an_error_in_mid_stream_arrives_after_the_messages(tmp_path: Path) -> None:
    async with stub_of_failing_runner(QueueFull("server busy"), tmp_path) as stub:
        events = received(stub.Generate(runner_pb2.GenerateRequest(), timeout=DEADLINE_S))
        assert await anext(events) == runner_pb2.GenerateEvent()
        with pytest.raises(QueueFull):
            await anext(events)


async def test_an_unreachable_peer_is_unavailable(tmp_path: Path) -> None:
    channel = open_channel(f"unix:{tmp_path}/nobody.sock")
    try:
        with pytest.raises(ModelUnavailable), domain_errors():
            await runner_pb2_grpc.RunnerStub(channel).Tokenize(runner_pb2.TokenizeRequest(), timeout=DEADLINE_S)
    finally:
        await channel.close()


def test_an_error_inside_a_message_arrives_as_one_of_a_call() -> None:
    arrived = from_bytes(to_bytes(QueueFull("server busy", param="model", retry_after_s=2.5)))
    assert isinstance(arrived, QueueFull)
    assert (arrived.message, arrived.param, arrived.retry_after_s) == ("server busy", "model", 2.5)
    of_newer_build = status_pb2.Status(code=StatusCode.UNAVAILABLE.value[0], message="moved")
    assert isinstance(from_bytes(of_newer_build.SerializeToString()), ModelUnavailable)


def test_a_listener_that_others_can_reach_needs_consent() -> None:
    with pytest.raises(StartupError, match="PUNA_PLAINTEXT"):
        bind_server("0.0.0.0:0", register=lambda _: None, services=[])


async def test_a_taken_port_is_named() -> None:
    first = bind_server("127.0.0.1:0", register=lambda _: None, services=[])
    await first.start()
    try:
        with pytest.raises(StartupError, match="already in use"):
            bind_server(first.address, register=lambda _: None, services=[])
    finally:
        await first.stop(0)
