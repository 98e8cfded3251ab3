"""Protos to the core's values and back. Unknown enum values of a newer peer become the harmless one."""

from dataclasses import replace

from common.errors import PunaError, error_types
from common.seen_inventory import SeenInventory
from common.spec import codecs
from common.spec.codec import EnumCodec
from common.spec.layout import Layout
from protos import cluster_pb2, host_pb2, scheduler_pb2
from scheduler.core.values.asked import Asked
from scheduler.core.values.facts import ModelFacts
from scheduler.core.values.faults import Fault
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

_KINDS = EnumCodec(DeviceKind, cluster_pb2.DeviceType.DESCRIPTOR, unknown=DeviceKind.UNKNOWN)
_TRUSTS = EnumCodec(Trust, cluster_pb2.Trust.DESCRIPTOR, unknown=Trust.UNKNOWN)
_STATES = EnumCodec(RunnerState, cluster_pb2.RunnerState.DESCRIPTOR, unknown=RunnerState.UNKNOWN)
_ORIGINS = EnumCodec(MemoryOrigin, cluster_pb2.MemoryOrigin.DESCRIPTOR, unknown=MemoryOrigin.UNKNOWN)
SPEED_SOURCES = EnumCodec(SpeedSource, cluster_pb2.SpeedSource.DESCRIPTOR, unknown=SpeedSource.UNKNOWN)
FETCHING = "fetching"  # RunnerStatus.load_note


def to_nodes(inventory: SeenInventory, known: KnownNodes) -> tuple[tuple[NodeView, ...], frozenset[str]]:
    """Return an inventory for the core, and the nodes without a report since the one before, which `known` has seen."""
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
        kind=_KINDS.from_proto(device.type),
        backend=device.backend,
        description=device.description,
        pool_id=device.pool_id or device.id,
        total_bytes=device.total_bytes,
        free_bytes=device.free_bytes,
        free_source=device.free_source,
        free_age_s=device.free_age_ms / 1000,
        trust=_TRUSTS.from_proto(device.trust),
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
    """Convert a description to the facts that size its model."""
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
    """Return a runner as its host reports it."""
    status = record.status
    return RunnerView(
        placement_id=record.placement.placement_id,
        generation=record.placement.generation,
        incarnation=record.placement.incarnation,
        model_name=record.model_name,
        model_digest=record.model_digest,
        layout=to_layout(record.layout),
        address=record.address,
        state=_STATES.from_proto(status.state),
        load_fraction=status.load_fraction,
        load_bytes_done=status.load_bytes_done,
        load_bytes_total=status.load_bytes_total,
        is_fetching=status.load_note == FETCHING,
        slots_total=status.slots_total,
        slots_busy=status.slots_busy,
        queued=status.queued,
        idle_ms=status.idle_ms,
        keep_alive_ms=status.keep_alive_ms if status.HasField("keep_alive_ms") else None,
        keep_alive_requests=status.keep_alive_wishes,
        requests_total=status.requests_total,
        held_prompt_s=status.held_prompt_ms / 1000,
        memory=to_report(status.memory) if status.HasField("memory") else None,
        fault=to_fault(status.error) if status.HasField("error") else None,
        last_error_line=status.last_error_line,
        asked=to_asked(record.asked),
    )


def to_asked(asked: cluster_pb2.LoadAsked) -> Asked:
    """Convert the options that a runner was loaded with."""
    given = {field.name: value for field, value in asked.ListFields()}
    return Asked(context_tokens=given.get("context_tokens"), options=codecs.LOAD_OPTIONS.from_json(given))


def from_asked(asked: Asked) -> cluster_pb2.LoadAsked:
    """Convert them for a host, which keeps them with the runner."""
    return cluster_pb2.LoadAsked(context_tokens=asked.context_tokens, **codecs.LOAD_OPTIONS.to_json(asked.options))


def to_fault(error: cluster_pb2.RunnerError) -> Fault:
    """Return the error of a runner."""
    attempted = to_report(error.attempted) if error.HasField("attempted") else None
    return Fault(reason=error.reason or "runner_lost", message=error.message, attempted=attempted)


def fault_of(error: PunaError) -> Fault:
    """Return a domain error as a value."""
    return Fault(reason=error.reason, message=error.message, retry_after_s=error.retry_after_s)


def error_of(fault: Fault) -> PunaError:
    """Convert a fault to the error that callers get. A reason that this build does not know is a bug."""
    kind = error_types().get(fault.reason, error_types()["internal_error"])
    return kind(fault.message, retry_after_s=fault.retry_after_s)


def to_layout(layout: cluster_pb2.Layout) -> Layout:
    """Convert a layout. Addresses of lent devices are the host's, which sets them anew at each start."""
    found = codecs.LAYOUT.from_proto(layout)
    if not any(device.rpc_address for device in found.devices):
        return found
    return replace(found, devices=tuple(replace(one, rpc_address="", rpc_device=0) for one in found.devices))


def from_origin(origin: Origin | None) -> host_pb2.ModelOrigin | None:
    """Convert the origin of a model's files for the host that fetches them."""
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
    """Convert a layout for the wire."""
    return codecs.LAYOUT.to_proto(layout)


def to_report(report: cluster_pb2.MemoryReport) -> MemoryReport:
    """Return a memory report."""
    return MemoryReport(
        origin=_ORIGINS.from_proto(report.origin),
        devices=tuple(_to_bytes(device) for device in report.devices),
        host=_to_bytes(report.host),
    )


def from_report(report: MemoryReport) -> cluster_pb2.MemoryReport:
    """Return a memory report for the wire."""
    return cluster_pb2.MemoryReport(
        origin=_ORIGINS.to_proto(report.origin),
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
    """Return a replica for the wire."""
    runner = replica.runner
    status = cluster_pb2.RunnerStatus(
        state=_STATES.to_proto(runner.state),
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
