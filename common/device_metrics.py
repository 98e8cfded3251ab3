"""Devices on a Prometheus page, read when the page is asked for, so that ages are those of that moment."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import REGISTRY, CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from protos import cluster_pb2

STATE_NAMES = {
    cluster_pb2.DEVICE_STATE_OK: "ok",
    cluster_pb2.DEVICE_STATE_SUSPECT: "suspect",
    cluster_pb2.DEVICE_STATE_LOST: "lost",
    cluster_pb2.DEVICE_STATE_EXCLUDED: "excluded",
}
TRUST_NAMES = {
    cluster_pb2.TRUST_MEASURED: "measured",
    cluster_pb2.TRUST_PREDICTED: "predicted",
    cluster_pb2.TRUST_STALE: "stale",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRow:
    """One device. `labels` say which, in the order of the collector's label names."""

    labels: tuple[str, ...]
    total_bytes: int
    free_bytes: int
    source: str
    trust: str
    age_s: float
    state: str  # of STATE_NAMES
    speed_bytes_s: int = 0


class DeviceCollector(Collector):
    """`PREFIX_device_…` for whatever `rows` tells now. Called from the page's thread."""

    def __init__(self, prefix: str, label_names: Sequence[str], rows: Callable[[], Iterable[DeviceRow]]) -> None:
        self._prefix = prefix
        self._label_names = tuple(label_names)
        self._rows = rows

    def collect(self) -> Iterator[Metric]:
        """All gauges of all devices."""
        total = self._gauge("total_bytes", "Memory of a device")
        free = self._gauge("free_bytes", "Free memory of a device, and who said so", "source", "trust")
        age = self._gauge("free_age_seconds", "Age of the free figure")
        state = self._gauge("state", "1 for the state that a device is in", "state")
        speed = self._gauge("speed_bytes_per_second", "What a copy inside the device reads and writes; 0: not known")
        for row in self._rows():
            total.add_metric(row.labels, row.total_bytes)
            free.add_metric((*row.labels, row.source, row.trust), row.free_bytes)
            age.add_metric(row.labels, row.age_s)
            speed.add_metric(row.labels, row.speed_bytes_s)
            for name in STATE_NAMES.values():
                state.add_metric((*row.labels, name), float(name == row.state))
        yield from (total, free, age, state, speed)

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not ask for devices that are not there yet."""
        yield from ()

    def register(self, registry: CollectorRegistry = REGISTRY) -> None:
        """Show the devices on the process's page."""
        registry.register(self)

    def _gauge(self, name: str, text: str, *more_labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"{self._prefix}_device_{name}", text, labels=[*self._label_names, *more_labels])
