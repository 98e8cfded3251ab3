"""Gauges of replicas and bytes from the scheduler's state, computed when the Prometheus page is read."""

from collections import Counter
from collections.abc import Iterator

from common.telemetry.metrics import Sample
from scheduler import metrics
from scheduler.core.loading.crashes import shown_rows
from scheduler.core.sizes.ledger import overhead_bytes
from scheduler.core.state.cluster_state import ClusterState
from scheduler.core.state.promises import promises
from scheduler.core.state.residuals import BYTE_CLASSES, sizes_by_class
from scheduler.core.values.view import SpeedSource

DeviceBytes = dict[tuple[str, str], int]  # by node and device
DeviceSpeeds = dict[tuple[str, str], tuple[float, SpeedSource]]


def promised_bytes(state: ClusterState) -> DeviceBytes:
    """Yield the promised bytes of every known device."""
    promised = {(node.id, device.id): 0 for node in state.observed.nodes.values() for device in node.devices}
    for promise in promises(state):
        for device_id, count in promise.device_bytes.items():
            key = (promise.node_id, device_id)
            promised[key] = promised.get(key, 0) + count
    return promised


def reserved_bytes(state: ClusterState) -> DeviceBytes:
    """Yield the reserved bytes of every known device."""
    nodes = state.observed.nodes.values()
    return {(node.id, device.id): overhead_bytes(device, state.policy) for node in nodes for device in node.devices}


def ranked_speeds(state: ClusterState) -> DeviceSpeeds:
    """Return the speeds that rank devices, and their sources."""
    nodes = state.observed.nodes.values()
    return {(node.id, one.id): (one.speed_bytes_s, one.speed_source) for node in nodes for one in node.devices}


def samples(state: ClusterState, now_s: float) -> Iterator[Sample]:
    """Yield the samples of all gauges."""
    for family, counts in (
        (metrics.PROMISED_BYTES, promised_bytes(state)),
        (metrics.RESERVED_BYTES, reserved_bytes(state)),
    ):
        for labels, count in counts.items():
            yield Sample(family, count, labels)
    yield from _sizes(state)
    counted = Counter((node_id, runner.model_name, str(runner.state)) for node_id, runner in state.observed.replicas())
    for names, count in counted.items():
        yield Sample(metrics.REPLICAS, count, names)
    rows = {(row.node_id, row.model_name): row.crashes for row in shown_rows(state, now_s)}
    for place, crashes in rows.items():
        yield Sample(metrics.CRASHES_IN_A_ROW, crashes, place)


def _sizes(state: ClusterState) -> Iterator[Sample]:
    """Yield predicted and held bytes of loaded replicas, and their difference."""
    for (node_id, device_id), (planned, allocated) in sizes_by_class(state).items():
        for name, expected, found in zip(BYTE_CLASSES, planned, allocated, strict=True):
            yield Sample(metrics.PLANNED_BYTES, expected, (node_id, device_id, name))
            yield Sample(metrics.ALLOCATED_BYTES, found, (node_id, device_id, name))
        yield Sample(metrics.RESIDUAL_BYTES, sum(allocated) - sum(planned), (node_id, device_id))
