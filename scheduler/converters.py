"""Protos to the core's values and back. Unknown enum values of a newer peer become the harmless one."""

from common.errors import PunaError, error_types
from common.seen_inventory import SeenInventory
from protos import cluster_pb2, host_pb2, scheduler_pb2
from scheduler.core.values.asked import Asked, LoadOptions
from scheduler.core.values.facts import ModelFacts
from scheduler.core.values.faults import Fault
from scheduler.core.values.layouts import Adapter, DeviceLayers, FlashAttention, Layout, SplitMode
from scheduler.core.values.memory import DeviceBytes, MemoryOrigin, MemoryReport
from scheduler.core.values.origins import Origin
from scheduler.core.values.routing_table import ReplicaRoute
from scheduler.core.values.view import (
    DeviceKind,
    DeviceView,
    HolderView,
    ModelFile,
    NodeView,
    RunnerState,
    RunnerView,
    SpeedSource,
    Trust,
)
from scheduler.known_nodes import KnownNodes

_KINDS = {
    cluster_pb2.DEVICE_TYPE_CPU: DeviceKind.CPU,
    cluster_pb2.DEVICE_TYPE_GPU: DeviceKind.GPU,
    cluster_pb2.DEVICE_TYPE_INTEGRATED: DeviceKind.INTEGRATED,
    cluster_pb2.DEVICE_TYPE_ACCELERATOR: DeviceKind.ACCELERATOR,
}
_TRUSTS = {
    cluster_pb2.TRUST_MEASURED: Trust.MEASURED,
    cluster_pb2.TRUST_PREDICTED: Trust.PREDICTED,
    cluster_pb2.TRUST_STALE: Trust.STALE,
}
_STATES = {
    cluster_pb2.RUNNER_STATE_LAUNCHED: RunnerState.LAUNCHED,
    cluster_pb2.RUNNER_STATE_LOADING: RunnerState.LOADING,
    cluster_pb2.RUNNER_STATE_READY: RunnerState.READY,
    cluster_pb2.RUNNER_STATE_NO_SLOTS: RunnerState.NO_SLOTS,
    cluster_pb2.RUNNER_STATE_NOT_RESPONDING: RunnerState.NOT_RESPONDING,
    cluster_pb2.RUNNER_STATE_ERROR: RunnerState.ERROR,
    cluster_pb2.RUNNER_STATE_DRAINING: RunnerState.DRAINING,
}
_STATES_BACK = {state: number for number, state in _STATES.items()}
_ORIGINS = {
    cluster_pb2.MEMORY_ORIGIN_MEASURED: MemoryOrigin.MEASURED,
    cluster_pb2.MEMORY_ORIGIN_ALLOCATED: MemoryOrigin.ALLOCATED,
    cluster_pb2.MEMORY_ORIGIN_ATTEMPTED: MemoryOrigin.ATTEMPTED,
    cluster_pb2.MEMORY_ORIGIN_ESTIMATED: MemoryOrigin.ESTIMATED,
}
_ORIGINS_BACK = {origin: number for number, origin in _ORIGINS.items()}
_FLASH = {
    cluster_pb2.FLASH_ATTENTION_AUTO: FlashAttention.AUTO,
    cluster_pb2.FLASH_ATTENTION_ON: FlashAttention.ON,
    cluster_pb2.FLASH_ATTENTION_OFF: FlashAttention.OFF,
}
_FLASH_BACK = {flash: number for number, flash in _FLASH.items()}
_SPLITS = {cluster_pb2.SPLIT_MODE_LAYER: SplitMode.LAYER, cluster_pb2.SPLIT_MODE_ROW: SplitMode.ROW}
_SPEED_SOURCES_BACK = {
    SpeedSource.UNKNOWN: cluster_pb2.SPEED_SOURCE_UNSPECIFIED,
    SpeedSource.COPY: cluster_pb2.SPEED_SOURCE_COPY,
    SpeedSource.LIKE_DEVICES: cluster_pb2.SPEED_SOURCE_LIKE_DEVICES,
    SpeedSource.REPLICAS: cluster_pb2.SPEED_SOURCE_REPLICAS,
}
FETCHING = "fetching"  # RunnerStatus.load_note
_SPLITS_BACK = {split: number for number, split in _SPLITS.items()}


def to_nodes(inventory: SeenInventory, known: KnownNodes) -> tuple[tuple[NodeView, ...], frozenset[str]]:
    """An inventory as the core sees it, and who has not reported since the one before, which `known` has seen."""
    return known.views(inventory, lambda node: _to_node(node, inventory.epoch, known))


def _to_node(node: cluster_pb2.Node, epoch: int, known: KnownNodes) -> NodeView:
    return NodeView(
        id=node.id,
        address=node.address,
        engine_build=node.engine_build,
        devices=tuple(_to_device(device) for device in node.devices),
        models=known.files(node, epoch, _to_model),
        runners=tuple(to_runner(runner) for runner in node.runners),
        suspect=node.suspect,
        report_age_s=node.report_age_ms / 1000,
        rpc_enabled=node.rpc_enabled,
        tunnel_certificate=node.tunnel_certificate,
        models_free_bytes=node.models_free_bytes,
    )


def _to_device(device: cluster_pb2.Device) -> DeviceView:
    return DeviceView(
        id=device.id,
        name=device.name,
        kind=_KINDS.get(device.type, DeviceKind.UNKNOWN),
        backend=device.backend,
        description=device.description,
        pool_id=device.pool_id or device.id,
        total_bytes=device.total_bytes,
        free_bytes=device.free_bytes,
        free_source=device.free_source,
        free_age_s=device.free_age_ms / 1000,
        trust=_TRUSTS.get(device.trust, Trust.UNKNOWN),
        usable=device.state == cluster_pb2.DEVICE_STATE_OK,
        lost=device.state == cluster_pb2.DEVICE_STATE_LOST,
        probing=device.state == cluster_pb2.DEVICE_STATE_PROBING,
        state_reason=device.state_reason,
        speed_bytes_s=float(device.decode_bytes_s or device.speed_bytes_s),
        speed_source=_speed_source(device),
        copy_bytes_s=float(device.speed_bytes_s),
        max_bytes=device.max_bytes if device.HasField("max_bytes") else None,
        overhead_bytes=device.overhead_bytes if device.HasField("overhead_bytes") else None,
        pci_id=device.pci_id,
        backing_pool_id=device.backing_pool_id,
        holders=tuple(
            HolderView(placement_id=one.placement_id, listed=one.listed, held_bytes=one.held_bytes)
            for one in device.holders
        ),
    )


def _speed_source(device: cluster_pb2.Device) -> SpeedSource:
    if device.decode_bytes_s:
        return SpeedSource.REPLICAS
    return SpeedSource.COPY if device.speed_bytes_s else SpeedSource.UNKNOWN


def from_speed_source(source: SpeedSource) -> cluster_pb2.SpeedSource.ValueType:
    """Where a speed comes from, for the wire."""
    return _SPEED_SOURCES_BACK[source]


def _to_model(model: cluster_pb2.Model) -> ModelFile:
    error = model.error
    if not error and not model.HasField("description"):
        error = "its header has not been read"
    return ModelFile(
        name=model.name,
        digest=model.digest,
        size_bytes=model.size_bytes,
        modified_at_unix_s=model.modified_at_unix_s,
        trained_context_tokens=model.description.context_tokens,
        layer_count=model.description.layer_count,
        error=error,
        facts=to_facts(model.description) if model.description.HasField("memory") else None,
        projector_digest=model.projector_digest,
        projector_size_bytes=model.projector_size_bytes,
        blob_digests=tuple(model.blob_digests),
        total_size_bytes=model.total_size_bytes,
        manifest_digest=model.manifest_digest,
    )


def to_facts(description: cluster_pb2.ModelDescription) -> ModelFacts:
    """What a description says about the bytes of its model."""
    memory = description.memory
    return ModelFacts(
        architecture=description.architecture,
        embedding_length=description.embedding_length,
        vocabulary_size=description.vocabulary_size,
        head_count=memory.head_count,
        layer_weights_bytes=tuple(memory.layer_weights_bytes),
        layer_expert_bytes=tuple(memory.layer_expert_bytes),
        input_weights_bytes=memory.input_weights_bytes,
        layer_key_width=tuple(memory.layer_key_width),
        layer_value_width=tuple(memory.layer_value_width),
        layer_state_bytes=tuple(memory.layer_state_bytes),
        expert_count=memory.expert_count,
        expert_used_count=memory.expert_used_count,
    )


def to_runner(record: cluster_pb2.RunnerRecord) -> RunnerView:
    """A runner as its host reports it."""
    status = record.status
    return RunnerView(
        placement_id=record.placement.placement_id,
        generation=record.placement.generation,
        incarnation=record.placement.incarnation,
        model_name=record.model_name,
        model_digest=record.model_digest,
        layout=to_layout(record.layout),
        address=record.address,
        state=_STATES.get(status.state, RunnerState.UNKNOWN),
        load_fraction=status.load_fraction,
        load_bytes_done=status.load_bytes_done,
        load_bytes_total=status.load_bytes_total,
        is_fetching=status.load_note == FETCHING,
        slots_total=status.slots_total,
        slots_busy=status.slots_busy,
        queued=status.queued,
        idle_ms=status.idle_ms,
        keep_alive_ms=status.keep_alive_ms if status.HasField("keep_alive_ms") else None,
        keep_alive_wishes=status.keep_alive_wishes,
        requests_total=status.requests_total,
        held_prompt_s=status.held_prompt_ms / 1000,
        memory=to_report(status.memory) if status.HasField("memory") else None,
        fault=to_fault(status.error) if status.HasField("error") else None,
        last_error_line=status.last_error_line,
        asked=to_asked(record.asked),
    )


def to_asked(asked: cluster_pb2.LoadAsked) -> Asked:
    """What a runner was loaded for."""
    return Asked(
        context_tokens=asked.context_tokens if asked.HasField("context_tokens") else None,
        options=LoadOptions(
            require_gpu=asked.require_gpu,
            num_gpu=asked.num_gpu if asked.HasField("num_gpu") else None,
            main_gpu=asked.main_gpu if asked.HasField("main_gpu") else None,
            batch_tokens=asked.batch_tokens,
            threads=asked.threads,
            use_mmap=asked.use_mmap if asked.HasField("use_mmap") else None,
        ),
    )


def from_asked(asked: Asked) -> cluster_pb2.LoadAsked:
    """The same for a host, which keeps it with the runner."""
    options = asked.options
    return cluster_pb2.LoadAsked(
        context_tokens=asked.context_tokens,
        require_gpu=options.require_gpu,
        num_gpu=options.num_gpu,
        main_gpu=options.main_gpu,
        batch_tokens=options.batch_tokens,
        threads=options.threads,
        use_mmap=options.use_mmap,
    )


def to_fault(error: cluster_pb2.RunnerError) -> Fault:
    """A runner's own error."""
    attempted = to_report(error.attempted) if error.HasField("attempted") else None
    return Fault(reason=error.reason or "runner_lost", message=error.message, attempted=attempted)


def fault_of(error: PunaError) -> Fault:
    """A domain error as a value."""
    return Fault(reason=error.reason, message=error.message, retry_after_s=error.retry_after_s)


def error_of(fault: Fault) -> PunaError:
    """A fault as the error that callers get. A reason that this build does not know is a bug of somebody's."""
    kind = error_types().get(fault.reason, error_types()["internal_error"])
    return kind(fault.message, retry_after_s=fault.retry_after_s)


def to_layout(layout: cluster_pb2.Layout) -> Layout:
    """A layout."""
    return Layout(
        devices=tuple(
            DeviceLayers(device_id=device.device_id, layer_count=device.layer_count, node_id=device.node_id)
            for device in layout.devices
        ),
        context_tokens=layout.context_tokens,
        slots=layout.slots,
        batch_tokens=layout.batch_tokens,
        cache_type_k=layout.cache_type_k,
        cache_type_v=layout.cache_type_v,
        flash_attention=_FLASH.get(layout.flash_attention, FlashAttention.AUTO),
        threads=layout.threads,
        use_mmap=layout.use_mmap if layout.HasField("use_mmap") else None,
        engine=layout.engine,
        projector_digest=layout.projector_digest,
        adapters=tuple(Adapter(digest=adapter.digest, scale=adapter.scale) for adapter in layout.adapters),
        pipeline=layout.pipeline,
        output_on_host=layout.output_on_host,
        experts_on_host=layout.experts_on_host,
        split_mode=_SPLITS.get(layout.split_mode, SplitMode.LAYER),
        main_device=layout.main_device,
        op_offload=layout.op_offload if layout.HasField("op_offload") else None,
        ubatch_tokens=layout.ubatch_tokens,
    )


def from_origin(origin: Origin | None) -> host_pb2.ModelOrigin | None:
    """Where a node gets a model, for its host."""
    if origin is None:
        return None
    return host_pb2.ModelOrigin(
        addresses=origin.addresses,
        name=origin.name,
        manifest_digest=origin.manifest_digest,
        blob_digests=origin.blob_digests,
        projector_digest=origin.projector_digest,
    )


def from_layout(layout: Layout) -> cluster_pb2.Layout:
    """A layout for the wire."""
    return cluster_pb2.Layout(
        devices=[
            cluster_pb2.DeviceLayers(device_id=device.device_id, layer_count=device.layer_count, node_id=device.node_id)
            for device in layout.devices
        ],
        context_tokens=layout.context_tokens,
        slots=layout.slots,
        batch_tokens=layout.batch_tokens,
        cache_type_k=layout.cache_type_k,
        cache_type_v=layout.cache_type_v,
        flash_attention=_FLASH_BACK[layout.flash_attention],
        threads=layout.threads,
        use_mmap=layout.use_mmap,
        engine=layout.engine,
        projector_digest=layout.projector_digest,
        adapters=[cluster_pb2.Adapter(digest=adapter.digest, scale=adapter.scale) for adapter in layout.adapters],
        pipeline=layout.pipeline,
        output_on_host=layout.output_on_host,
        experts_on_host=layout.experts_on_host,
        split_mode=_SPLITS_BACK[layout.split_mode],
        main_device=layout.main_device,
        op_offload=layout.op_offload,
        ubatch_tokens=layout.ubatch_tokens,
    )


def to_report(report: cluster_pb2.MemoryReport) -> MemoryReport:
    """A memory report."""
    return MemoryReport(
        origin=_ORIGINS.get(report.origin, MemoryOrigin.UNKNOWN),
        devices=tuple(_to_bytes(device) for device in report.devices),
        host=_to_bytes(report.host),
    )


def from_report(report: MemoryReport) -> cluster_pb2.MemoryReport:
    """A memory report for the wire."""
    return cluster_pb2.MemoryReport(
        origin=_ORIGINS_BACK.get(report.origin, cluster_pb2.MEMORY_ORIGIN_UNSPECIFIED),
        devices=[from_bytes(device) for device in report.devices],
        host=from_bytes(report.host),
    )


def _to_bytes(memory: cluster_pb2.DeviceMemory) -> DeviceBytes:
    return DeviceBytes(
        device_id=memory.device_id,
        weights_bytes=memory.weights_bytes,
        cache_bytes=memory.cache_bytes,
        graph_bytes=memory.graph_bytes,
        layer_weights_bytes=tuple(memory.layer_weights_bytes),
        layer_cache_bytes=tuple(memory.layer_cache_bytes),
        input_weights_bytes=memory.input_weights_bytes,
        projector_bytes=memory.projector_bytes,
        node_id=memory.node_id,
    )


def from_bytes(memory: DeviceBytes) -> cluster_pb2.DeviceMemory:
    """Bytes on one device for the wire."""
    return cluster_pb2.DeviceMemory(
        device_id=memory.device_id,
        weights_bytes=memory.weights_bytes,
        cache_bytes=memory.cache_bytes,
        graph_bytes=memory.graph_bytes,
        layer_weights_bytes=memory.layer_weights_bytes,
        layer_cache_bytes=memory.layer_cache_bytes,
        input_weights_bytes=memory.input_weights_bytes,
        projector_bytes=memory.projector_bytes,
        node_id=memory.node_id,
    )


def from_replica(replica: ReplicaRoute, *, expires_at_unix_ms: int | None, stays: bool) -> scheduler_pb2.Replica:
    """A replica for the wire."""
    runner = replica.runner
    status = cluster_pb2.RunnerStatus(
        state=_STATES_BACK.get(runner.state, cluster_pb2.RUNNER_STATE_UNSPECIFIED),
        load_fraction=runner.load_fraction,
        load_bytes_done=runner.load_bytes_done,
        load_bytes_total=runner.load_bytes_total,
        slots_total=runner.slots_total,
        slots_busy=runner.slots_busy,
        queued=runner.queued,
        idle_ms=runner.idle_ms,
        keep_alive_ms=runner.keep_alive_ms,
        requests_total=runner.requests_total,
        memory=from_report(runner.memory) if runner.memory is not None else None,
    )
    return scheduler_pb2.Replica(
        placement=cluster_pb2.PlacementRef(
            placement_id=runner.placement_id, generation=runner.generation, incarnation=runner.incarnation
        ),
        node_id=replica.node_id,
        address=runner.address,
        layout=from_layout(runner.layout),
        status=status,
        device_names=replica.device_names,
        expires_at_unix_ms=expires_at_unix_ms,
        stays=stays,
    )
