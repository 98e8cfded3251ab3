"""A client of a scheduler that stops answering, and answers again."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.errors import ModelUnavailable
from protos import discovery_pb2, scheduler_pb2, scheduler_pb2_grpc
from scheduler.client import SchedulerClient
from scheduler.pulse import BEAT_S, SILENCE_S, Pulse
from tests.waiting import Stopwatch, next_look, until

Context = aio.ServicerContext[Any, Any]


@dataclass
class Stoppable(scheduler_pb2_grpc.SchedulerServicer, health_pb2_grpc.HealthServicer):
    """Answers while `runs` is set, as a process does that is stopped and woken."""

    runs: asyncio.Event = field(default_factory=asyncio.Event)
    calls: int = 0

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:  # noqa: N802  # gRPC names it
        await self.runs.wait()
        return health_pb2.HealthCheckResponse()

    async def ListNodes(self, request: scheduler_pb2.ListNodesRequest, context: Context) -> discovery_pb2.Inventory:  # noqa: N802  # gRPC names it
        self.calls += 1
        await self.runs.wait()
        return discovery_pb2.Inventory()

    async def EnsureModel(  # noqa: N802  # gRPC names it
        self, request: scheduler_pb2.EnsureModelRequest, context: Context
    ) -> AsyncIterator[scheduler_pb2.EnsureModelEvent]:
        self.calls += 1
        await self.runs.wait()
        yield scheduler_pb2.EnsureModelEvent(ready=scheduler_pb2.Ready())


async def test_a_silent_scheduler_ends_the_running_call_and_gets_no_other_one_until_it_answers(
    directory: Path,
) -> None:
    servicer = Stoppable()  # type: ignore[abstract]  # the other calls stay unimplemented

    address = f"unix:{directory}/silent.sock"
    server = aio.server()
    scheduler_pb2_grpc.add_SchedulerServicer_to_server(servicer, server)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(address)
    await server.start()
    try:
        async with SchedulerClient(address) as client:
            watch = Stopwatch()
            with pytest.raises(ModelUnavailable, match="the scheduler cannot be reached"):
                await client.list_nodes()
            assert servicer.calls == 1
            watch.assert_within(SILENCE_S + BEAT_S, "the first call")
            with pytest.raises(ModelUnavailable, match="the scheduler cannot be reached"):
                await client.list_nodes()
            with pytest.raises(ModelUnavailable, match="the scheduler cannot be reached"):
                await anext(client.ensure_model(scheduler_pb2.EnsureModelRequest(model_name="m")))
            assert servicer.calls == 1, "a known silence is no reason to send anything"

            servicer.runs.set()
            nodes: list[discovery_pb2.Inventory] = []

            async def ask() -> None:
                while not nodes:
                    try:
                        nodes.append(await client.list_nodes())
                    except ModelUnavailable:
                        await next_look()

            asked = asyncio.create_task(ask())
            await until(asked.done, what="it answers again")
            assert servicer.calls == 2
    finally:
        servicer.runs.set()
        await server.stop(0)


async def test_the_pulse_of_an_address_that_is_gone_ends() -> None:
    channel = aio.insecure_channel("127.0.0.1:1")
    pulse = Pulse(channel)
    await channel.close()
    async with asyncio.timeout(SILENCE_S + 10 * BEAT_S):
        await asyncio.wait({pulse._task})
    assert pulse._task.cancelled() or pulse._task.exception() is None
