"""The inventory as GET /puna/v1/nodes shows it."""

from collections.abc import Collection, Iterator

from google.protobuf.message import Message

from protos import cluster_pb2, discovery_pb2, scheduler_pb2

Place = tuple[str, str]  # node id, device id
Share = dict[str, object]
# Names of fields for people, where they differ from the contract's.
_NAMES = {
    "context_tokens": "context_length",
    "device_id": "id",
    "device_names": "devices",
    "layer_count": "layers",
    "model_digest": "digest",
    "model_name": "model",
    "node_id": "node",
    "placement_id": "placement",
}
_DEVICE_STATES = {
    cluster_pb2.DEVICE_STATE_OK: "ok",
    cluster_pb2.DEVICE_STATE_SUSPECT: "suspect",
    cluster_pb2.DEVICE_STATE_LOST: "lost",
    cluster_pb2.DEVICE_STATE_EXCLUDED: "excluded",
    cluster_pb2.DEVICE_STATE_PROBING: "probing",
}


# A node that falls silent cannot say so itself.
STALE_AFTER_MS = 2000
_TRUSTS = {
    cluster_pb2.TRUST_MEASURED: "measured",
    cluster_pb2.TRUST_PREDICTED: "predicted",
    cluster_pb2.TRUST_STALE: "stale",
}
_SPEED_SOURCES = {
    cluster_pb2.SPEED_SOURCE_COPY: "probe copy",
    cluster_pb2.SPEED_SOURCE_LIKE_DEVICES: "like devices",
    cluster_pb2.SPEED_SOURCE_REPLICAS: "replicas",
}
_CLASSES = {
    cluster_pb2.DEVICE_TYPE_CPU: "cpu",
    cluster_pb2.DEVICE_TYPE_GPU: "discrete",
    cluster_pb2.DEVICE_TYPE_INTEGRATED: "integrated",
    cluster_pb2.DEVICE_TYPE_ACCELERATOR: "helper",
}


def inventory_nodes(inventory: discovery_pb2.Inventory) -> list[dict[str, object]]:
    """List every node, by id. Free bytes are those of their source; no figure here is estimated."""
    shares, lent = shares_by_device(list(inventory.nodes)), _lent_devices(inventory)
    return [_node(node, shares, lent) for node in inventory.nodes]


def _lent_devices(inventory: discovery_pb2.Inventory) -> dict[Place, list[Share]]:
    """Map each device to the placements of other nodes that it serves, as their layouts say."""
    lent: dict[Place, list[Share]] = {}
    for node in inventory.nodes:
        for record in node.runners:
            if record.status.state == cluster_pb2.RUNNER_STATE_ERROR:
                continue
            borrower: Share = {
                "placement": record.placement.placement_id,
                "model": record.model_name,
                "node": node.id,
            }
            for part in record.layout.devices:
                if part.node_id and part.node_id != node.id:
                    lent.setdefault((part.node_id, part.device_id), []).append(borrower)
    return lent


def cleared_device(answer: scheduler_pb2.ClearDeviceResponse) -> dict[str, object]:
    """Describe a device after its test, as POST /puna/v1/devices/clear shows it."""
    return {"node": answer.node_id, **_device(answer.device, 0)}


def _node(
    node: cluster_pb2.Node, shares: dict[Place, list[Share]], lent: dict[Place, list[Share]]
) -> dict[str, object]:
    cpu = next((device for device in node.devices if device.type == cluster_pb2.DEVICE_TYPE_CPU), None)
    ram = _ram(cpu) if cpu is not None else None
    return {
        "id": node.id,
        "address": node.address,
        "state": node_state(node),
        "draining_replicas": node.draining_replicas if node.draining else None,
        "build": node.engine_build,
        "report_age_ms": node.report_age_ms,
        "ram": ram,
        "store": {"free_bytes": node.models_free_bytes, "total_bytes": node.models_total_bytes},
        "states": [shown(tier) for tier in node.state_tiers],
        "devices": [
            {
                **_device(device, node.report_age_ms),
                "holds": shares.get((node.id, device.id), []),
                "lent_to": lent.get((node.id, device.id), []),
            }
            for device in node.devices
        ],
        "runners": [_runner(record) for record in node.runners],
        "crash_rows": [shown(row) for row in node.crash_rows],
    }


def shown(message: Message, *, without: Collection[str] = ()) -> dict[str, object]:
    """Return the fields of a message by their names for people: null is not set, fractions have six digits."""
    found: dict[str, object] = {}
    for field in message.DESCRIPTOR.fields:
        if field.name in without:
            continue
        value = getattr(message, field.name)
        if field.is_repeated:
            value = [shown(one) if isinstance(one, Message) else one for one in value]
        elif field.has_presence and not message.HasField(field.name):
            value = None
        elif isinstance(value, Message):
            value = shown(value)
        found[_NAMES.get(field.name, field.name)] = round(value, 6) if isinstance(value, float) else value
    return found


def _ram(cpu: cluster_pb2.Device) -> dict[str, object]:
    return {
        "total": cpu.total_bytes,
        "free": cpu.free_bytes,
        "source": cpu.free_source,
        "swap_total": cpu.swap_total_bytes,
        "swap_free": cpu.swap_free_bytes,
    }


def node_state(node: cluster_pb2.Node) -> str:
    """Return the state of a node as people read it."""
    if node.suspect:
        return "suspect"
    if node.draining:
        return "draining" if node.draining_replicas else "drained"
    if any(device.state == cluster_pb2.DEVICE_STATE_PROBING for device in node.devices):
        return "probing"
    lost = any(device.state == cluster_pb2.DEVICE_STATE_LOST for device in node.devices)
    return "degraded" if lost else "ready"


def _device(device: cluster_pb2.Device, report_age_ms: int) -> dict[str, object]:
    age_ms = device.free_age_ms + report_age_ms
    trust = "stale" if age_ms > STALE_AFTER_MS else _TRUSTS.get(device.trust, "unknown")
    return {
        "id": device.id,
        "name": device.name,
        "library": device.backend,
        "description": device.description,
        "total_bytes": device.total_bytes,
        "free_bytes": device.free_bytes,
        "free_source": device.free_source,
        "free_age_ms": age_ms,
        "trust": trust,
        "promised_bytes": device.promised_bytes,
        "reserve_bytes": device.reserve_bytes,
        "max_bytes": device.max_bytes if device.HasField("max_bytes") else None,
        "class": _CLASSES.get(device.type, "unknown"),
        "pool": device.pool_id,
        "backing_pool": device.backing_pool_id or None,
        "pci_id": device.pci_id or None,
        "driver": device.driver or None,
        **_speed(device),
        "state": _DEVICE_STATES.get(device.state, "unknown"),
        "state_reason": device.state_reason,
        "check_exit_code": device.check_exit_code if device.HasField("check_exit_code") else None,
        "check_last_line": device.check_last_line or None,
        "vitals": shown(device.vitals) if device.HasField("vitals") else None,
    }


def ranked_speed(speed: int, source: cluster_pb2.SpeedSource.ValueType) -> dict[str, object]:
    """Return the speed that a device is ranked by, and its source; null if unknown."""
    return {"speed_bytes_s": speed or None, "speed_source": _SPEED_SOURCES.get(source) if speed else None}


def _speed(device: cluster_pb2.Device) -> dict[str, object]:
    """Return the speed that it is ranked by, its source, and the copy that was timed."""
    speed, source = device.rank_bytes_s, device.rank_source
    if not speed:  # its host says so, not the scheduler
        speed, source = device.decode_bytes_s, cluster_pb2.SPEED_SOURCE_REPLICAS
    if not speed:
        speed, source = device.speed_bytes_s, cluster_pb2.SPEED_SOURCE_COPY
    return {**ranked_speed(speed, source), "copy_bytes_s": device.speed_bytes_s or None}


def _runner(record: cluster_pb2.RunnerRecord) -> dict[str, object]:
    status = record.status
    state = cluster_pb2.RunnerState.Name(status.state) if status.state in cluster_pb2.RunnerState.values() else ""
    return {
        "placement": record.placement.placement_id,
        "generation": record.placement.generation,
        "model": record.model_name,
        "digest": record.model_digest,
        "state": state.removeprefix("RUNNER_STATE_").lower(),
        "slots_total": status.slots_total,
        "slots_busy": status.slots_busy,
        "queued": status.queued,
        "pid": record.pid,
        "metrics_address": record.metrics_address,
    }


def shares_by_device(nodes: list[cluster_pb2.Node]) -> dict[Place, list[Share]]:
    """Map devices to the measured bytes of loaded runners. Bytes in host RAM are the CPU device's."""
    cpus = {
        node.id: device.id for node in nodes for device in node.devices if device.type == cluster_pb2.DEVICE_TYPE_CPU
    }
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
