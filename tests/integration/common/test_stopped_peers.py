"""Channels to a process that stands still: its kernel acknowledges what is sent to it, and nothing comes back."""

import asyncio
import os
import sys

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.grpc.client import open_channel
from tests.faults.faults import Stopped, broken
from tests.ports import free_port
from tests.waiting import Stopwatch

NOTICED_S_MAX = 8.0  # a ping every 5 s, 3 s for its answer
SERVED_S_MAX = 60.0


async def test_a_stream_to_a_process_that_stands_still_ends_within_eight_seconds() -> None:
    address = f"127.0.0.1:{free_port()}"
    settings = {"PUNA_DISCOVERY_LISTEN": address, "PUNA_PLAINTEXT": "1", "PUNA_METRICS_LISTEN": "127.0.0.1:0"}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "discovery", env=os.environ | settings)
    try:
        async with open_channel(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest()
            call = stub.Watch(request, timeout=SERVED_S_MAX, wait_for_ready=True)  # type: ignore[attr-defined]
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
