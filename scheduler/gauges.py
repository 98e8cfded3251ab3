"""What the books say of replicas and bytes, on the Prometheus page. Moved with every inventory."""

from collections import Counter
from collections.abc import Mapping

from scheduler import metrics
from scheduler.core.books import Books
from scheduler.core.residuals import BYTE_CLASSES, sizes_by_class

DeviceKey = tuple[str, str]  # node, device


def show_promised(promised: Mapping[DeviceKey, int], reserved: Mapping[DeviceKey, int]) -> None:
    """Bytes promised and kept free, by device."""
    for gauge, counts in ((metrics.PROMISED_BYTES, promised), (metrics.RESERVED_BYTES, reserved)):
        gauge.clear()
        for (node_id, device_id), count in counts.items():
            gauge.labels(node_id, device_id).set(count)


def show_sizes(books: Books) -> None:
    """What loaded replicas were predicted to take, what they hold, and how far the two are apart."""
    for gauge in (metrics.PLANNED_BYTES, metrics.ALLOCATED_BYTES, metrics.RESIDUAL_BYTES):
        gauge.clear()
    for (node_id, device_id), (planned, allocated) in sizes_by_class(books).items():
        for name, expected, found in zip(BYTE_CLASSES, planned, allocated, strict=True):
            metrics.PLANNED_BYTES.labels(node_id, device_id, name).set(expected)
            metrics.ALLOCATED_BYTES.labels(node_id, device_id, name).set(found)
        metrics.RESIDUAL_BYTES.labels(node_id, device_id).set(sum(allocated) - sum(planned))


def show_replicas(books: Books) -> None:
    """Replicas by node, model and state."""
    counts = Counter((node_id, runner.model_name, str(runner.state)) for node_id, runner in books.observed.replicas())
    metrics.REPLICAS.clear()
    for labels, count in counts.items():
        metrics.REPLICAS.labels(*labels).set(count)
