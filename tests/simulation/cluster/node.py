"""Nodes: devices with a limited memory, the runners on them, and the host that obeys schedulers."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field

from common.closing import closing
from common.errors import DeviceMemoryExhausted, ModelUnavailable, StaleFence
from common.fences import fence_max
from common.grpc.watch import watch
from common.spec import codecs
from protos import cluster_pb2, discovery_pb2, host_pb2
from runner.core.host.commands import Running, attaches, check_stop
from runner.core.host.fences import NO_FENCE, Fence, FenceVerdict, judge_fence
from runner.core.host.promises import MemoryNeed, OutstandingLoad, find_shortfall
from runner.host.converters import to_need
from scheduler.converters import MEMORY_REPORT, to_layout
from tests.simulation.cluster.discovery_process import SimDiscovery
from tests.simulation.cluster.network import Network, Process
from tests.simulation.cluster.runner_process import HUNG_AFTER_S, Pace, RunnerProcess
from tests.simulation.cluster.virtual_time import WALL_UNIX_S
from tests.unit.scheduler.builders import counted

GIB = 1024**3
PROCESS_BYTES = 256 * 1024**2  # of a runner, beside its model
CACHE_BYTES_OF_SLOT = GIB // 16
ERROR_KEPT_S = 30.0
REPORT_S = 1.0
KILLED_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class SimModel:
    """A model file that every node has."""

    name: str
    size_gib: float

    @property
    def digest(self) -> str:
        """Return its digest."""
        return f"digest-{self.name.partition(':')[0]}"

    def proto(self) -> cluster_pb2.Model:
        """Return it as hosts report it."""
        description = cluster_pb2.ModelDescription(
            architecture="llama", layer_count=31, context_tokens=2048, capabilities=["completion"]
        )
        size_bytes = int(self.size_gib * GIB)
        return cluster_pb2.Model(
            name=self.name, digest=self.digest, size_bytes=size_bytes, modified_at_unix_s=1, description=description
        )

    def count(self, layout: cluster_pb2.Layout) -> cluster_pb2.MemoryReport:
        """Return the count of an engine."""
        cache = CACHE_BYTES_OF_SLOT * layout.slots
        return MEMORY_REPORT.to_proto(counted(to_layout(layout), weights=int(self.size_gib * GIB), cache=cache))


@dataclass(slots=True, kw_only=True)
class Node:
    """A machine: what outlives its host process."""

    id: str
    gpu_gib: float
    ram_gib: float
    network: Network
    models: tuple[SimModel, ...]
    pace: Pace
    poison_seed: int
    fence: Fence = NO_FENCE  # on disk
    runners: dict[str, RunnerProcess] = field(default_factory=dict)
    ended_at_s: dict[str, float] = field(default_factory=dict)
    lives: int = 0  # of runners, for their incarnations
    on_obey: Callable[[str, int], None]
    on_stop: Callable[[RunnerProcess], None]
    on_start: Callable[[RunnerProcess], None]
    on_poisoned: Callable[[RunnerProcess, list[int]], None]

    def totals(self) -> dict[str, int]:
        """Return the bytes of every device."""
        return {"gpu": int(self.gpu_gib * GIB), "cpu": int(self.ram_gib * GIB)}

    def live(self) -> list[RunnerProcess]:
        """List the runners that live."""
        return [one for one in self.runners.values() if one.alive]

    def held(self) -> dict[str, int]:
        """Return the bytes that live processes hold, or will hold once they are loaded."""
        held = dict.fromkeys(self.totals(), 0)
        for one in self.live():
            for device_id, count in to_need(one.record.status.memory).total_bytes().items():
                held[device_id] += count + (PROCESS_BYTES if count else 0)
        return held

    def free(self) -> dict[str, int]:
        """Return the bytes that a driver reports as free: what loads have not taken yet is."""
        free = self.totals()
        for one in self.live():
            fraction = one.board.snapshot().load_fraction
            for device_id, count in to_need(one.record.status.memory).total_bytes().items():
                free[device_id] -= int(count * fraction) + (PROCESS_BYTES if count else 0)
        return {device_id: max(0, count) for device_id, count in free.items()}


class SimHost(Process):
    """The host process of a node."""

    def __init__(self, node: Node, life: int, find_discovery: Callable[[], SimDiscovery | None]) -> None:
        super().__init__(node.network, f"host {node.id}", node.id)
        self.node = node
        self.life = life
        self._find_discovery = find_discovery
        self._commands = asyncio.Lock()
        self._changed = asyncio.Event()
        self.spawn(self._report(), "reports")
        self.spawn(self._watch(), "watches")

    def report(self) -> discovery_pb2.HostReport:
        """Return the node as this host reports it now."""
        node, free = self.node, self.node.free()
        devices = []
        for device_id, total in node.totals().items():
            is_gpu = device_id == "gpu"
            devices.append(
                cluster_pb2.Device(
                    id=device_id, name=device_id.upper(), backend="CUDA" if is_gpu else "CPU", description=device_id,
                    type=cluster_pb2.DEVICE_TYPE_GPU if is_gpu else cluster_pb2.DEVICE_TYPE_CPU, total_bytes=total,
                    free_bytes=free[device_id], free_source="nvml", trust=cluster_pb2.TRUST_MEASURED,
                    pool_id="gpu" if is_gpu else "host", state=cluster_pb2.DEVICE_STATE_OK, id_stable=True,
                )
            )  # fmt: skip
        runners = [node.runners[name].report() for name in sorted(node.runners)]
        return discovery_pb2.HostReport(
            node_id=node.id,
            incarnation=f"{node.id}.{self.life}",
            started_at_unix_ms=round(WALL_UNIX_S * 1000) + self.life,
            facts=discovery_pb2.HostFacts(address=node.id, engine_build="b1"),
            devices=discovery_pb2.DeviceList(devices=devices),
            models=discovery_pb2.ModelList(models=[model.proto() for model in node.models]),
            runners=discovery_pb2.RunnerList(runners=runners),
        )

    async def measure(self, model_digest: str, layout: cluster_pb2.Layout) -> cluster_pb2.MemoryReport:
        """Count bytes."""
        await asyncio.sleep(0.05)
        return next(model for model in self.node.models if model.digest == model_digest).count(layout)

    async def start(self, request: host_pb2.StartRequest) -> AsyncIterator[cluster_pb2.RunnerRecord]:
        """Obey a Start, and report until the load is over."""
        async with self._commands:
            self._accept(request.fence)
            placement = request.placement
            known = self.node.runners.get(placement.placement_id)
            known = known if known is not None and (known.alive or placement.generation <= _generation(known)) else None
            spec = _spec(request.model_digest, request.layout)
            running = None if known is None else _running(known)
            if attaches(running, generation=placement.generation, spec=spec):
                assert known is not None
                runner = known
            else:
                runner = await self._launch(request, known)
        while True:
            record = runner.report()
            yield record
            if record.status.state not in (cluster_pb2.RUNNER_STATE_LOADING, cluster_pb2.RUNNER_STATE_LAUNCHED):
                return
            await asyncio.sleep(0.1)

    async def stop(self, request: host_pb2.StopRequest) -> None:
        """Obey a Stop; returns once the process is gone."""
        async with self._commands:
            self._accept(request.fence)
            runner = self.node.runners.get(request.placement.placement_id)
            if runner is None:
                return
            check_stop(_running(runner), generation=request.placement.generation)
            self.node.on_stop(runner)
        if runner.alive:
            runner.board.drain()
            self._changed.set()
            async with asyncio.timeout(request.drain_ms / 1000 + 0.01) as limit:
                try:
                    await runner.streams.idle.wait()
                except asyncio.CancelledError:
                    if not limit.expired():
                        raise
                    limit.reschedule(None)
            await self._end(runner)
        if self.node.runners.get(request.placement.placement_id) is runner:
            del self.node.runners[request.placement.placement_id]
        self._changed.set()

    async def excuse_crash(self, request: host_pb2.ExcuseCrashRequest) -> None:
        """Note nothing: devices are not blamed here."""
        self._accept(request.fence)

    def _accept(self, fence: host_pb2.Fence) -> None:
        wanted = Fence(number=fence.number, leader_id=fence.leader_id)
        number_max = fence_max(self.clock.wall_unix_s())
        if judge_fence(wanted, highest=self.node.fence, number_max=number_max) is not FenceVerdict.ACCEPTED:
            raise StaleFence("the fence is stale", high_water=self.node.fence.number)
        self.node.fence = wanted
        self.node.on_obey(self.node.id, fence.number)

    async def _launch(self, request: host_pb2.StartRequest, predecessor: RunnerProcess | None) -> RunnerProcess:
        need = to_need(request.planned)
        if predecessor is not None:
            need = need.less(to_need(predecessor.record.status.memory))
        loading = [
            OutstandingLoad(need=to_need(one.record.status.memory), fraction=one.board.snapshot().load_fraction)
            for one in self.node.live()
            if one is not predecessor and one.board.snapshot().load_fraction < 1
        ]
        process = MemoryNeed(later_bytes={name: PROCESS_BYTES for name, count in need.total_bytes().items() if count})
        loading.append(OutstandingLoad(need=process, fraction=0.0))
        if (short := find_shortfall(need, free_bytes=self.node.free(), loading=loading)) is not None:
            raise DeviceMemoryExhausted(f"device {short.device_id} has {short.available_bytes} bytes free")
        if predecessor is not None:
            await self._end(predecessor)
        self.node.lives += 1
        placement = request.placement
        record = cluster_pb2.RunnerRecord(
            placement=cluster_pb2.PlacementRef(
                placement_id=placement.placement_id, generation=placement.generation,
                incarnation=f"{self.node.id}-{self.node.lives}",
            ),
            model_name=request.model_name, model_digest=request.model_digest, layout=request.layout,
            address=f"{self.node.id}/{placement.placement_id}/{self.node.lives}",
            asked=request.asked if request.HasField("asked") else None,
        )  # fmt: skip
        model = next(one for one in self.node.models if one.digest == request.model_digest)
        record.status.memory.CopyFrom(model.count(request.layout))
        record.status.memory.origin = cluster_pb2.MEMORY_ORIGIN_ALLOCATED
        record.status.load_bytes_total = int(model.size_gib * GIB)
        runner = RunnerProcess(
            self.network,
            self.node.id,
            record,
            self.node.pace,
            poison_seed=self.node.poison_seed,
            on_poisoned=self.node.on_poisoned,
        )
        self.node.runners[placement.placement_id] = runner
        self.node.on_start(runner)
        self._changed.set()
        return runner

    async def _end(self, runner: RunnerProcess) -> None:
        runner.kill()
        await asyncio.sleep(KILLED_S)

    async def _watch(self) -> None:
        """Look at the runners: those that hang are killed, those that ended are forgotten after a while."""
        while True:
            await asyncio.sleep(0.1)
            await self.awake()
            now_s = self.network.loop.time()
            for name, runner in list(self.node.runners.items()):
                if runner.alive and runner.silent_s > HUNG_AFTER_S:
                    runner.kill()
                if runner.alive:
                    continue
                key = runner.record.placement.incarnation
                if key not in self.node.ended_at_s:
                    self.node.ended_at_s[key] = now_s
                    self._changed.set()
                elif now_s > self.node.ended_at_s[key] + ERROR_KEPT_S:
                    del self.node.runners[name]

    async def _report(self) -> None:
        """Stay registered at discovery."""
        streams = watch(self._registration, on_lost=lambda _error, _failures: None)
        async with closing(streams) as acks:
            async for _ in acks:
                pass

    async def _registration(self) -> AsyncGenerator[discovery_pb2.RegisterAck, None]:
        discovery = self._find_discovery()
        if discovery is None:
            await asyncio.sleep(KILLED_S)
            raise ModelUnavailable("service unreachable: Connection refused")
        reports: asyncio.Queue[discovery_pb2.HostReport] = asyncio.Queue()
        sender = self.spawn(self._send(discovery, reports), "sends")
        try:
            async for ack in self.network.stream(self, discovery, lambda: discovery.register(reports)):
                yield ack
        finally:
            sender.cancel()

    async def _send(self, discovery: SimDiscovery, reports: "asyncio.Queue[discovery_pb2.HostReport]") -> None:
        """Report every second, and soon after changes."""
        while True:
            self._changed.clear()
            await self.awake()
            report = self.report()
            await self.network.carry(self, discovery)
            reports.put_nowait(report)
            await asyncio.sleep(0.1)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_S - 0.1):
                    await self._changed.wait()


def _generation(runner: RunnerProcess) -> int:
    return runner.record.placement.generation


def _spec(model_digest: str, layout: cluster_pb2.Layout) -> bytes:
    return f"{model_digest} {codecs.LAYOUT.from_proto(layout)!r}".encode()


def _running(runner: RunnerProcess) -> Running:
    record = runner.record
    return Running(generation=_generation(runner), spec=_spec(record.model_digest, record.layout))


class SimHostClient:
    """As `runner.host.client.HostClient`, over the simulated network."""

    def __init__(self, caller: Process, find: Callable[[str], SimHost | None]) -> None:
        self._caller = caller
        self._find = find

    def _host(self, address: str) -> SimHost:
        host = self._find(address)
        if host is None:
            raise ModelUnavailable("service unreachable: Connection refused")
        return host

    async def measure(
        self, address: str, *, model_digest: str, layout: cluster_pb2.Layout, **_: object
    ) -> cluster_pb2.MemoryReport:
        """Count on a host."""
        await self._caller.awake()
        host = self._host(address)
        return await self._caller.network.ask(
            self._caller, host, lambda: host.measure(model_digest, layout), timeout_s=45.0
        )

    async def start(
        self, address: str, request: host_pb2.StartRequest, *, node_id: str = ""
    ) -> AsyncIterator[cluster_pb2.RunnerRecord]:
        """Start on a host."""
        await self._caller.awake()
        host = self._host(address)
        async for record in self._caller.network.stream(self._caller, host, lambda: host.start(request)):
            yield record

    async def stop(self, address: str, request: host_pb2.StopRequest, *, node_id: str = "") -> None:
        """Stop on a host."""
        await self._caller.awake()
        host = self._host(address)
        await self._caller.network.ask(
            self._caller, host, lambda: host.stop(request), timeout_s=request.drain_ms / 1000 + 20.0
        )

    async def excuse_crash(self, address: str, request: host_pb2.ExcuseCrashRequest, *, node_id: str = "") -> None:
        """Excuse a crash at a host."""
        await self._caller.awake()
        host = self._host(address)
        await self._caller.network.ask(self._caller, host, lambda: host.excuse_crash(request), timeout_s=5.0)
