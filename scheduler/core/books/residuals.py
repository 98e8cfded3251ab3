"""How far reality was from what was planned, learned from every load, and shown by device."""

from collections.abc import Iterator

from scheduler.core.books.books import Books
from scheduler.core.books.learning import keep
from scheduler.core.sizes.ledger import device_kind
from scheduler.core.sizes.margins import MarginKey
from scheduler.core.values.desired import DesiredPlacement
from scheduler.core.values.memory import DeviceBytes, MemoryOrigin, MemoryReport
from scheduler.core.values.view import NodeView, RunnerView

BYTE_CLASSES = ("weights", "cache", "graph", "projector")
ClassSizes = tuple[int, ...]  # in the order of BYTE_CLASSES
_NOTHING: ClassSizes = (0,) * len(BYTE_CLASSES)


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
        key = MarginKey(
            build=node.engine_build,
            architecture=architecture,
            device_kind=device_kind(device),
            is_split=len(planned.devices) > 1,
        )
        margins = margins.with_residual(key, found.total_bytes - expected.total_bytes, expected.total_bytes)
    keep(books, margins)


def sizes_by_class(books: Books) -> dict[tuple[str, str], tuple[ClassSizes, ClassSizes]]:
    """What loaded replicas were planned with and what they hold, by device, class by class."""
    sums: dict[tuple[str, str], tuple[ClassSizes, ClassSizes]] = {}
    for node_id, runner in books.observed.replicas():
        record = books.desired.get(runner.placement_id)
        if record is None or record.planned is None or runner.memory is None:
            continue
        for key, (expected, found) in _pairs(books, node_id, record.planned, runner.memory):
            planned, held = sums.get(key, (_NOTHING, _NOTHING))
            sums[key] = _plus(planned, expected), _plus(held, found)
    return sums


def _plus(sizes: ClassSizes, part: DeviceBytes) -> ClassSizes:
    more = (part.weights_bytes, part.cache_bytes, part.graph_bytes, part.projector_bytes)
    return tuple(size + extra for size, extra in zip(sizes, more, strict=True))


def _pairs(
    books: Books, node_id: str, planned: MemoryReport, real: MemoryReport
) -> Iterator[tuple[tuple[str, str], tuple[DeviceBytes, DeviceBytes]]]:
    if len(planned.devices) != len(real.devices):
        return
    for expected, found in zip(planned.devices, real.devices, strict=True):
        yield (expected.node_id or node_id, expected.device_id), (expected, found)
    node: NodeView | None = books.node(node_id)
    host = node.host_device if node is not None else None
    if host is not None:
        yield (node_id, host.id), (planned.host, real.host)
