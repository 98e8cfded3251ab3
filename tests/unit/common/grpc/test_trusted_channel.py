"""Certificates and authorities are replaced while calls run: no call notices."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from grpc import StatusCode, aio

from common.errors import InternalError, ModelUnavailable, PunaError
from common.grpc.client import open_channel
from common.grpc.errors import domain_errors
from common.grpc.server import GrpcServer, bind_server
from common.network import split_host_port
from common.trust.identity import Identity
from protos import host_pb2, runner_pb2, runner_pb2_grpc
from runner.host.client import HostClient
from tests.trust import Cluster, acting_as
from tests.waiting import until

DEADLINE_S = 30.0
SHORT_S = 3.0


@dataclass
class Runner(runner_pb2_grpc.RunnerServicer):
    """Streams an event, and another one whenever the test says so; notes the certificate of each caller."""

    go: asyncio.Queue[None] = field(default_factory=asyncio.Queue)
    certificates: list[bytes] = field(default_factory=list)

    async def Generate(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
        while True:
            yield runner_pb2.GenerateEvent()
            await self.go.get()

    async def Tokenize(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
        self.certificates.append(context.auth_context()["x509_pem_cert"][0])
        return runner_pb2.TokenizeResponse()


class Pair:
    """A node's server and a gateway's channel, with the directories of their certificates."""

    def __init__(self, cluster: Cluster, *, life_s: float) -> None:
        self.cluster = cluster
        self.life_s = life_s
        self.server_files = cluster.directory("node/a", life_s=life_s)
        self.client_files = cluster.directory("gateway", life_s=life_s)
        self.runner = Runner()  # type: ignore[abstract]  # the other methods answer UNIMPLEMENTED
        with acting_as(Identity(self.server_files)):
            self.server: GrpcServer = bind_server(
                "127.0.0.1:0",
                register=lambda one: runner_pb2_grpc.add_RunnerServicer_to_server(self.runner, one),
                services=[],
            )
        with acting_as(Identity(self.client_files)):
            self.channel = open_channel(self.server.address, "node/a")
        self.stub = runner_pb2_grpc.RunnerStub(self.channel)

    async def open_stream(self) -> "aio.UnaryStreamCall[runner_pb2.GenerateRequest, runner_pb2.GenerateEvent]":
        stream = self.stub.Generate(runner_pb2.GenerateRequest())
        async with asyncio.timeout(DEADLINE_S):
            await stream.read()
        return stream

    async def event(self, stream: "aio.UnaryStreamCall[runner_pb2.GenerateRequest, runner_pb2.GenerateEvent]") -> None:
        self.runner.go.put_nowait(None)
        async with asyncio.timeout(DEADLINE_S):
            assert await stream.read() == runner_pb2.GenerateEvent()

    async def call(self) -> bytes:
        """Make a call; the certificate that the server saw."""
        await self.stub.Tokenize(runner_pb2.TokenizeRequest(), timeout=DEADLINE_S)
        return self.runner.certificates[-1]

    def renew(self) -> None:
        self.cluster.directory("node/a")
        self.cluster.directory("gateway")


@asynccontextmanager
async def pair_of(cluster: Cluster, *, life_s: float = 3600.0) -> AsyncIterator[Pair]:
    pair = Pair(cluster, life_s=life_s)
    await pair.server.start()
    try:
        yield pair
    finally:
        await pair.channel.close()
        await pair.server.stop(0)


@pytest.fixture(autouse=True)
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.trust.identity.LOOK_S", 0.0)


async def test_a_stream_runs_on_while_both_certificates_and_the_authority_are_replaced(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with pair_of(cluster) as pair:
        stream = await pair.open_stream()
        seen = [await pair.call()]
        for step in (pair.renew, cluster.authority.rotate, pair.renew, cluster.authority.rotate, pair.renew):
            step()
            await pair.event(stream)
            seen.append(await pair.call())
        assert len(set(seen)) == 4  # each renewal is shown by the next call


async def test_between_two_rotations_a_renewed_client_reaches_a_server_of_the_authority_before(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with pair_of(cluster) as pair:
        cluster.authority.rotate()
        cluster.directory("gateway")
        first = await pair.call()
        cluster.directory("node/a")
        assert await pair.call() == first


async def test_a_stream_outlives_its_certificate_and_new_calls_need_a_new_one(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    async with pair_of(cluster, life_s=SHORT_S) as pair:
        stream = await pair.open_stream()
        await pair.call()
        end_s = time.time() + SHORT_S
        await until(lambda: time.time() > end_s, what="the certificates have expired")
        with pytest.raises(aio.AioRpcError) as refused:
            await pair.call()
        assert refused.value.code() is StatusCode.UNAUTHENTICATED
        assert "gateway expired after this connection was opened" in str(refused.value.details())
        pair.renew()
        await pair.event(stream)
        await pair.call()


async def test_closing_ends_the_calls_of_all_certificates(tmp_path: Path) -> None:
    async with pair_of(Cluster(tmp_path)) as pair:
        older = await pair.open_stream()
        pair.renew()
        newer = await pair.open_stream()
        async with asyncio.timeout(DEADLINE_S):
            await pair.channel.close()
            assert await older.code() is StatusCode.CANCELLED
            assert await newer.code() is StatusCode.CANCELLED


async def test_a_connection_is_closed_with_its_last_call_after_a_renewal(tmp_path: Path) -> None:
    async with pair_of(Cluster(tmp_path)) as pair:
        stream = await pair.open_stream()
        before = established(pair)
        pair.renew()
        await pair.call()
        assert len(established(pair)) == 2
        stream.cancel()
        del stream  # a call that is referenced keeps its connection
        await until(lambda: not established(pair) & before, what="the connection is closed")
        assert len(established(pair)) == 1


def established(pair: Pair) -> set[str]:
    """Return the client ends of the connections that the server has."""
    port = f":{split_host_port(pair.server.address)[1]:04X}"
    tables = [Path(f"/proc/self/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {row[1] for row in rows if row[2].endswith(port) and row[3] == "01"}


@pytest.mark.parametrize(("node_id", "error"), [("a", InternalError), ("b", ModelUnavailable), ("", InternalError)])
async def test_commands_go_to_the_node_that_they_are_meant_for(
    node_id: str, error: type[PunaError], tmp_path: Path
) -> None:
    async with pair_of(Cluster(tmp_path)) as pair:
        client = HostClient("node")
        try:
            with acting_as(pair.cluster.identity("scheduler")), pytest.raises(error):  # the server has no such method
                await client.stop(pair.server.address, host_pb2.StopRequest(), node_id=node_id)
        finally:
            await client.forget(pair.server.address)


async def test_a_refused_certificate_says_so(tmp_path: Path) -> None:
    other = Cluster(tmp_path / "other").identity("gateway")
    async with pair_of(Cluster(tmp_path / "own")) as pair:
        with acting_as(other):
            channel = open_channel(pair.server.address, "node/a")
        async with channel:
            with pytest.raises(ModelUnavailable, match="certificate"), domain_errors():
                await runner_pb2_grpc.RunnerStub(channel).Tokenize(runner_pb2.TokenizeRequest(), timeout=DEADLINE_S)
