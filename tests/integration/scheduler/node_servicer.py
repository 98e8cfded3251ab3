"""A node and a discovery that speak real gRPC and behave, without devices, models and processes."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from common.changes import Changes
from common.errors import NotSupported, PlacementMismatch, PunaError, StaleFence
from protos import cluster_pb2, discovery_pb2, discovery_pb2_grpc, host_pb2, host_pb2_grpc
from tests.waiting import next_look

GIB = 1024**3


@dataclass(kw_only=True)
class LiveRunner:
    """One runner of the node."""

    record: cluster_pb2.RunnerRecord
    spec: bytes
    changes: Changes = field(default_factory=Changes)
    idle_since_s: float = field(default_factory=time.monotonic)


class NodeAndDiscovery(host_pb2_grpc.HostServicer, discovery_pb2_grpc.DiscoveryServicer):
    """A host with the contract of host.proto, and the discovery that shows it."""

    def __init__(self) -> None:
        self.runners: dict[str, LiveRunner] = {}
        self.models = [model("m"), model("n"), model("broken", error="cut off at byte 12")]
        self.free_bytes = 64 * GIB
        self.model_bytes = 1 * GIB
        self.high = (0, "")
        self.starts: list[host_pb2.StartRequest] = []
        self.stops: list[host_pb2.StopRequest] = []
        self.excused: list[cluster_pb2.PlacementRef] = []
        self.stale_refusals = 0
        self.measured = 0
        self.refuse_start: PunaError | None = None
        self.may_finish = asyncio.Event()
        self.may_finish.set()
        self.changes = Changes()
        self.changes.notify()
        self.address = ""
        self.present = True
        self._started_at_s = time.monotonic() - 60
        self._loads: set[asyncio.Task[None]] = set()

    # host.proto

    async def Revoke(self, request: discovery_pb2.RevokeRequest, context: Any) -> discovery_pb2.RevokeResponse:
        return discovery_pb2.RevokeResponse()

    async def Measure(self, request: host_pb2.MeasureRequest, context: Any) -> host_pb2.MeasureResponse:
        self.measured += 1
        report = cluster_pb2.MemoryReport(
            origin=cluster_pb2.MEMORY_ORIGIN_MEASURED,
            host=cluster_pb2.DeviceMemory(weights_bytes=self.model_bytes),
        )
        return host_pb2.MeasureResponse(report=report)

    async def Start(self, request: host_pb2.StartRequest, context: Any) -> AsyncIterator[host_pb2.StartEvent]:
        self._accept(request.fence)
        self.starts.append(request)
        if self.refuse_start is not None:
            raise self.refuse_start
        name = request.placement.placement_id
        spec = request.layout.SerializeToString(deterministic=True)
        known = self.runners.get(name)
        if known is None or known.record.placement.generation < request.placement.generation:
            known = LiveRunner(record=_record(request), spec=spec)
            self.runners[name] = known
            self._spawn(self._load(known))
        elif known.spec != spec or known.record.placement.generation > request.placement.generation:
            raise PlacementMismatch("another spec runs under this generation")
        seen = 0
        while True:
            seen = await known.changes.beyond(seen)
            event = host_pb2.StartEvent()
            event.runner.CopyFrom(known.record)
            yield event
            if known.record.status.state in (cluster_pb2.RUNNER_STATE_READY, cluster_pb2.RUNNER_STATE_ERROR):
                return

    async def Stop(self, request: host_pb2.StopRequest, context: Any) -> host_pb2.StopResponse:
        self._accept(request.fence)
        self.stops.append(request)
        self.runners.pop(request.placement.placement_id, None)
        self.changes.notify()
        return host_pb2.StopResponse()

    def _accept(self, fence: host_pb2.Fence) -> None:
        offered = (fence.number, fence.leader_id)
        if fence.number < self.high[0] or (fence.number == self.high[0] and offered != self.high):
            self.stale_refusals += 1
            raise StaleFence(f"fence {fence.number} is refused", high_water=self.high[0])
        self.high = offered

    async def _load(self, runner: LiveRunner) -> None:
        status = runner.record.status
        for fraction in (0.0, 0.5):
            status.state, status.load_fraction = cluster_pb2.RUNNER_STATE_LOADING, fraction
            self._tell(runner)
            await next_look(0.0)
        await self.may_finish.wait()
        status.state, status.load_fraction = cluster_pb2.RUNNER_STATE_READY, 1.0
        status.memory.host.weights_bytes = self.model_bytes
        runner.idle_since_s = time.monotonic()
        self._tell(runner)

    def _tell(self, runner: LiveRunner) -> None:
        runner.changes.notify()
        self.changes.notify()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._loads.add(task)
        task.add_done_callback(self._loads.discard)

    async def Lend(self, request: host_pb2.LendRequest, context: Any) -> host_pb2.LendResponse:
        raise NotSupported("this node lends nothing")

    async def ResetDevice(self, request: host_pb2.ResetDeviceRequest, context: Any) -> host_pb2.ResetDeviceResponse:
        return host_pb2.ResetDeviceResponse(device=cluster_pb2.Device(id=request.device_id))

    async def ExcuseCrash(self, request: host_pb2.ExcuseCrashRequest, context: Any) -> host_pb2.ExcuseCrashResponse:
        self._accept(request.fence)
        self.excused.append(request.placement)
        return host_pb2.ExcuseCrashResponse()

    async def InjectFault(
        self, request: host_pb2.InjectFaultRequest, context: Any
    ) -> AsyncIterator[host_pb2.InjectFaultEvent]:
        yield host_pb2.InjectFaultEvent()

    async def ForgetStates(self, request: host_pb2.ForgetStatesRequest, context: Any) -> host_pb2.ForgetStatesResponse:
        return host_pb2.ForgetStatesResponse()

    async def ReadState(self, request: host_pb2.ReadStateRequest, context: Any) -> AsyncIterator[host_pb2.StateChunk]:
        yield host_pb2.StateChunk()

    # discovery.proto

    async def Register(self, request_iterator: Any, context: Any) -> AsyncIterator[discovery_pb2.RegisterAck]:
        async for _ in request_iterator:  # the only node is this one
            yield discovery_pb2.RegisterAck()

    async def WatchInventory(self, request: Any, context: Any) -> AsyncIterator[discovery_pb2.Inventory]:
        seen = 0
        while True:
            seen = await self.changes.beyond(seen)
            yield self.inventory(seen)

    def inventory(self, version: int) -> discovery_pb2.Inventory:
        uptime_ms = round((time.monotonic() - self._started_at_s) * 1000)
        inventory = discovery_pb2.Inventory(version=version, uptime_ms=uptime_ms)
        if self.present:
            device = cluster_pb2.Device(
                id="cpu",
                name="CPU",
                backend="CPU",
                type=cluster_pb2.DEVICE_TYPE_CPU,
                total_bytes=64 * GIB,
                free_bytes=self.free_bytes,
                free_source="meminfo",
                trust=cluster_pb2.TRUST_MEASURED,
                pool_id="host",
                state=cluster_pb2.DEVICE_STATE_OK,
            )
            for runner in self.runners.values():
                idle_s = time.monotonic() - runner.idle_since_s
                runner.record.status.idle_ms = 0 if runner.record.status.slots_busy else round(idle_s * 1000)
            inventory.nodes.add(
                id="node-a",
                address=self.address,
                engine_build="b1",
                devices=[device],
                models=self.models,
                runners=[runner.record for runner in self.runners.values()],
            )
        return inventory

    async def report_every_second(self) -> None:
        while True:
            await next_look(1.0)
            self.changes.notify()

    def kill_runner(self) -> None:
        """The only runner dies; the host reports it at once."""
        self.runners.popitem()
        self.changes.notify()


def model(name: str, *, error: str = "") -> cluster_pb2.Model:
    described = cluster_pb2.ModelDescription(architecture="llama", context_tokens=8192, layer_count=4)
    return cluster_pb2.Model(
        name=f"{name}:latest",
        digest=f"{name:0>64}",
        size_bytes=GIB,
        description=None if error else described,
        error=error,
    )


def _record(request: host_pb2.StartRequest) -> cluster_pb2.RunnerRecord:
    placement = cluster_pb2.PlacementRef()
    placement.CopyFrom(request.placement)
    placement.incarnation = f"i-{request.placement.generation}"
    return cluster_pb2.RunnerRecord(
        placement=placement,
        model_name=request.model_name,
        model_digest=request.model_digest,
        layout=request.layout,
        address=f"unix:/run/{placement.placement_id}",
        status=cluster_pb2.RunnerStatus(
            state=cluster_pb2.RUNNER_STATE_LAUNCHED, load_bytes_total=GIB, slots_total=request.layout.slots
        ),
    )
