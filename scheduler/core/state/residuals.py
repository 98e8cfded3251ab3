"""Difference between planned and real bytes, learned from every load, and shown by device.

Learned margins are stored, so that the next leader begins with them.
"""

from collections.abc import Iterator

from scheduler.core.sizes.ledger import margin_key
from scheduler.core.sizes.margins import NO_MARGINS, Margins
from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.state.effects import SaveMargins
from scheduler.core.values.desired import DesiredPlacement
from scheduler.core.values.memory import DeviceBytes, MemoryOrigin, MemoryReport
from scheduler.core.values.view import NodeView, RunnerView

BYTE_CLASSES = ("weights", "cache", "graph", "projector")
ClassSizes = tuple[int, ...]  # in the order of BYTE_CLASSES
_NOTHING: ClassSizes = (0,) * len(BYTE_CLASSES)


def learn(state: ClusterState, record: DesiredPlacement, runner: RunnerView) -> None:
    """Record the error of a loaded replica's measurement, on every device."""
    planned, real = record.planned, runner.memory
    if planned is None or real is None or planned.origin is not MemoryOrigin.MEASURED:
        return
    margins = state.margins
    for (node_id, device_id), (expected, found) in _pairs(state, record.node_id, planned, real):
        node = state.node(node_id)
        device = node.device(device_id) if node is not None else None
        if node is None or device is None:
            continue
        file = node.model(record.model_digest)
        architecture = file.facts.architecture if file is not None and file.facts is not None else ""
        key = margin_key(node, device, architecture, is_split=len(planned.devices) > 1)
        margins = margins.with_residual(key, found.total_bytes - expected.total_bytes, expected.total_bytes)
    keep(state, margins)


def sizes_by_class(state: ClusterState) -> dict[tuple[str, str], tuple[ClassSizes, ClassSizes]]:
    """Return planned and held bytes of loaded replicas, by device and class."""
    sums: dict[tuple[str, str], tuple[ClassSizes, ClassSizes]] = {}
    for node_id, runner in state.observed.replicas():
        record = state.desired.get(runner.placement_id)
        if record is None or record.planned is None or runner.memory is None:
            continue
        for key, (expected, found) in _pairs(state, node_id, record.planned, runner.memory):
            planned, held = sums.get(key, (_NOTHING, _NOTHING))
            sums[key] = _plus(planned, expected), _plus(held, found)
    return sums


def _plus(sizes: ClassSizes, part: DeviceBytes) -> ClassSizes:
    more = (part.weights_bytes, part.cache_bytes, part.graph_bytes, part.projector_bytes)
    return tuple(size + extra for size, extra in zip(sizes, more, strict=True))


def _pairs(
    state: ClusterState, node_id: str, planned: MemoryReport, real: MemoryReport
) -> Iterator[tuple[tuple[str, str], tuple[DeviceBytes, DeviceBytes]]]:
    if len(planned.devices) != len(real.devices):
        return
    for expected, found in zip(planned.devices, real.devices, strict=True):
        yield (expected.node_id or node_id, expected.device_id), (expected, found)
    node: NodeView | None = state.node(node_id)
    host = node.host_device if node is not None else None
    if host is not None:
        yield (node_id, host.id), (planned.host, real.host)


def keep(state: ClusterState, margins: Margins) -> None:
    """Plan with these from now on; what is new of them is written down. Nothing waits for that."""
    news = margins.since(state.margins)
    state.margins = margins
    if state.leadership is not None and news != NO_MARGINS:
        state.emit(SaveMargins(fence=state.leadership.fence, margins=news))


def take_over(state: ClusterState, stored: Margins, fence: int) -> None:
    """Take the margins of the store as a new leader.

    What it does not know was learned in a term of ours before it forgot, and is written again. Where both know, a
    leader that only renews has learned since, and a new one has not.
    """
    own = state.margins
    state.margins = stored.with_all(own) if state.leadership is not None else own.with_all(stored)
    news = state.margins.since(stored)
    if news != NO_MARGINS:
        state.emit(SaveMargins(fence=fence, margins=news))
