"""Bytes of a process on this node's devices beside its model: learned from loads, kept over restarts, and shown."""

from collections.abc import Callable, Collection, Iterable

from common.telemetry.logs import get_logger
from protos import cluster_pb2
from runner.core.devices.process_memory import Arrivals, CardUse, Samples, learn, learned_bytes, restored
from runner.host.devices.decode_speeds import LOADING, SERVING
from runner.host.devices.device_notes import DeviceNotes

log = get_logger()

FIGURES_INTERVAL_S = 0.5
# Figures of a driver over all processes; others are predictions, or RAM.
SOURCES = ("nvml", "sysfs")


class ProcessMemory:
    """Owned by the host's event loop. `lent`: ids of devices that other nodes' runners use."""

    def __init__(self, notes: DeviceNotes, *, lent: Callable[[], Collection[str]] = frozenset) -> None:
        self._notes = notes
        self._lent = lent
        self._arrivals: dict[str, Arrivals] = {}  # by device

    def look(
        self, records: Iterable[cluster_pb2.RunnerRecord], devices: Iterable[cluster_pb2.Device], engine_build: str
    ) -> None:
        """Compare what a driver says of its card with what the replicas on it report."""
        records, lent = list(records), set(self._lent())
        for device in devices:
            if device.free_source not in SOURCES or device.trust != cluster_pb2.TRUST_MEASURED or not engine_build:
                continue
            here = {name: record for record in records if (name := _name(record)) and _is_on(record, device.id)}
            use = CardUse(
                free_bytes=device.free_bytes,
                replicas={name: _model_bytes(record, device.id) for name, record in here.items()},
            )
            listed = {holder.placement_id: holder.held_bytes for holder in device.holders if holder.listed}
            for name, model_bytes in use.replicas.items():
                if model_bytes is not None and (held := listed.get(here[name].placement.placement_id)):
                    self._learn(device, engine_build, name, held - model_bytes)
            arrived = self._arrivals.setdefault(device.id, Arrivals()).see(use)
            if arrived is not None and device.id not in lent and not any(listed.values()):
                self._learn(device, engine_build, *arrived)

    def mark(self, devices: list[cluster_pb2.Device], engine_build: str) -> list[cluster_pb2.Device]:
        """Return the same devices with what was learned; what the operator has set stays."""
        for device in devices:
            known = learned_bytes(self._samples(device, engine_build))
            if known is not None and not device.HasField("process_bytes"):
                device.process_bytes, device.process_learned = known, True
        return devices

    def _learn(self, device: cluster_pb2.Device, engine_build: str, replica: str, process_bytes: int) -> None:
        samples = self._samples(device, engine_build)
        learned = learn(samples, replica, process_bytes)
        if learned == samples:
            return
        note = self._notes.of(device.id)
        note.process_key, note.process_samples = _key(device, engine_build), dict(learned)
        self._notes.save()
        if learned_bytes(learned) != learned_bytes(samples):
            log.info("device.process_bytes", device=device.id, bytes=learned_bytes(learned))

    def _samples(self, device: cluster_pb2.Device, engine_build: str) -> Samples:
        if not self._notes.knows(device.id):
            return {}
        note = self._notes.of(device.id)
        return restored(note.process_samples) if note.process_key == _key(device, engine_build) else {}


def _key(device: cluster_pb2.Device, engine_build: str) -> str:
    return ", ".join(part for part in (engine_build, device.driver, device.description) if part)


def _name(record: cluster_pb2.RunnerRecord) -> str:
    """Return the process of a replica that lives; empty for others."""
    return record.placement.incarnation if record.status.state in (*LOADING, *SERVING) else ""


def _is_on(record: cluster_pb2.RunnerRecord, device_id: str) -> bool:
    return any(device.device_id == device_id and not device.node_id for device in record.layout.devices)


def _model_bytes(record: cluster_pb2.RunnerRecord, device_id: str) -> int | None:
    """Return the bytes that a loaded replica reports on a device; None: not loaded, or it reports none."""
    if record.status.state not in SERVING or record.status.memory.origin != cluster_pb2.MEMORY_ORIGIN_ALLOCATED:
        return None
    for memory in record.status.memory.devices:
        if memory.device_id == device_id:
            return memory.weights_bytes + memory.cache_bytes + memory.graph_bytes + memory.projector_bytes
    return None
