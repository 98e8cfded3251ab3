"""Client of hosts, for schedulers and for faults: one channel per address, domain errors instead of gRPC ones."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from google.protobuf.message import Message

from common.errors import ModelUnavailable
from common.grpc.client import ChannelBook, ask, call_metadata
from common.grpc.errors import received
from common.grpc.ranges import find_out_of_range
from protos import cluster_pb2, host_pb2, host_pb2_grpc

# A host answers a measurement within its own limit of 20 s, or after one that is already running.
MEASURE_TIMEOUT_S = 45.0
# The lending process starts an interpreter and the engine's backends, on cold disks perhaps.
LEND_TIMEOUT_S = 35.0
EXCUSE_TIMEOUT_S = 5.0
FORGET_TIMEOUT_S = 30.0  # files are removed one by one
# Beyond the drain: SIGTERM, grace and SIGKILL on the host, and the way there and back.
STOP_EXTRA_S = 20.0
# A test has 30 s, and may wait for the one before it.
RESET_TIMEOUT_S = 65.0


class HostClient(ChannelBook):
    """Commands to hosts by address. Channels are opened when first used and closed by `close` or `forget`.

    With `node_id` the certificate of the host must be that of this node.
    """

    async def measure(
        self,
        address: str,
        *,
        model_digest: str,
        layout: cluster_pb2.Layout,
        peers: Sequence[host_pb2.Peer] = (),
        origin: host_pb2.ModelOrigin | None = None,
        draft_origin: host_pb2.ModelOrigin | None = None,
        node_id: str = "",
    ) -> cluster_pb2.MemoryReport:
        """Count the memory that a model with a layout takes on that node and on those that lend to it.

        Raises:
            ModelNotFound: the node has no such file; measure on another one.
            BadModelFile: the engine refuses the file; no node will take it.
            ModelUnavailable, RequestTimeout: the host cannot be reached or does not answer; try another one.
        """
        request = host_pb2.MeasureRequest(
            model_digest=model_digest, layout=layout, peers=peers, origin=origin, draft_origin=draft_origin
        )
        response = await ask(self._stub(address, node_id).Measure, request, timeout_s=MEASURE_TIMEOUT_S)
        _check_numbers(address, response)
        return response.report

    async def start(
        self, address: str, request: host_pb2.StartRequest, *, node_id: str = ""
    ) -> AsyncIterator[cluster_pb2.RunnerRecord]:
        """Start a runner or attach to the one that runs; yields its record until READY, NO_SLOTS or ERROR.

        Leaving the iteration never stops the load.

        Raises:
            StaleFence: another scheduler leads; stop acting.
            DeviceMemoryExhausted: less free memory than planned; plan again.
            PlacementMismatch, ModelNotFound, BadModelFile, InvalidRequest: as their docstrings say.
        """
        async with aclosing(received(self._stub(address, node_id).Start(request, metadata=call_metadata()))) as events:
            async for event in events:
                _check_numbers(address, event)
                yield event.runner

    async def stop(self, address: str, request: host_pb2.StopRequest, *, node_id: str = "") -> None:
        """Drain and stop a runner; returns when its process is gone.

        Raises:
            StaleFence: another scheduler leads; stop acting.
            PlacementMismatch: a newer generation runs; look again.
        """
        await ask(self._stub(address, node_id).Stop, request, timeout_s=request.drain_ms / 1000 + STOP_EXTRA_S)

    async def lend(self, address: str, request: host_pb2.LendRequest, *, node_id: str = "") -> host_pb2.LendResponse:
        """Have a host lend devices to a placement of another node; returns once they can be reached.

        Raises:
            StaleFence: another scheduler leads; stop acting.
            DeviceMemoryExhausted: less free memory than planned, or the device serves another placement; plan again.
            NotSupported: the node lends nothing.
            PlacementMismatch, InvalidRequest: as their docstrings say.
            ModelUnavailable, RequestTimeout: the host cannot be reached, or could not start what lends; try without it.
        """
        return await ask(self._stub(address, node_id).Lend, request, timeout_s=LEND_TIMEOUT_S)

    async def excuse_crash(self, address: str, request: host_pb2.ExcuseCrashRequest, *, node_id: str = "") -> None:
        """Tell a host that a request ended a replica, and no device.

        Raises:
            StaleFence: another scheduler leads; stop acting.
        """
        await ask(self._stub(address, node_id).ExcuseCrash, request, timeout_s=EXCUSE_TIMEOUT_S)

    async def reset_device(
        self, address: str, request: host_pb2.ResetDeviceRequest, *, node_id: str = ""
    ) -> cluster_pb2.Device:
        """Have an excluded device tested again; the device as it is then.

        Raises:
            StaleFence: another scheduler leads; stop acting.
            DeviceNotFound: the node has no such device.
        """
        return (await ask(self._stub(address, node_id).ResetDevice, request, timeout_s=RESET_TIMEOUT_S)).device

    def inject_fault(
        self, address: str, request: host_pb2.InjectFaultRequest, *, node_id: str = ""
    ) -> AsyncGenerator[host_pb2.InjectFaultEvent, None]:
        """Make a fault on the node; an event once it is proven. It ends with the iteration, at the latest on its time.

        Raises:
            PermissionDenied: the node is marked as production.
            InvalidRequest, DeviceNotFound, PlacementMismatch: there is no such fault, target or duration.
            NotSupported, ModelUnavailable: the node cannot have it; it did not happen, or the node cannot be reached.
        """
        return received(self._stub(address, node_id).InjectFault(request, metadata=call_metadata()))

    async def forget_states(self, address: str, cache_salt: str, *, node_id: str = "") -> host_pb2.ForgetStatesResponse:
        """Drop the saved states of a tenant on the node.

        Raises:
            DiskFull: the node could not note it, and dropped nothing.
            ModelUnavailable, RequestTimeout: the host cannot be reached; try again.
        """
        request = host_pb2.ForgetStatesRequest(cache_salt=cache_salt)
        response = await ask(self._stub(address, node_id).ForgetStates, request, timeout_s=FORGET_TIMEOUT_S)
        _check_numbers(address, response)
        return response

    def read_state(
        self, address: str, request: host_pb2.ReadStateRequest, *, node_id: str
    ) -> AsyncGenerator[host_pb2.StateChunk, None]:
        """Read a saved state from another node; nothing if it has none.

        Raises:
            QueueFull: too many are being read there.
            ModelUnavailable: the host cannot be reached, or ended.
        """
        return received(self._stub(address, node_id).ReadState(request, metadata=call_metadata()))

    def _stub(self, address: str, node_id: str) -> "host_pb2_grpc.HostAsyncStub":
        return host_pb2_grpc.HostStub(self.channel(address, f"node/{node_id}" if node_id else ""))


def _check_numbers(address: str, answer: Message) -> None:
    """Check the numbers that a host answers.

    Raises:
        ModelUnavailable: one is out of range; the host is broken, or not what it claims to be.
    """
    if (found := find_out_of_range(answer)) is not None:
        raise ModelUnavailable(f"the host at {address} answered nonsense: {found}; restart or remove this node")
