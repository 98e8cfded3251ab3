"""Protos to the core's values and back. Unknown enum values of a newer peer become the harmless one.

Most of an inventory is as it was: the view of a node without a new report is kept.
"""

from dataclasses import replace

from common.errors import PunaError, StaleFence, error_types
from common.model_names import is_model_name
from common.seen_inventory import SeenInventory
from common.spec import codecs
from common.spec.codec import Codec, EnumCodec
from common.spec.layout import Layout
from protos import cluster_pb2, host_pb2, scheduler_pb2
from scheduler.core.sizes.speeds import LikeSpeeds, like_speeds, likened
from scheduler.core.state.effects import AnswerLoading, AnswerQueued
from scheduler.core.state.events import EnsureRequested, ExplainAsked
from scheduler.core.values.asked import Asked
from scheduler.core.values.facts import ModelFacts
from scheduler.core.values.faults import CrashRow, Fault
from scheduler.core.values.memory import DeviceBytes, MemoryOrigin, MemoryReport
from scheduler.core.values.origins import Origin
from scheduler.core.values.routing_table import ModelAlias, ReplicaRoute
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

_KINDS = EnumCodec(DeviceKind, cluster_pb2.DeviceType.DESCRIPTOR, unknown=DeviceKind.UNKNOWN)
_TRUSTS = EnumCodec(Trust, cluster_pb2.Trust.DESCRIPTOR, unknown=Trust.UNKNOWN)
_STATES = EnumCodec(RunnerState, cluster_pb2.RunnerState.DESCRIPTOR, unknown=RunnerState.UNKNOWN)
_ORIGINS = EnumCodec(MemoryOrigin, cluster_pb2.MemoryOrigin.DESCRIPTOR, unknown=MemoryOrigin.UNKNOWN)
SPEED_SOURCES = EnumCodec(SpeedSource, cluster_pb2.SpeedSource.DESCRIPTOR, unknown=SpeedSource.UNKNOWN)
FETCHING = "fetching"  # RunnerStatus.load_note

DEVICE_BYTES = Codec(DeviceBytes, cluster_pb2.DeviceMemory)
MEMORY_REPORT = Codec(
    MemoryReport,
    cluster_pb2.MemoryReport,
    nested={"origin": _ORIGINS, "devices": DEVICE_BYTES, "host": DEVICE_BYTES},
)
_NODES = Codec(NodeView, cluster_pb2.Node, partial=True)
_DEVICES = Codec(
    DeviceView,
    cluster_pb2.Device,
    nested={"trust": _TRUSTS, "holders": Codec(HolderView, cluster_pb2.DeviceHolder)},
    partial=True,
)
_FILES = Codec(ModelFile, cluster_pb2.Model, partial=True)
_FACTS = Codec(ModelFacts, cluster_pb2.ModelMemory, partial=True)
_RUNNERS = Codec(
    RunnerView,
    cluster_pb2.RunnerStatus,
    nested={"state": _STATES, "memory": MEMORY_REPORT, "speculation": codecs.SPECULATION},
    partial=True,
)
_MODEL_ORIGINS = Codec(Origin, host_pb2.ModelOrigin)
ALIASES = Codec(ModelAlias, scheduler_pb2.Alias)
LOAD_REQUESTS = Codec(
    EnsureRequested, scheduler_pb2.EnsureModelRequest, nested={"options": codecs.LOAD_OPTIONS}, partial=True
)
EXPLAIN_REQUESTS = Codec(
    ExplainAsked, scheduler_pb2.ExplainRequest, nested={"options": codecs.LOAD_OPTIONS}, partial=True
)
QUEUED = Codec(AnswerQueued, scheduler_pb2.Queued, partial=True)
LOADING = Codec(AnswerLoading, scheduler_pb2.Loading, partial=True)
CRASH_ROWS = Codec(CrashRow, cluster_pb2.CrashRow, partial=True)


def to_node(node: cluster_pb2.Node, models: tuple[ModelFile, ...]) -> NodeView:
    """Return a node with its files, which change less often than the rest."""
    return _NODES.from_proto(
        node,
        devices=tuple(_to_device(device) for device in node.devices),
        models=models,
        runners=tuple(to_runner(runner) for runner in node.runners),
        report_age_s=node.report_age_ms / 1000,
    )


def _to_device(device: cluster_pb2.Device) -> DeviceView:
    return _DEVICES.from_proto(
        device,
        kind=_KINDS.from_proto(device.type),
        pool_id=device.pool_id or device.id,
        free_age_s=device.free_age_ms / 1000,
        usable=device.state == cluster_pb2.DEVICE_STATE_OK,
        lost=device.state == cluster_pb2.DEVICE_STATE_LOST,
        probing=device.state == cluster_pb2.DEVICE_STATE_PROBING,
        speed_bytes_s=float(device.decode_bytes_s or device.speed_bytes_s),
        speed_source=_speed_source(device),
        copy_bytes_s=float(device.speed_bytes_s),
    )


def _speed_source(device: cluster_pb2.Device) -> SpeedSource:
    if device.decode_bytes_s:
        return SpeedSource.REPLICAS
    return SpeedSource.COPY if device.speed_bytes_s else SpeedSource.UNKNOWN


def to_file(model: cluster_pb2.Model) -> ModelFile:
    """Return a file; `error` says why it is of no use."""
    error = model.error
    if not error and not model.HasField("description"):
        error = "its header has not been read"
    return _FILES.from_proto(
        model,
        trained_context_tokens=model.description.context_tokens,
        layer_count=model.description.layer_count,
        error=error,
        facts=to_facts(model.description) if model.description.HasField("memory") else None,
    )


def to_facts(description: cluster_pb2.ModelDescription) -> ModelFacts:
    """Convert a description to the facts that size its model."""
    return _FACTS.from_proto(
        description.memory,
        architecture=description.architecture,
        embedding_length=description.embedding_length,
        vocabulary_size=description.vocabulary_size,
    )


def to_runner(record: cluster_pb2.RunnerRecord) -> RunnerView:
    """Return a runner as its host reports it."""
    status = record.status
    return _RUNNERS.from_proto(
        status,
        placement_id=record.placement.placement_id,
        generation=record.placement.generation,
        incarnation=record.placement.incarnation,
        model_name=record.model_name,
        model_digest=record.model_digest,
        layout=to_layout(record.layout),
        address=record.address,
        is_fetching=status.load_note == FETCHING,
        keep_alive_requests=status.keep_alive_wishes,
        held_prompt_s=status.held_prompt_ms / 1000,
        fault=to_fault(status.error) if status.HasField("error") else None,
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
    attempted = MEMORY_REPORT.from_proto(error.attempted) if error.HasField("attempted") else None
    return Fault(
        reason=error.reason or "runner_lost",
        message=error.message,
        attempted=attempted,
        lender_id=error.lender_id,
    )


def fault_of(error: PunaError) -> Fault:
    """Return a domain error as a value."""
    high_water = error.high_water if isinstance(error, StaleFence) else 0
    return Fault(reason=error.reason, message=error.message, retry_after_s=error.retry_after_s, high_water=high_water)


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
    return None if origin is None else _MODEL_ORIGINS.to_proto(origin)


def from_replica(replica: ReplicaRoute, *, expires_at_unix_ms: int | None, stays: bool) -> scheduler_pb2.Replica:
    """Return a replica for the wire."""
    runner = replica.runner
    return scheduler_pb2.Replica(
        placement=cluster_pb2.PlacementRef(
            placement_id=runner.placement_id, generation=runner.generation, incarnation=runner.incarnation
        ),
        node_id=replica.node_id,
        address=runner.address,
        layout=codecs.LAYOUT.to_proto(runner.layout),
        status=_RUNNERS.to_proto(runner, last_error_line=None),
        device_names=replica.device_names,
        expires_at_unix_ms=expires_at_unix_ms,
        stays=stays,
    )


class KnownNodes:
    """Previous content of every node in the inventory."""

    def __init__(self) -> None:
        self._views: dict[str, tuple[cluster_pb2.Node, NodeView]] = {}
        self._like = LikeSpeeds()
        self._likened: dict[str, tuple[NodeView, NodeView]] = {}  # as reported, and with the speeds of like devices
        self._files: dict[str, tuple[tuple[int, int], list[cluster_pb2.Model], tuple[ModelFile, ...]]] = {}

    def views(self, inventory: SeenInventory) -> tuple[tuple[NodeView, ...], frozenset[str]]:
        """Return every node, and the ids of those that have not reported since.

        Views of these are the same objects, unless like devices have reported other speeds.
        """
        views: list[NodeView] = []
        silent: set[str] = set()
        for node in inventory.nodes:
            before = self._views.get(node.id)
            if before is not None and before[0] is node:
                silent.add(node.id)
                views.append(before[1])
            else:
                views.append(to_node(node, self._files_of(node, inventory.epoch)))
        self._views = {node.id: (node, view) for node, view in zip(inventory.nodes, views, strict=True)}
        for gone in self._files.keys() - self._views.keys():
            del self._files[gone]  # it comes back as a new one
        return self._with_like_speeds(views), frozenset(silent)

    def _with_like_speeds(self, views: list[NodeView]) -> tuple[NodeView, ...]:
        like = like_speeds(views)
        before, self._likened = (self._likened if like == self._like else {}), {}
        self._like = like
        for view in views:
            known = before.get(view.id)
            self._likened[view.id] = known if known is not None and known[0] is view else (view, likened(view, like))
        return tuple(after for _, after in self._likened.values())

    def _files_of(self, node: cluster_pb2.Node, epoch: int) -> tuple[ModelFile, ...]:
        """Return the files of a node: the same object for as long as nothing about them changes."""
        version = epoch, node.models_version
        before = self._files.get(node.id)
        if before is not None and node.models_version and before[0] == version:
            return before[2]
        models = [model for model in node.models if is_model_name(model.name)]  # the others are named by the routes
        files = before[2] if before is not None and before[1] == models else tuple(map(to_file, models))
        self._files[node.id] = version, models, files
        return files
