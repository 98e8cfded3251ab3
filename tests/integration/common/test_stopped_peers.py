"""Connections of which one side stands still or is cut off: nothing is reset, and nothing comes any more."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.grpc.client import open_channel
from common.grpc.server import bind_server
from tests.e2e.namespaces import bridge_network, machine_on, missing
from tests.faults.faults import Stopped, broken
from tests.ports import free_number, free_port
from tests.waiting import Stopwatch

NOTICED_S_MAX = 8.0  # a ping every 5 s, 3 s for its answer
SERVED_S_MAX = 60.0
# A client that reads a stream for ever.
READER = """
import asyncio, sys
from common.grpc.client import open_channel

async def read():
    async with open_channel(sys.argv[1]) as channel:
        async for _ in channel.unary_stream("/test.Streams/Open")(b"", wait_for_ready=True):
            pass

asyncio.run(read())
"""


async def test_a_stream_to_a_process_that_stands_still_ends_within_eight_seconds(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    settings = {"PUNA_DISCOVERY_LISTEN": address, "PUNA_PLAINTEXT": "1", "PUNA_METRICS_LISTEN": "127.0.0.1:0"}
    environment = os.environ | settings | {"PUNA_HOME": str(tmp_path)}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "discovery", env=environment)
    try:
        async with open_channel(address) as channel:
            begin = health_pb2_grpc.HealthStub(channel).Watch  # type: ignore[attr-defined]  # the stub lacks it
            call = begin(health_pb2.HealthCheckRequest(), timeout=SERVED_S_MAX, wait_for_ready=True)
            assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
            with broken(Stopped(process.pid)):
                watch = Stopwatch()
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await call.read()
                assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
                watch.assert_within(NOTICED_S_MAX + 1.0, "the end of the stream")
    finally:
        process.kill()
        await process.wait()


class OpenStream:
    """A stream that a server keeps open and says nothing on."""

    def __init__(self) -> None:
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    def register(self, server: aio.Server) -> None:
        opened: grpc.RpcMethodHandler[Any, Any] = grpc.unary_stream_rpc_method_handler(self._stay)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Streams", {"Open": opened}),))

    async def _stay(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        self.begun.set()
        try:
            yield b""
            await asyncio.Event().wait()
        finally:
            self.ended.set()


@contextmanager
def cut_off() -> Iterator[tuple[str, list[str], Any]]:
    """Address of this end of a cable, command prefix of the other end, and the machine there."""
    network = f"10.214.{free_number('network', range(1, 250))}"
    with (
        bridge_network(f"pnbs{os.getpid() % 100_000}", f"{network}.1") as bridge,
        machine_on("peer", bridge, 1, network) as machine,
    ):
        yield f"{network}.1", ["ip", "netns", "exec", machine.namespace], machine


@pytest.mark.parametrize("fault", ["stopped", "cut"])
async def test_a_stream_of_a_client_that_is_gone_without_a_word_ends_at_its_server(fault: str) -> None:
    async with AsyncExitStack() as stack:
        host, prefix, machine = "127.0.0.1", list[str](), None
        if fault == "cut":
            if reason := missing():
                pytest.skip(reason)
            host, prefix, machine = stack.enter_context(cut_off())
        stream = OpenStream()
        server = bind_server(f"{host}:0", register=stream.register, services=[], plaintext=True)
        await server.start()
        stack.push_async_callback(server.stop, 0)
        command = [*prefix, sys.executable, "-c", READER, server.address]
        process = await asyncio.create_subprocess_exec(*command)
        stack.push_async_callback(process.wait)
        stack.enter_context(suppress(ProcessLookupError))  # it has noticed the cut as well, and ended
        stack.callback(process.kill)
        async with asyncio.timeout(SERVED_S_MAX):
            await stream.begun.wait()
            if machine is None:
                stack.enter_context(broken(Stopped(process.pid)))
            else:
                machine.cut_off()
            watch = Stopwatch()
            await stream.ended.wait()
        watch.assert_within(NOTICED_S_MAX + 1.0, "the end of the stream")
