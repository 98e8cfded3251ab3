"""How far reality was from what was planned, learned from every load, and shown by device."""

from collections.abc import Iterator

from scheduler.core.books import Books
from scheduler.core.desired import DesiredPlacement
from scheduler.core.learning import keep
from scheduler.core.ledger import device_kind
from scheduler.core.margins import MarginKey
from scheduler.core.memory import MemoryOrigin, MemoryReport
from scheduler.core.view import NodeView, RunnerView

DeviceSizes = dict[tuple[str, str], tuple[int, int]]  # (node, device) → planned bytes, allocated bytes


def learn(books: Books, record: DesiredPlacement, runner: RunnerView) -> None:
    """A replica is loaded: remember how far its measurement was off, on every device."""
    planned, real = record.planned, runner.memory
    if planned is None or real is None or planned.origin is not MemoryOrigin.MEASURED:
        return
    margins = books.margins
    for (node_id, device_id), (expected, found) in _pairs(books, record.node_id, planned, real):
        node = books.node(node_id)
        device = node.device(device_id) if node is not None else None
        if node is None or device is None:
            continue
        file = node.model(record.model_digest)
        architecture = file.facts.architecture if file is not None and file.facts is not None else ""
        key = MarginKey(build=node.engine_build, architecture=architecture, device_kind=device_kind(device))
        margins = margins.with_residual(key, found - expected)
    keep(books, margins)


def sizes_by_device(books: Books) -> DeviceSizes:
    """What loaded replicas were planned with and what they hold, summed by device."""
    sums: DeviceSizes = {}
    for node_id, runner in books.observed.replicas():
        record = books.desired.get(runner.placement_id)
        if record is None or record.planned is None or runner.memory is None:
            continue
        for key, (expected, found) in _pairs(books, node_id, record.planned, runner.memory):
            before = sums.get(key, (0, 0))
            sums[key] = before[0] + expected, before[1] + found
    return sums


def _pairs(
    books: Books, node_id: str, planned: MemoryReport, real: MemoryReport
) -> Iterator[tuple[tuple[str, str], tuple[int, int]]]:
    if len(planned.devices) != len(real.devices):
        return
    for expected, found in zip(planned.devices, real.devices, strict=True):
        yield (expected.node_id or node_id, expected.device_id), (expected.total_bytes, found.total_bytes)
    node: NodeView | None = books.node(node_id)
    host = node.host_device if node is not None else None
    if host is not None:
        yield (node_id, host.id), (planned.host.total_bytes, real.host.total_bytes)
