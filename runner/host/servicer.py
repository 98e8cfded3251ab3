"""puna.v1.Host over gRPC."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from grpc import aio

from common.closing import closing
from common.errors import DiskFull, InvalidRequest, NotSupported
from common.telemetry import tracing
from protos import host_pb2, host_pb2_grpc
from runner.core.states.messages import SALT_LENGTH_MAX, BadMessage, parted
from runner.host.faults import NodeFaults
from runner.host.lending.lending import lend_response
from runner.host.lending.tunnel_listener import TunnelListener
from runner.host.runners.measurements import Measurements
from runner.host.runners.supervisor import RunnerSupervisor
from runner.host.states.peers import PeerStates
from runner.host.states.store import NodeStates

EVENT_INTERVAL_S_MIN = 0.02

Context = aio.ServicerContext[Any, Any]


class HostServicer(host_pb2_grpc.HostServicer):
    """Commands in, outcomes out; everything is decided elsewhere."""

    def __init__(
        self,
        supervisor: RunnerSupervisor,
        measurements: Measurements,
        tunnel: TunnelListener | None,
        faults: NodeFaults,
        states: NodeStates,
        peers: PeerStates,
    ) -> None:
        """Without a tunnel nothing is lent."""
        self._supervisor = supervisor
        self._measurements = measurements
        self._tunnel = tunnel
        self._faults = faults
        self._states = states
        self._peers = peers

    async def Measure(self, request: host_pb2.MeasureRequest, context: Context) -> host_pb2.MeasureResponse:
        """Count bytes without loading."""
        with tracing.begin("measure", {"puna.digest": request.model_digest}, kind=tracing.SpanKind.SERVER):
            return host_pb2.MeasureResponse(report=await self._measurements.measure(request))

    async def Start(self, request: host_pb2.StartRequest, context: Context) -> AsyncIterator[host_pb2.StartEvent]:
        """Start or attach, and report until the load is over. The runner is independent of its listeners."""
        attributes = {
            "gen_ai.request.model": request.model_name,
            "puna.placement": request.placement.placement_id,
        }
        with tracing.begin("start", attributes, kind=tracing.SpanKind.SERVER) as span:
            runner = await self._supervisor.start(request)
            while True:
                seen = runner.changes.version
                settled = runner.is_settled
                record = runner.record()
                if settled and record.status.HasField("error"):
                    span.fail(record.status.error.reason)
                yield host_pb2.StartEvent(runner=record)
                if settled:
                    return
                await asyncio.sleep(EVENT_INTERVAL_S_MIN)
                await runner.changes.beyond(seen)

    async def ResetDevice(self, request: host_pb2.ResetDeviceRequest, context: Context) -> host_pb2.ResetDeviceResponse:
        """Give an excluded device another chance."""
        return host_pb2.ResetDeviceResponse(device=await self._supervisor.reset_device(request))

    async def ExcuseCrash(self, request: host_pb2.ExcuseCrashRequest, context: Context) -> host_pb2.ExcuseCrashResponse:
        """Blame no device for the end of a replica."""
        await self._supervisor.excuse_crash(request)
        return host_pb2.ExcuseCrashResponse()

    async def Stop(self, request: host_pb2.StopRequest, context: Context) -> host_pb2.StopResponse:
        """Drain and stop."""
        await self._supervisor.stop(request)
        return host_pb2.StopResponse()

    async def Lend(self, request: host_pb2.LendRequest, context: Context) -> host_pb2.LendResponse:
        """Lend devices to one placement of another node."""
        if self._tunnel is None:
            raise NotSupported("this node lends no devices; set PUNA_RPC=1")
        lease = await self._supervisor.lend(request)
        return lend_response(lease, tunnel_address=self._tunnel.address, certificate=self._tunnel.identity.certificate)

    async def InjectFault(
        self, request: host_pb2.InjectFaultRequest, context: Context
    ) -> AsyncIterator[host_pb2.InjectFaultEvent]:
        """Make a fault that lasts as long as the call at most."""
        async with closing(self._faults.inject(request)) as steps:
            async for text in steps:
                yield host_pb2.InjectFaultEvent(text=text)

    async def ForgetStates(
        self, request: host_pb2.ForgetStatesRequest, context: Context
    ) -> host_pb2.ForgetStatesResponse:
        """Drop the saved states of a tenant."""
        if len(request.cache_salt) > SALT_LENGTH_MAX:
            raise InvalidRequest(f"a salt has at most {SALT_LENGTH_MAX} characters", param="cache_salt")
        try:
            states, size = await self._states.forget(request.cache_salt)
        except OSError as error:
            raise DiskFull(f"the order cannot be noted: {error.strerror}; nothing was dropped") from error
        return host_pb2.ForgetStatesResponse(states=states, bytes=size)

    async def ReadState(
        self, request: host_pb2.ReadStateRequest, context: Context
    ) -> AsyncIterator[host_pb2.StateChunk]:
        """Send a saved state to another node."""
        try:
            links = parted(request.links)
        except BadMessage as error:
            raise InvalidRequest("links are hashes of 16 bytes each", param="links") from error
        async with closing(self._peers.read(request.domain, links, request.inputs_min)) as chunks:
            async for chunk in chunks:
                yield chunk
