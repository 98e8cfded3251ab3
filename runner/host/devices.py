"""The node's devices: found by a probe in a process of its own, their free memory read again every second."""

import asyncio
from collections.abc import Callable, Mapping

from google.protobuf import json_format

from common.changes import Changes
from common.clock import MS_PER_S, Clock
from common.logs import get_logger
from protos import cluster_pb2, probe_pb2
from runner.core.devices import CPU_ID, HOST_POOL
from runner.core.gpu_memory import GpuMemory, find_by_address
from runner.host import metrics
from runner.host.children import run_child
from runner.host.gpu_watch import watch_gpus
from runner.ram import read_host_memory

log = get_logger()

PROBE_TIMEOUT_S = 30.0
FREE_INTERVAL_S = 1.0
# After a failed probe: drivers come up late, libraries are repaired.
REPROBE_INTERVAL_S = 60.0
STALE_AFTER_S = 2.0
_LIVE_SOURCES = ("nvml", "sysfs")


class Devices:
    """Owned by its `watch` task; the host process itself never loads the engine."""

    def __init__(self, clock: Clock, *, promised_bytes: Callable[[], Mapping[str, int]] = dict) -> None:
        """`promised_bytes` tells what this node's runners hold or will hold, by device id."""
        self.changes = Changes()
        self.engine_build = ""
        self._clock = clock
        self._promised_bytes = promised_bytes
        self._devices: list[cluster_pb2.Device] = []
        self._read_at_s: dict[str, float] = {}

    def devices(self) -> list[cluster_pb2.Device]:
        """Every device with the age of its free figure."""
        now_s = self._clock.now_s()
        reported = []
        for device in self._devices:
            copy = cluster_pb2.Device()
            copy.CopyFrom(device)
            age_s = now_s - self._read_at_s[device.id]
            copy.free_age_ms = max(0, round(age_s * MS_PER_S))
            if age_s > STALE_AFTER_S:
                copy.trust = cluster_pb2.TRUST_STALE
            reported.append(copy)
        return reported

    def free_bytes(self) -> dict[str, int]:
        """Free memory by device id, of RAM as of this instant."""
        self._read_ram()
        return {device.id: device.free_bytes for device in self._devices if _usable(device)}

    async def probe(self) -> None:
        """Ask a short-lived runner what it can compute on. A failure leaves the CPU, excluded, with the reason."""
        result = await run_child("probe", [], timeout_s=PROBE_TIMEOUT_S)
        try:
            if result.exit_code != 0:
                raise ValueError(result.failure())
            report = json_format.Parse(result.output, probe_pb2.ProbeReport())
        except (ValueError, json_format.ParseError) as error:
            log.error("devices.probe_failed", text=str(error))
            self._take([_excluded_cpu(f"the probe failed: {error}")], "")
            return
        if result.last_errors:
            log.warning("devices.probe_warning", text=result.last_errors)
        self._take(list(report.devices), report.engine_build)
        log.info(
            "devices.found",
            build=report.engine_build,
            backends=list(report.backends),
            devices=[f"{device.name} {device.id}" for device in report.devices],
        )

    async def watch(self) -> None:
        """Keep the figures fresh; runs for ever."""
        drivers = asyncio.create_task(self._watch_drivers())
        try:
            await self._watch()
        finally:
            drivers.cancel()

    async def _watch_drivers(self) -> None:
        if any(device.pci_id and device.pool_id != HOST_POOL for device in self._devices):
            await watch_gpus(self.take_cards)

    async def _watch(self) -> None:
        next_probe_s = self._clock.now_s() + REPROBE_INTERVAL_S
        while True:
            await asyncio.sleep(FREE_INTERVAL_S)
            if not self.engine_build and self._clock.now_s() >= next_probe_s:
                await self.probe()
                next_probe_s = self._clock.now_s() + REPROBE_INTERVAL_S
            self._read_ram()
            self._predict()
            self.changes.notify()

    def take_cards(self, cards: list[GpuMemory]) -> None:
        """Use what the drivers say, for the devices whose cards they know."""
        for device in self._devices:
            card = find_by_address(cards, device.pci_id)
            if card is not None and device.pool_id != HOST_POOL:
                device.total_bytes, device.free_bytes = card.total_bytes, card.free_bytes
                device.free_source, device.trust = card.source, cluster_pb2.TRUST_MEASURED
                self._read_at_s[device.id] = self._clock.now_s()
                metrics.DEVICE_FREE_BYTES.labels(device=device.id).set(device.free_bytes)

    def _predict(self) -> None:
        """Devices whose memory nobody can read while they are in use: what they have, less what was promised on them.

        A card whose driver has fallen silent is not among them: its last figure stays, and grows stale.
        """
        promised = self._promised_bytes()
        for device in self._devices:
            if device.pool_id == HOST_POOL or device.free_source in _LIVE_SOURCES:
                continue
            device.free_bytes = max(0, device.total_bytes - promised.get(device.id, 0))
            device.trust, device.free_source = cluster_pb2.TRUST_PREDICTED, "promised"
            self._read_at_s[device.id] = self._clock.now_s()

    def _take(self, devices: list[cluster_pb2.Device], engine_build: str) -> None:
        now_s = self._clock.now_s()
        self._devices, self.engine_build = devices, engine_build
        self._read_at_s = {device.id: now_s for device in devices}
        self._read_ram()
        self.changes.notify()

    def _read_ram(self) -> None:
        """RAM is one pool: every device that draws from it has the same free bytes."""
        ram = read_host_memory()
        for device in self._devices:
            if device.pool_id == HOST_POOL:
                device.total_bytes = ram.total_bytes
                device.free_bytes = ram.free_bytes
                device.free_source = ram.source
                device.trust = cluster_pb2.TRUST_MEASURED
                self._read_at_s[device.id] = self._clock.now_s()
            metrics.DEVICE_FREE_BYTES.labels(device=device.id).set(device.free_bytes)


def _usable(device: cluster_pb2.Device) -> bool:
    return device.state == cluster_pb2.DEVICE_STATE_OK


def _excluded_cpu(reason: str) -> cluster_pb2.Device:
    """What is known without the engine: there is RAM, and nothing to compute with."""
    return cluster_pb2.Device(
        id=CPU_ID,
        name="CPU",
        backend="CPU",
        type=cluster_pb2.DEVICE_TYPE_CPU,
        pool_id=HOST_POOL,
        id_stable=True,
        state=cluster_pb2.DEVICE_STATE_EXCLUDED,
        state_reason=reason,
    )
