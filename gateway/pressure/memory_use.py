"""What lies on which device, by model and class, from what every runner of the inventory reports to hold."""

from collections.abc import Iterator

from protos import cluster_pb2

Place = tuple[str, str]  # node id, device id
Share = dict[str, object]


def shares_by_device(nodes: list[cluster_pb2.Node]) -> dict[Place, list[Share]]:
    """Measured bytes of loaded runners. What lies in host RAM is the CPU device's."""
    cpus = {node.id: device.id for node in nodes for device in node.devices if _is_cpu(device)}
    shares: dict[Place, list[Share]] = {}
    for node in nodes:
        for record in node.runners:
            for place, memory in _memory(record, node.id, cpus):
                if (share := _share(record, memory)) is not None:
                    shares.setdefault(place, []).append(share)
    return shares


def _memory(
    record: cluster_pb2.RunnerRecord, node_id: str, cpus: dict[str, str]
) -> Iterator[tuple[Place, cluster_pb2.DeviceMemory]]:
    report = record.status.memory
    for memory in report.devices:
        yield (memory.node_id or node_id, memory.device_id), memory
    if node_id in cpus:
        yield (node_id, cpus[node_id]), report.host


def _share(record: cluster_pb2.RunnerRecord, memory: cluster_pb2.DeviceMemory) -> Share | None:
    if not memory.weights_bytes + memory.cache_bytes + memory.graph_bytes + memory.projector_bytes:
        return None
    return {
        "placement": record.placement.placement_id,
        "model": record.model_name,
        "weights_bytes": memory.weights_bytes + memory.projector_bytes,
        "cache_bytes": memory.cache_bytes,
        "graph_bytes": memory.graph_bytes,
    }


def _is_cpu(device: cluster_pb2.Device) -> bool:
    return device.type == cluster_pb2.DEVICE_TYPE_CPU
