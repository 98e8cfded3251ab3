"""Speed of this node's devices from their runners' decode steps: learned, kept over restarts, and shown.

Kept beside the copy that a device's test timed, and like it for one engine build and driver.
"""

from collections.abc import Callable, Collection, Iterable

from common.clock import Clock
from common.telemetry.logs import get_logger
from protos import cluster_pb2
from runner.core.devices.decode_speeds import Company, DecodeSpeed, ReadDevice, learn, restored, telling
from runner.core.devices.devices import CPU_ID
from runner.host.devices.device_notes import DeviceNotes

log = get_logger()

WINDOWS_INTERVAL_S = 0.2
HOUR_S = 3600
LOADING = (cluster_pb2.RUNNER_STATE_LAUNCHED, cluster_pb2.RUNNER_STATE_LOADING)
SERVING = (
    cluster_pb2.RUNNER_STATE_READY,
    cluster_pb2.RUNNER_STATE_NO_SLOTS,
    cluster_pb2.RUNNER_STATE_DRAINING,
)


class DecodeSpeeds:
    """Owned by the host's event loop. `lent`: ids of devices that other nodes' runners use; their load is unknown."""

    def __init__(self, notes: DeviceNotes, clock: Clock, *, lent: Callable[[], Collection[str]] = frozenset) -> None:
        self._notes = notes
        self._clock = clock
        self._lent = lent
        self._company = Company()
        self._began_s = clock.now_s()
        self._seen: dict[str, tuple[str, int]] = {}  # by placement: process and number of its last window
        self._known: dict[str, tuple[str, DecodeSpeed]] = {}  # by device: what it holds for, and what is known

    def look(
        self, records: Iterable[cluster_pb2.RunnerRecord], devices: Iterable[cluster_pb2.Device], engine_build: str
    ) -> None:
        """Record the current users of devices, and every window that was not seen before."""
        records, by_id, now_s = list(records), {device.id: device for device in devices}, self._clock.now_s()
        self._company.see(_users(records, by_id), now_s)
        before, self._seen = self._seen, {}
        for record in records:
            window = record.status.decode_window
            seen = self._seen[record.placement.placement_id] = record.placement.incarnation, window.number
            if window.number and before.get(record.placement.placement_id) != seen and engine_build:
                self._take(record, window, by_id, engine_build, now_s)

    def mark(self, devices: list[cluster_pb2.Device], engine_build: str) -> list[cluster_pb2.Device]:
        """Return the same devices with what is known of them."""
        for device in devices:
            device.decode_bytes_s = round(self._speed(device, engine_build)[1].shown_bytes_s)
        return devices

    def _take(
        self,
        record: cluster_pb2.RunnerRecord,
        window: cluster_pb2.DecodeWindow,
        by_id: dict[str, cluster_pb2.Device],
        engine_build: str,
        now_s: float,
    ) -> None:
        read = [(by_id.get(one.device_id), one.bytes) for one in window.reads]
        borrowed = any(device.node_id for device in record.layout.devices)
        readers = [_reader(device, size) for device, size in read if device is not None]
        if borrowed or len(readers) < len(read) or not telling(readers, window.bytes_s):
            return
        used = [by_id[reader.id] for reader in readers]
        began_s = now_s - window.span_ms / 1000
        alone = (
            began_s > self._began_s
            and self._company.was_alone({pool for device in used for pool in _pools(device)}, since_s=began_s)
            and not {device.id for device in used} & set(self._lent())
        )
        hour = int(self._clock.wall_unix_s() // HOUR_S)
        for device in used:
            key, known = self._speed(device, engine_build)
            learned = learn(known, window.bytes_s, hour=hour, alone=alone)
            if learned != known:
                self._keep(device.id, key, known, learned)

    def _keep(self, device_id: str, key: str, known: DecodeSpeed, learned: DecodeSpeed) -> None:
        self._known[device_id] = key, learned
        note = self._notes.of(device_id)
        note.decode_key, note.decode_bytes_s, note.decode_windows = key, learned.shown_bytes_s, learned.windows
        note.decode_hours = [[hour, best] for hour, best in learned.hours]
        if learned.shown_bytes_s != known.shown_bytes_s:
            log.info("device.decode_speed", device=device_id, bytes_s=round(learned.shown_bytes_s))
        if learned.shown_bytes_s != known.shown_bytes_s or len(learned.hours) != len(known.hours):
            self._notes.save()

    def _speed(self, device: cluster_pb2.Device, engine_build: str) -> tuple[str, DecodeSpeed]:
        """Return the known speed for this build, driver and product, with these as one text."""
        key = ", ".join(part for part in (engine_build, device.driver, device.description) if part)
        kept = self._known.get(device.id)
        if kept is None or kept[0] != key:
            known = DecodeSpeed()
            if self._notes.knows(device.id) and (note := self._notes.of(device.id)).decode_key == key:
                known = restored(note.decode_bytes_s, note.decode_windows, note.decode_hours)
            kept = self._known[device.id] = key, known
        return kept


def _reader(device: cluster_pb2.Device, size: int) -> ReadDevice:
    # What an RPC server lends is as fast as the way to it, so it is like itself alone.
    make = device.id if device.backend == "RPC" else f"{device.backend}, {device.description}"
    return ReadDevice(id=device.id, make=make, copy_bytes_s=device.speed_bytes_s, bytes=size)


def _users(records: Iterable[cluster_pb2.RunnerRecord], by_id: dict[str, cluster_pb2.Device]) -> dict[str, int]:
    """Return the number of runners that read, or write weights, in each memory pool now."""
    users: dict[str, int] = {}
    for record in records:
        status = record.status
        if status.state in LOADING or (status.state in SERVING and status.slots_busy):
            used = [by_id[device_id] for device_id in _device_ids(record) if device_id in by_id]
            for pool in {pool for device in used for pool in _pools(device)}:
                users[pool] = users.get(pool, 0) + 1
    return users


def _device_ids(record: cluster_pb2.RunnerRecord) -> set[str]:
    """Return this node's devices that a runner's steps read from."""
    found = {device.device_id for device in record.layout.devices if not device.node_id}
    host = record.status.memory.host
    if not record.layout.devices or host.weights_bytes > host.input_weights_bytes:
        found.add(CPU_ID)
    return found


def _pools(device: cluster_pb2.Device) -> set[str]:
    return {device.pool_id or device.id, device.backing_pool_id or device.pool_id or device.id}
