"""puna.v1.Host over gRPC."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from grpc import aio

from protos import host_pb2, host_pb2_grpc
from runner.host.devices import Devices
from runner.host.measurements import Measurements
from runner.host.supervisor import Supervisor

EVENT_INTERVAL_S_MIN = 0.02


class HostServicer(host_pb2_grpc.HostServicer):
    """Commands in, outcomes out; everything is decided elsewhere."""

    def __init__(self, supervisor: Supervisor, measurements: Measurements, devices: Devices) -> None:
        self._supervisor = supervisor
        self._measurements = measurements
        self._devices = devices

    async def Measure(
        self,
        request: host_pb2.MeasureRequest,
        context: aio.ServicerContext[Any, Any],
    ) -> host_pb2.MeasureResponse:
        """Count bytes without loading."""
        report = await self._measurements.measure(
            model_digest=request.model_digest, layout=request.layout, engine_build=self._devices.engine_build
        )
        return host_pb2.MeasureResponse(report=report)

    async def Start(
        self,
        request: host_pb2.StartRequest,
        context: aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[host_pb2.StartEvent]:
        """Start or attach, and report until the load is over. The runner does not notice who listens."""
        runner = await self._supervisor.start(request)
        while True:
            seen = runner.changes.version
            settled = runner.is_settled
            yield host_pb2.StartEvent(runner=runner.record())
            if settled:
                return
            await asyncio.sleep(EVENT_INTERVAL_S_MIN)
            await runner.changes.beyond(seen)

    async def Stop(
        self,
        request: host_pb2.StopRequest,
        context: aio.ServicerContext[Any, Any],
    ) -> host_pb2.StopResponse:
        """Drain and stop."""
        await self._supervisor.stop(request)
        return host_pb2.StopResponse()
