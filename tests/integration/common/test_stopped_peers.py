"""Channels to a process that stands still: its kernel acknowledges what is sent to it, and nothing comes back."""

import signal
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.grpc.client import open_channel
from tests.faults.faults import Stopped, broken
from tests.integration.host.node import start_discovery
from tests.waiting import Stopwatch

NOTICED_S_MAX = 8.0  # a ping every 5 s, 3 s for its answer
SERVED_S_MAX = 60.0


async def test_a_stream_to_a_process_that_stands_still_ends_within_eight_seconds(tmp_path: Path) -> None:
    discovery = await start_discovery(tmp_path)
    try:
        address = (await discovery.event("discovery.ready"))["address"]
        async with open_channel(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            call = stub.Watch(health_pb2.HealthCheckRequest(), timeout=SERVED_S_MAX)  # type: ignore[attr-defined]
            assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
            with broken(Stopped(discovery.process.pid)):
                watch = Stopwatch()
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await call.read()
                assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
                watch.assert_within(NOTICED_S_MAX + 1.0, "the end of the stream")
    finally:
        await discovery.end(signal.SIGKILL)
