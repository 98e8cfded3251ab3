"""What the books say of replicas and bytes, on the Prometheus page: read when the page is asked for, not before."""

from collections import Counter
from collections.abc import Iterator

from common.telemetry.metrics import Sample
from scheduler import metrics
from scheduler.core.books.books import Books
from scheduler.core.books.promises import promises
from scheduler.core.books.residuals import BYTE_CLASSES, sizes_by_class
from scheduler.core.sizes.ledger import overhead_bytes
from scheduler.core.values.view import SpeedSource

DeviceBytes = dict[tuple[str, str], int]  # by node and device
DeviceSpeeds = dict[tuple[str, str], tuple[float, SpeedSource]]


def promised_bytes(books: Books) -> DeviceBytes:
    """What is promised on every device that is known."""
    promised = {(node.id, device.id): 0 for node in books.observed.nodes.values() for device in node.devices}
    for promise in promises(books):
        for device_id, count in promise.device_bytes.items():
            key = (promise.node_id, device_id)
            promised[key] = promised.get(key, 0) + count
    return promised


def reserved_bytes(books: Books) -> DeviceBytes:
    """What is never promised on them."""
    nodes = books.observed.nodes.values()
    return {(node.id, device.id): overhead_bytes(device, books.policy) for node in nodes for device in node.devices}


def ranked_speeds(books: Books) -> DeviceSpeeds:
    """By what devices are ranked, and where it comes from."""
    nodes = books.observed.nodes.values()
    return {(node.id, one.id): (one.speed_bytes_s, one.speed_source) for node in nodes for one in node.devices}


def samples(books: Books) -> Iterator[Sample]:
    """Everything."""
    for family, counts in (
        (metrics.PROMISED_BYTES, promised_bytes(books)),
        (metrics.RESERVED_BYTES, reserved_bytes(books)),
    ):
        for labels, count in counts.items():
            yield Sample(family, count, labels)
    yield from _sizes(books)
    counted = Counter((node_id, runner.model_name, str(runner.state)) for node_id, runner in books.observed.replicas())
    for names, count in counted.items():
        yield Sample(metrics.REPLICAS, count, names)


def _sizes(books: Books) -> Iterator[Sample]:
    """What loaded replicas were predicted to take, what they hold, and how far the two are apart."""
    for (node_id, device_id), (planned, allocated) in sizes_by_class(books).items():
        for name, expected, found in zip(BYTE_CLASSES, planned, allocated, strict=True):
            yield Sample(metrics.PLANNED_BYTES, expected, (node_id, device_id, name))
            yield Sample(metrics.ALLOCATED_BYTES, found, (node_id, device_id, name))
        yield Sample(metrics.RESIDUAL_BYTES, sum(allocated) - sum(planned), (node_id, device_id))
