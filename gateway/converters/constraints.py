"""Constraints and explanations between protos and JSON."""

from collections.abc import Mapping
from typing import Any

from common.errors import InvalidRequest
from common.spec import codecs
from common.spec.layout import FlashAttention
from gateway.converters.inventory import crash_row, ranked_speed
from gateway.core.request.durations import FOREVER_MS, parse_keep_alive_ms
from protos import cluster_pb2, scheduler_pb2

_FLASH = {"": 0, **{one.value: codecs.FLASH_ATTENTION.to_proto(one) for one in FlashAttention}}
_FLASH_NAMES = {number: name for name, number in _FLASH.items() if name}
# Our name for people → the contract's, where they differ.
_WIRE_NAMES = {"num_ctx": "context_tokens", "num_batch": "batch_tokens", "num_thread": "threads"}
_TRANSLATED = frozenset({"keep_alive", "flash_attention"})
_OPTIONAL = frozenset({"num_gpu", "main_gpu", "use_mmap"})


def constraints_to_proto(model_name: str, wanted: Mapping[str, Any]) -> scheduler_pb2.ModelConstraints:
    """Translate a model's constraints, named as in `PUT /puna/v1/placements/{model}`; None sets nothing.

    Raises:
        InvalidRequest: keep_alive is no duration, or flash_attention is none of its values.
    """
    flash_attention = wanted["flash_attention"]
    if flash_attention not in _FLASH:
        raise InvalidRequest("flash_attention must be auto, on or off", param="flash_attention")
    fields = {name: value for name, value in wanted.items() if name not in _TRANSLATED and value is not None}
    wire = scheduler_pb2.Constraints(**{_WIRE_NAMES.get(name, name): value for name, value in fields.items()})
    wire.flash_attention = _FLASH[flash_attention]
    keep_alive_ms = parse_keep_alive_ms(wanted["keep_alive"])
    if keep_alive_ms is not None:
        wire.keep_alive_ms = keep_alive_ms
    return scheduler_pb2.ModelConstraints(model_name=model_name, constraints=wire)


def constraints_from_proto(model: scheduler_pb2.ModelConstraints) -> dict[str, object]:
    """Return a model's constraints and the defaults that hold beside them as JSON; unset values are left out."""
    return {
        "model": model.model_name,
        "from_file": model.from_file,
        "constraints": _shown(model.constraints),
        "defaults": _shown(model.defaults),
    }


def _shown(wire: scheduler_pb2.Constraints) -> dict[str, object]:
    shown: dict[str, object] = {}
    for field in wire.DESCRIPTOR.fields:
        name, value = field.name, getattr(wire, field.name)
        if name in _OPTIONAL or name == "keep_alive_ms":
            if wire.HasField(name):  # type: ignore[arg-type]  # the names are of this message
                shown[name] = value
        elif value:
            shown[name] = value
    return _for_people(shown)


def _for_people(fields: Mapping[str, Any]) -> dict[str, object]:
    people = {wire: name for name, wire in _WIRE_NAMES.items()}
    shown: dict[str, object] = {}
    for name, value in fields.items():
        match name:
            case "keep_alive_ms":
                shown["keep_alive"] = -1 if value <= FOREVER_MS else value / 1000
            case "flash_attention":
                if value in _FLASH_NAMES:
                    shown[name] = _FLASH_NAMES[value]
            case "max_bytes":
                shown[name] = dict(value)
            case "nodes" | "devices":
                shown[name] = list(value)
            case "tensor_split":
                shown[name] = [round(share, 6) for share in value]
            case _:
                shown[people.get(name, name)] = value
    return shown


def explanation_from_proto(explanation: scheduler_pb2.Explanation) -> dict[str, object]:
    """Translate a decision to JSON."""
    return {
        "model": explanation.model_name,
        "digest": explanation.model_digest,
        "hypothetical": explanation.hypothetical,
        "age_s": explanation.age_ms / 1000,
        "outcome": explanation.outcome,
        "message": explanation.message,
        "waits_for": explanation.waits_for,
        "constraints": [
            {"name": one.name, "value": one.value, "origin": one.origin} for one in explanation.constraints
        ],
        "candidates": [_candidate(one) for one in explanation.candidates],
        "victims": [
            {"placement": one.placement_id, "model": one.model_name, "node": one.node_id, "loss": round(one.loss, 6)}
            for one in explanation.victims
        ],
        "layout": _layout(explanation.layout) if explanation.HasField("layout") else None,
        "would_fit": list(explanation.would_fit),
        "measure_rounds": explanation.measure_rounds,
        "attempts": explanation.attempts,
        "replicas": [
            {
                "placement": one.placement_id,
                "node": one.node_id,
                "devices": list(one.device_names),
                "context_length": one.context_tokens,
                "predicted_bytes": one.predicted_bytes,
                "allocated_bytes": one.allocated_bytes,
                "pinned": one.pinned,
            }
            for one in explanation.replicas
        ],
        "crash_rows": [crash_row(row) for row in explanation.crash_rows],
    }


def _candidate(candidate: scheduler_pb2.ExplainedCandidate) -> dict[str, object]:
    return {
        "node": candidate.node_id,
        "shape": candidate.shape,
        "verdict": candidate.verdict,
        "reason": candidate.reason,
        "slots": candidate.slots,
        "context_length": candidate.context_tokens,
        "layers": candidate.layer_count,
        "seconds_per_token": round(candidate.expected_s, 6) or None,
        "estimated": candidate.estimated,
        "devices": [
            {
                "node": device.node_id,
                "id": device.device_id,
                "name": device.name,
                "layers": device.layers,
                "need_bytes": device.need_bytes,
                "weights_bytes": device.weights_bytes,
                "cache_bytes": device.cache_bytes,
                "graph_bytes": device.graph_bytes,
                "projector_bytes": device.projector_bytes,
                "reserve_bytes": device.reserve_bytes,
                "margin_bytes": device.margin_bytes,
                "available_bytes": device.available_bytes,
                "free_bytes": device.free_bytes,
                "promised_bytes": device.promised_bytes,
                "overhead_bytes": device.overhead_bytes,
                "free_source": device.free_source,
                "free_age_ms": device.free_age_ms,
                "total_bytes": device.total_bytes,
                "backoff_bytes": device.backoff_bytes,
                "limit": device.limit,
                "max_bytes": device.max_bytes if device.HasField("max_bytes") else None,
                "pool": device.pool_id or None,
                "lent_to": [
                    {"placement": one.placement_id, "model": one.model_name, "node": one.node_id}
                    for one in device.lent_to
                ],
                **ranked_speed(device.rank_bytes_s, device.rank_source),
            }
            for device in candidate.devices
        ],
    }


def _layout(layout: cluster_pb2.Layout) -> dict[str, object]:
    return {
        "devices": [{"device": one.device_id, "layers": one.layer_count} for one in layout.devices],
        "context_length": layout.context_tokens,
        "slots": layout.slots,
        "num_batch": layout.batch_tokens,
        "cache_type_k": layout.cache_type_k,
        "cache_type_v": layout.cache_type_v,
        "pipeline": layout.pipeline,
    }
