"""Metrics that every process has, and gauges with a source. Those of a service are in its own `metrics.py`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import REGISTRY, Counter, Gauge, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

BUILD_INFO = Gauge(
    "puna_build_info", "1; the labels say what runs in this process", ["service", "version", "engine", "python"]
)
LOOP_LAG = Histogram(
    "puna_event_loop_lag_seconds",
    "How late the event loop came to what was due; all streams of the process wait so long",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
LOOP_TASKS = Gauge("puna_event_loop_tasks", "Tasks of the event loop: those of the service, and some per open request")
CONFIG_GENERATION = Gauge(
    "puna_config_generation",
    "Times that a file of the configuration was read well, by file: keys, certificate, trust. Instead of a broken one "
    "the last good one stays in use",
    ["file"],
)
LOG_LINES_DROPPED = Counter(
    "puna_log_lines_dropped_total",
    "Log lines that were dropped because standard error could not be written: a full disk, a pipe that is not read",
)
CERTIFICATE_EXPIRES = Gauge(
    "puna_certificate_expires_timestamp_seconds",
    "Unix time at which the certificate that this process shows to others expires; 0 without PUNA_TRUST",
)
CERTIFICATE_LATE = Gauge(
    "puna_certificate_renewal_late",
    "1 once three quarters of the life of the certificate have passed: it should have been renewed after half",
)
# Reading is done by the page's thread: a dictionary that the event loop changes at that moment is read again.
_READS_MAX = 5


@dataclass(frozen=True, slots=True)
class Family:
    """A gauge that is read when the page is asked for, so that ages are those of that moment."""

    name: str
    text: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a family; `labels` in the family's order."""

    family: Family
    value: float
    labels: tuple[str, ...] = ()


class ScrapedGauges(Collector):
    """Families with one source. Without a source the page shows their names only."""

    def __init__(self, families: Sequence[Family]) -> None:
        """Register the collector: one for each process."""
        self.families = tuple(families)
        self._read: Callable[[], Iterable[Sample]] = tuple
        REGISTRY.register(self)

    def read_from(self, read: Callable[[], Iterable[Sample]]) -> None:
        """Set the source of the values. Runs in the thread of the metrics page, so the source must not wait."""
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """All families with their values of now."""
        shown = {family: GaugeMetricFamily(family.name, family.text, labels=family.labels) for family in self.families}
        for sample in self._samples():
            shown[sample.family].add_metric(sample.labels, sample.value)
        yield from shown.values()

    def describe(self) -> Iterator[Metric]:
        """Yield the names alone."""
        for family in self.families:
            yield GaugeMetricFamily(family.name, family.text, labels=family.labels)

    def _samples(self) -> list[Sample]:
        for _ in range(_READS_MAX):
            try:
                return list(self._read())
            except RuntimeError:  # it changed size while it was read
                continue
        return []
