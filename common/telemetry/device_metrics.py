"""Devices on a Prometheus page."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from common.clock import MS_PER_S
from common.telemetry.metrics import Family, Sample, ScrapedGauges
from protos import cluster_pb2

STATE_NAMES = {
    cluster_pb2.DEVICE_STATE_OK: "ok",
    cluster_pb2.DEVICE_STATE_SUSPECT: "suspect",
    cluster_pb2.DEVICE_STATE_LOST: "lost",
    cluster_pb2.DEVICE_STATE_EXCLUDED: "excluded",
    cluster_pb2.DEVICE_STATE_PROBING: "probing",
}
TRUST_NAMES = {
    cluster_pb2.TRUST_MEASURED: "measured",
    cluster_pb2.TRUST_PREDICTED: "predicted",
    cluster_pb2.TRUST_STALE: "stale",
}
THROTTLE_REASONS = ("power", "thermal", "power_brake")


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One device. `labels` say which, in the order of the gauges' label names."""

    labels: tuple[str, ...]
    device: cluster_pb2.Device
    report_age_s: float = 0.0  # its figures are so much older than they say


class DeviceGauges:
    """`PREFIX_device_…`, read from rows when the page is asked for."""

    def __init__(self, prefix: str, label_names: Sequence[str]) -> None:
        """Register the gauges."""

        def family(name: str, text: str, *more_labels: str) -> Family:
            return Family(f"{prefix}_device_{name}", text, (*label_names, *more_labels))

        self._total = family("total_bytes", "Memory of a device")
        self._free = family("free_bytes", "Free memory of a device, and who said so", "source", "trust")
        self._age = family("free_age_seconds", "Age of the free figure")
        self._state = family("state", "1 for the state that a device is in", "state")
        self._speed = family(
            "speed_bytes_per_second",
            "How fast memory is: copy, what one inside the device reads and writes (0: not timed); "
            "replicas, what their decode steps read, once it is known",
            "source",
        )
        self._utilization = family("utilization_ratio", "Share of the time with a kernel running on a card")
        self._temperature = family("temperature_celsius", "Temperature of a card")
        self._power = family("power_watts", "Power that a card draws")
        self._throttled = family(
            "throttled", "1 while the clocks of a card are held down: power, thermal, power_brake", "reason"
        )
        self._errors = family(
            "errors",
            "Errors that a card's driver reported: xid_application, xid_hardware (since the host started), "
            "ecc_corrected, ecc_uncorrected (since the driver was loaded)",
            "kind",
        )
        self._vitals = (self._utilization, self._temperature, self._power, self._throttled, self._errors)
        self.gauges = ScrapedGauges((self._total, self._free, self._age, self._state, self._speed, *self._vitals))

    def read_from(self, rows: Callable[[], Iterable[DeviceRow]]) -> None:
        """Set the source of the rows."""
        self.gauges.read_from(lambda: self.samples(rows()))

    def samples(self, rows: Iterable[DeviceRow]) -> Iterator[Sample]:
        """All values of all devices."""
        for row in rows:
            device = row.device
            trust = TRUST_NAMES.get(device.trust, "unknown")
            yield Sample(self._total, device.total_bytes, row.labels)
            yield Sample(self._free, device.free_bytes, (*row.labels, device.free_source, trust))
            yield Sample(self._age, device.free_age_ms / MS_PER_S + row.report_age_s, row.labels)
            yield Sample(self._speed, device.speed_bytes_s, (*row.labels, "copy"))
            if device.decode_bytes_s:
                yield Sample(self._speed, device.decode_bytes_s, (*row.labels, "replicas"))
            for state, name in STATE_NAMES.items():
                yield Sample(self._state, float(state == device.state), (*row.labels, name))
            if device.HasField("vitals"):
                yield from self._vital_samples(device.vitals, row.labels)

    def _vital_samples(self, vitals: cluster_pb2.DeviceVitals, labels: tuple[str, ...]) -> Iterator[Sample]:
        given = {field.name: value for field, value in vitals.ListFields()}  # those with presence also if they are 0
        figures = {"utilization": self._utilization, "temperature_c": self._temperature, "power_w": self._power}
        for field, family in figures.items():
            if field in given:
                yield Sample(family, given[field], labels)
        for reason in THROTTLE_REASONS:
            yield Sample(self._throttled, float(reason in vitals.throttled), (*labels, reason))
        yield Sample(self._errors, vitals.xids_application, (*labels, "xid_application"))
        yield Sample(self._errors, vitals.xids_hardware, (*labels, "xid_hardware"))
        for kind in ("ecc_corrected", "ecc_uncorrected"):
            if kind in given:
                yield Sample(self._errors, given[kind], (*labels, kind))
