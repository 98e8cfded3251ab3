"""Cost of an idle control plane: real processes of discovery and scheduler, a real Redis, and hosts on real streams.

The hosts are played by this process, which is not counted: each registers over gRPC, and reports its devices and its
models once a second as a host does, with figures that age and move a little. Counted is the processor time of
discovery and scheduler, as the kernel has it.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.engine.processes import process_cpu_s
from bench.machine import ROOT
from cli.cluster.plan import embedded_redis_server
from common.grpc.client import open_channel
from discovery.client import watch_inventory
from protos import cluster_pb2, discovery_pb2, discovery_pb2_grpc

GIB = 1024**3
MIB = 1024**2
DEVICES = 8
MODELS = 12
LAYERS = 32
REPORT_S = 1.0
SETTLE_S = 5.0
READY_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleCost:
    """Parts of one core."""

    discovery: float
    scheduler: float
    nodes: int
    seconds: float
    reports_per_s: float  # that changed what watchers receive

    @property
    def total(self) -> float:
        """Of both."""
        return self.discovery + self.scheduler


def measure_idle(*, nodes: int, seconds: float) -> IdleCost:
    """Start everything, let it settle, count, and stop it."""
    with tempfile.TemporaryDirectory(prefix="puna-idle-") as name:
        home = Path(name)
        redis = (str(embedded_redis_server()), "--port", "0", "--unixsocket", f"{home}/redis", "--save", "")
        with (
            _process(redis, home),
            _process((sys.executable, "-m", "discovery"), home) as discovery,
            _process((sys.executable, "-m", "scheduler"), home) as scheduler,
        ):
            return asyncio.run(_count(f"unix:{home}/discovery", discovery, scheduler, nodes=nodes, seconds=seconds))


@contextmanager
def _process(command: tuple[str, ...], home: Path) -> Iterator[int]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PUNA_")}
    environment |= {
        "PUNA_DISCOVERY_LISTEN": f"unix:{home}/discovery",
        "PUNA_DISCOVERY_ADDRESS": f"unix:{home}/discovery",
        "PUNA_SCHEDULER_LISTEN": f"unix:{home}/scheduler",
        "PUNA_REDIS_URL": f"unix://{home}/redis",
    }
    log = (home / f"{len(list(home.glob('*.log')))}.log").open("wb")
    with log, subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log) as process:
        try:
            yield process.pid
        finally:
            process.terminate()


async def _count(address: str, discovery: int, scheduler: int, *, nodes: int, seconds: float) -> IdleCost:
    async with open_channel(address) as channel:
        stub = discovery_pb2_grpc.DiscoveryStub(channel)
        hosts = [asyncio.create_task(_play_host(stub, number)) for number in range(nodes)]
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                async for inventory in watch_inventory(address):
                    if len(inventory.nodes) == nodes:
                        break
            await asyncio.sleep(SETTLE_S)
            before = await _version(stub), process_cpu_s(discovery), process_cpu_s(scheduler)
            await asyncio.sleep(seconds)
            after = await _version(stub), process_cpu_s(discovery), process_cpu_s(scheduler)
        finally:
            for host in hosts:
                host.cancel()
            await asyncio.gather(*hosts, return_exceptions=True)
    reports, of_discovery, of_scheduler = (late - early for early, late in zip(before, after, strict=True))
    return IdleCost(
        discovery=of_discovery / seconds,
        scheduler=of_scheduler / seconds,
        nodes=nodes,
        seconds=seconds,
        reports_per_s=reports / seconds,
    )


async def _version(stub: discovery_pb2_grpc.DiscoveryAsyncStub) -> int:
    async for inventory in stub.WatchInventory(discovery_pb2.WatchInventoryRequest()):
        return inventory.version
    raise RuntimeError("discovery ended the stream")


async def _play_host(stub: discovery_pb2_grpc.DiscoveryAsyncStub, number: int) -> None:
    async for _ in stub.Register(_reports(number), wait_for_ready=True):
        pass


async def _reports(number: int) -> AsyncIterator[discovery_pb2.HostReport]:
    chance = random.Random(number)
    await asyncio.sleep(chance.uniform(0, REPORT_S))
    first = _report(number, chance)
    first.facts.CopyFrom(discovery_pb2.HostFacts(address=f"127.0.0.1:{10_000 + number}", engine_build="b1"))
    first.models.CopyFrom(discovery_pb2.ModelList(models=[_model(one) for one in range(MODELS)]))
    first.runners.SetInParent()
    yield first
    while True:
        await asyncio.sleep(REPORT_S)
        yield _report(number, chance)


def _report(number: int, chance: random.Random) -> discovery_pb2.HostReport:
    return discovery_pb2.HostReport(
        node_id=f"node-{number:03}", incarnation=f"idle-{number}", started_at_unix_ms=1, devices=_devices(chance)
    )


def _devices(chance: random.Random) -> discovery_pb2.DeviceList:
    gpus = [_device(f"GPU-{index}", cluster_pb2.DEVICE_TYPE_GPU, 24, chance) for index in range(DEVICES)]
    return discovery_pb2.DeviceList(devices=[*gpus, _device("CPU", cluster_pb2.DEVICE_TYPE_CPU, 128, chance)])


def _device(
    name: str, kind: cluster_pb2.DeviceType.ValueType, size_gib: int, chance: random.Random
) -> cluster_pb2.Device:
    return cluster_pb2.Device(
        id=name,
        name=name,
        backend="CPU" if name == "CPU" else "CUDA",
        type=kind,
        total_bytes=size_gib * GIB,
        free_bytes=(size_gib - 1) * GIB + chance.randrange(4 * MIB),
        free_source="nvml",
        free_age_ms=chance.randrange(250),
        trust=cluster_pb2.TRUST_MEASURED,
        pool_id=name,
        state=cluster_pb2.DEVICE_STATE_OK,
        id_stable=True,
    )


def _model(number: int) -> cluster_pb2.Model:
    memory = cluster_pb2.ModelMemory(
        head_count=32,
        layer_weights_bytes=[100 * MIB] * LAYERS,
        layer_key_width=[1024] * (LAYERS - 1),
        layer_value_width=[1024] * (LAYERS - 1),
    )
    description = cluster_pb2.ModelDescription(
        architecture="llama", context_tokens=8192, layer_count=LAYERS - 1, chat_template="x" * 4000, memory=memory
    )
    return cluster_pb2.Model(
        name=f"m{number}:latest", digest=f"{number:064x}", size_bytes=4 * GIB, description=description
    )
