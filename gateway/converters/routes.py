"""Routes, replicas and their models, from protos to values of `gateway.core`."""

import functools
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import orjson

from common.clock import MS_PER_S
from common.telemetry.logs import get_logger
from gateway.core.dispatch.prompt_prefixes import Holdings
from gateway.core.models.routes import DeviceShare, ModelInfo, ReplicaInfo, ReplicaState, RouteInfo
from gateway.core.models.stored_model import sampling_of_metadata, stored_messages, usable_parameters
from protos import cluster_pb2, scheduler_pb2

log = get_logger()
_MODELS_CACHED_MAX = 1024
_MODEL_FIELDS = frozenset(one.name for one in fields(ModelInfo))


def model_from_proto(model: cluster_pb2.Model) -> ModelInfo:
    """Translate a model file and the fields of its manifest."""
    description = model.description
    parameters = usable_parameters(_object(model.parameters_json))
    if parameters.ignored:
        log.warning("model.parameters_ignored", model=model.name, names=parameters.ignored)
    values: dict[str, Any] = {
        **_same_fields(description),
        **_same_fields(model),
        "sampling_defaults": sampling_of_metadata(_object(description.metadata_json)),
        "metadata_json": description.metadata_json or "{}",
        "parameters": parameters.values,
        "messages": stored_messages(_array(model.messages_json)),
    }
    return ModelInfo(**values)


def _same_fields(message: cluster_pb2.Model | cluster_pb2.ModelDescription) -> dict[str, Any]:
    """Return the fields that a model has by the same names here."""
    return {
        name: tuple(getattr(message, name)) if field.is_repeated else getattr(message, name)
        for name, field in message.DESCRIPTOR.fields_by_name.items()
        if name in _MODEL_FIELDS
    }


def _object(text: str) -> Mapping[str, object]:
    value = _json(text)
    return value if isinstance(value, dict) else {}


def _array(text: str) -> list[object]:
    value = _json(text)
    return value if isinstance(value, list) else []


def _json(text: str) -> object:
    """Parse a text from elsewhere; invalid JSON counts as no value."""
    try:
        return orjson.loads(text) if text else None
    except orjson.JSONDecodeError:
        return None


def route_from_proto(route: scheduler_pb2.ModelRoute) -> RouteInfo:
    """Translate a route as the scheduler published it."""
    # Tables arrive on every change of any replica, while models hardly change: their part is converted once.
    model = _model_from_bytes(route.model.SerializeToString(deterministic=True))
    return RouteInfo(model=model, replicas=tuple(replica_from_proto(replica) for replica in route.replicas))


@functools.lru_cache(maxsize=_MODELS_CACHED_MAX)
def _model_from_bytes(data: bytes) -> ModelInfo:
    return model_from_proto(cluster_pb2.Model.FromString(data))


def replica_state(state: cluster_pb2.RunnerState.ValueType) -> ReplicaState:
    """Translate a runner's state. Unknown values of newer runners count as loading: they get no requests."""
    match state:
        case cluster_pb2.RUNNER_STATE_READY | cluster_pb2.RUNNER_STATE_NO_SLOTS:
            return ReplicaState.READY
        case cluster_pb2.RUNNER_STATE_DRAINING:
            return ReplicaState.DRAINING
        case cluster_pb2.RUNNER_STATE_ERROR | cluster_pb2.RUNNER_STATE_NOT_RESPONDING:
            return ReplicaState.BROKEN
        case _:
            return ReplicaState.LOADING


def holdings_of(held: cluster_pb2.HeldPrefixes) -> Holdings:
    """Translate what a runner holds; of a name that several states of a tier have, the newest state counts."""
    tiers: dict[str, dict[int, float]] = {}
    for state in reversed(held.saved):
        tiers.setdefault(state.tier, {}).update(dict.fromkeys(state.names, state.restore_ms / MS_PER_S))
    return Holdings(frozenset(held.names), tiers)


def replica_from_proto(replica: scheduler_pb2.Replica) -> ReplicaInfo:
    """Translate a replica as the scheduler published it."""
    status = replica.status
    measured = {memory.device_id: memory for memory in status.memory.devices}
    devices = tuple(
        DeviceShare(
            device_id=layers.device_id,
            name=name,
            layer_count=layers.layer_count,
            size_bytes=_memory_bytes(measured[layers.device_id]) if layers.device_id in measured else 0,
        )
        for layers, name in zip(replica.layout.devices, replica.device_names, strict=False)
    )
    return ReplicaInfo(
        placement_id=replica.placement.placement_id,
        generation=replica.placement.generation,
        incarnation=replica.placement.incarnation,
        node_id=replica.node_id,
        address=replica.address,
        state=replica_state(status.state),
        context_tokens=replica.layout.context_tokens,
        slots_total=status.slots_total or replica.layout.slots,
        slots_busy=status.slots_busy,
        queued=status.queued,
        load_fraction=status.load_fraction,
        reason=status.error.message,
        devices=devices,
        host_bytes=_memory_bytes(status.memory.host),
        keep_alive_ms=status.keep_alive_ms if status.HasField("keep_alive_ms") else None,
        expires_at_unix_ms=replica.expires_at_unix_ms if replica.HasField("expires_at_unix_ms") else None,
        stays=replica.stays,
    )


def _memory_bytes(memory: cluster_pb2.DeviceMemory) -> int:
    return memory.weights_bytes + memory.cache_bytes + memory.graph_bytes
