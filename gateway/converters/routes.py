"""Routes, replicas and their models, from protos to values of `gateway.core`."""

import functools
from collections.abc import Mapping

import orjson

from common.telemetry.logs import get_logger
from gateway.core.models.routes import DeviceShare, ModelInfo, ReplicaInfo, ReplicaState, RouteInfo
from gateway.core.models.stored_model import sampling_of_metadata, stored_messages, usable_parameters
from protos import cluster_pb2, scheduler_pb2

log = get_logger()


def model_from_proto(model: cluster_pb2.Model) -> ModelInfo:
    """Translate a model file and the fields of its manifest."""
    description = model.description
    parameters = usable_parameters(_object(model.parameters_json))
    if parameters.ignored:
        log.warning("model.parameters_ignored", model=model.name, names=parameters.ignored)
    return ModelInfo(
        name=model.name,
        digest=model.digest,
        size_bytes=model.size_bytes,
        modified_at_unix_s=model.modified_at_unix_s,
        error=model.error,
        architecture=description.architecture,
        title=description.title,
        parameter_count=description.parameter_count,
        quantization=description.quantization,
        context_tokens=description.context_tokens,
        embedding_length=description.embedding_length,
        layer_count=description.layer_count,
        vocabulary_size=description.vocabulary_size,
        capabilities=tuple(description.capabilities),
        chat_template=description.chat_template,
        bos_token=description.bos_token,
        eos_token=description.eos_token,
        special_tokens=tuple(description.special_tokens),
        sampling_defaults=sampling_of_metadata(_object(description.metadata_json)),
        metadata_json=description.metadata_json or "{}",
        projector_digest=model.projector_digest,
        manifest_digest=model.manifest_digest,
        total_size_bytes=model.total_size_bytes,
        system=model.system,
        template=model.template,
        parameters=parameters.values,
        parameters_json=model.parameters_json,
        messages=stored_messages(_array(model.messages_json)),
        licenses=tuple(model.licenses),
        parser=model.parser,
        parent_model=model.parent_model,
    )


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


_MODELS_CACHED_MAX = 1024


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
